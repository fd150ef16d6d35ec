"""Policies: who holds what, who predicts with what, what is learnt, who uploads. One file an algorithm."""

from __future__ import annotations

MODULES = {
    "ofms-ft": "ofms.policies.ofms_ft",
    "mab": "ofms.policies.mab",
    "fed-omd": "ofms.policies.fed_omd",
    "perfedavg": "ofms.policies.perfedavg",
}
