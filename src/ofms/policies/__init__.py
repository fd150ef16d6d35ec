"""Policies: which models clients hold and predict with, how they learn, who uploads. One file per algorithm.

Exports everything that the author of a policy needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ofms.exports import exported

if TYPE_CHECKING:
    from ofms.core.declared import Doc, Range, Values
    from ofms.core.draws import ClientDraws, Draws, Purpose
    from ofms.core.messages import Catalogue, Grants, Plan, Reports
    from ofms.core.new_experts import carry_losses
    from ofms.core.rates import resolve_rate
    from ofms.core.selection import (
        draw_model,
        importance_weights,
        inclusion_probabilities,
        loss_estimates,
        one_hot,
        probabilities,
    )
    from ofms.core.typing import Flags, Floats, Integers
    from ofms.policies.changes import Change
    from ofms.policies.exp3 import Exp3
    from ofms.policies.exp3_client import Exp3Client
    from ofms.policies.fleet import Fleet
    from ofms.policies.follower_client import FollowerClient
    from ofms.policies.granting_server import GrantingServer
    from ofms.policies.local_updates import Adapted, Epochs, GradientStep
    from ofms.policies.observations import Observations, Recent
    from ofms.policies.protocol import Algorithm, ClientHalf, Policy, ServerHalf, SummedUpdates
    from ofms.policies.session import ClientSession, ServerSession
    from ofms.policies.settings import Count, LossBound, Positive, Rate, Round, ServerStep, Share, TunedRate
    from ofms.policies.single_model_server import SingleModelServer
    from ofms.policies.subsets import fill_budgets

# `ofms --help` must not wait for NumPy: names are resolved on first use.
_EXPORTS = {
    "ofms.core.declared": ("Doc", "Range", "Values"),
    "ofms.core.draws": ("ClientDraws", "Draws", "Purpose"),
    "ofms.core.messages": ("Catalogue", "Grants", "Plan", "Reports"),
    "ofms.core.new_experts": ("carry_losses",),
    "ofms.core.rates": ("resolve_rate",),
    "ofms.core.selection": (
        *("draw_model", "importance_weights", "inclusion_probabilities"),
        *("loss_estimates", "one_hot", "probabilities"),
    ),
    "ofms.core.typing": ("Flags", "Floats", "Integers"),
    "ofms.policies.changes": ("Change",),
    "ofms.policies.exp3": ("Exp3",),
    "ofms.policies.exp3_client": ("Exp3Client",),
    "ofms.policies.fleet": ("Fleet",),
    "ofms.policies.follower_client": ("FollowerClient",),
    "ofms.policies.granting_server": ("GrantingServer",),
    "ofms.policies.local_updates": ("Adapted", "Epochs", "GradientStep"),
    "ofms.policies.observations": ("Observations", "Recent"),
    "ofms.policies.protocol": ("Algorithm", "ClientHalf", "Policy", "ServerHalf", "SummedUpdates"),
    "ofms.policies.session": ("ClientSession", "ServerSession"),
    "ofms.policies.settings": (
        *("Count", "LossBound", "Positive", "Rate", "Round", "ServerStep", "Share", "TunedRate"),
    ),
    "ofms.policies.single_model_server": ("SingleModelServer",),
    "ofms.policies.subsets": ("fill_budgets",),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

# The policy of `ofms run`, `simulate` and `deploy` if none is named.
DEFAULT = "late-hedge"

MODULES = {
    "late-hedge": "ofms.policies.late_hedge:algorithm",
    "ofms-ft": "ofms.policies.ofms_ft:algorithm",
    "mab": "ofms.policies.mab:algorithm",
    "non-fed-oms": "ofms.policies.non_fed_oms:algorithm",
    "rms-ft": "ofms.policies.rms_ft:algorithm",
    "b-fed-omft": "ofms.policies.b_fed_omft:algorithm",
    "fed-omd": "ofms.policies.fed_omd:algorithm",
    "perfedavg": "ofms.policies.perfedavg:algorithm",
    "fed-poe": "ofms.policies.fed_poe:algorithm",
    "budgeted-experts": "ofms.policies.budgeted_experts:algorithm",
    "explore-then-commit": "ofms.policies.explore_then_commit:algorithm",
    "follow-the-leader": "ofms.policies.follow_the_leader:algorithm",
}

__all__ = [
    "Adapted",
    "Algorithm",
    "Catalogue",
    "Change",
    "ClientDraws",
    "ClientHalf",
    "ClientSession",
    "Count",
    "Doc",
    "Draws",
    "Epochs",
    "Exp3",
    "Exp3Client",
    "Flags",
    "Fleet",
    "Floats",
    "FollowerClient",
    "GradientStep",
    "GrantingServer",
    "Grants",
    "Integers",
    "LossBound",
    "Observations",
    "Plan",
    "Policy",
    "Positive",
    "Purpose",
    "Range",
    "Rate",
    "Recent",
    "Reports",
    "Round",
    "ServerHalf",
    "ServerSession",
    "ServerStep",
    "Share",
    "SingleModelServer",
    "SummedUpdates",
    "TunedRate",
    "Values",
    "carry_losses",
    "draw_model",
    "fill_budgets",
    "importance_weights",
    "inclusion_probabilities",
    "loss_estimates",
    "one_hot",
    "probabilities",
    "resolve_rate",
]


__getattr__ = exported(__name__, _MODULE_OF)
