"""Policies: who holds what, who predicts with what, what is learnt, who uploads. One file an algorithm."""

from __future__ import annotations

MODULES = {
    "ofms-ft": "ofms.policies.ofms_ft",
    "mab": "ofms.policies.mab",
    "non-fed-oms": "ofms.policies.non_fed_oms",
    "rms-ft": "ofms.policies.rms_ft",
    "b-fed-omft": "ofms.policies.b_fed_omft",
    "fed-omd": "ofms.policies.fed_omd",
    "perfedavg": "ofms.policies.perfedavg",
    "budgeted-experts": "ofms.policies.budgeted_experts",
}
