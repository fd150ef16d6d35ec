"""Policies: who holds what, who predicts with what, what is learnt, who uploads. One file per algorithm."""

from __future__ import annotations

MODULES = {
    "ofms-ft": "ofms.policies.ofms_ft:algorithm",
    "mab": "ofms.policies.mab:algorithm",
    "non-fed-oms": "ofms.policies.non_fed_oms:algorithm",
    "rms-ft": "ofms.policies.rms_ft:algorithm",
    "b-fed-omft": "ofms.policies.b_fed_omft:algorithm",
    "fed-omd": "ofms.policies.fed_omd:algorithm",
    "perfedavg": "ofms.policies.perfedavg:algorithm",
    "budgeted-experts": "ofms.policies.budgeted_experts:algorithm",
}
