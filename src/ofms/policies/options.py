"""Settings of all policies as Python objects, which say which policy they are of: `ofms.OFMSFT(learning_rate=0.5)`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ofms.core.errors import InvalidInput
from ofms.policies.b_fed_omft import BFedOMFT
from ofms.policies.budgeted_experts import BudgetedExperts
from ofms.policies.explore_then_commit import ExploreThenCommit
from ofms.policies.fed_omd import FedOMD
from ofms.policies.fed_poe import FedPOE
from ofms.policies.follow_the_leader import FollowTheLeader
from ofms.policies.late_hedge_settings import LateHedge
from ofms.policies.mab import MAB
from ofms.policies.non_fed_oms import NonFedOMS
from ofms.policies.ofms_ft_settings import OFMSFT
from ofms.policies.perfedavg import PerFedAvg
from ofms.policies.rms_ft import RMSFT
from ofms.policies.settings import check_settings

PolicyOptions = (
    LateHedge
    | OFMSFT
    | MAB
    | NonFedOMS
    | RMSFT
    | BFedOMFT
    | FedOMD
    | PerFedAvg
    | FedPOE
    | BudgetedExperts
    | ExploreThenCommit
    | FollowTheLeader
)

_POLICY_OF: dict[type[Any], str] = {
    LateHedge: "late-hedge",
    OFMSFT: "ofms-ft",
    MAB: "mab",
    NonFedOMS: "non-fed-oms",
    RMSFT: "rms-ft",
    BFedOMFT: "b-fed-omft",
    FedOMD: "fed-omd",
    PerFedAvg: "perfedavg",
    FedPOE: "fed-poe",
    BudgetedExperts: "budgeted-experts",
    ExploreThenCommit: "explore-then-commit",
    FollowTheLeader: "follow-the-leader",
}


def policy_of(policy: object) -> tuple[str, dict[str, Any]]:
    """A policy's name and all its settings, from an object of its settings; rejected if it is of another type.

    >>> policy_of(MAB(exploration=0.1))
    ('mab', {'learning_rate': 'tuned', 'exploration': 0.1, 'loss_bound': 'clip'})
    """
    name = _POLICY_OF.get(type(policy))
    if name is None:
        remedy = "give its name, your own as package.module:name, or settings such as ofms.LateHedge()"
        raise InvalidInput("policy", type(policy).__name__, remedy)
    check_settings(policy)
    return name, asdict(policy)  # type: ignore[call-overload]
