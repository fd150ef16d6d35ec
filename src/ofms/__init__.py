"""Online federated model selection and fine-tuning (OFMS-FT).

In every round, each device draws models that fit its memory, predicts with one of them, learns from its losses which
models suit it, and helps fine-tune the dictionary under a limited upload bandwidth.
"""

from __future__ import annotations

from ofms.core.version import __version__
from ofms.exports import exported

# Not from `typing`: its import takes longer than all of this, and a signal meanwhile prints a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ofms.core.errors import InvalidInput, NotFinite
    from ofms.data.stream import Stream
    from ofms.device.device import Device, Prediction
    from ofms.device.errors import NotReady
    from ofms.models.dictionary import Dictionary
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
    from ofms.runs.result import Result, load
    from ofms.simulator.api import simulate

__all__ = [
    "MAB",
    "OFMSFT",
    "RMSFT",
    "BFedOMFT",
    "BudgetedExperts",
    "Device",
    "Dictionary",
    "ExploreThenCommit",
    "FedOMD",
    "FedPOE",
    "FollowTheLeader",
    "InvalidInput",
    "LateHedge",
    "NonFedOMS",
    "NotFinite",
    "NotReady",
    "PerFedAvg",
    "Prediction",
    "Result",
    "Stream",
    "__version__",
    "load",
    "simulate",
]

# Importing PyTorch takes a second: names are resolved on first use.
_MODULES = {
    "FollowTheLeader": "ofms.policies.follow_the_leader",
    "ExploreThenCommit": "ofms.policies.explore_then_commit",
    "BudgetedExperts": "ofms.policies.budgeted_experts",
    "FedPOE": "ofms.policies.fed_poe",
    "PerFedAvg": "ofms.policies.perfedavg",
    "FedOMD": "ofms.policies.fed_omd",
    "BFedOMFT": "ofms.policies.b_fed_omft",
    "RMSFT": "ofms.policies.rms_ft",
    "NonFedOMS": "ofms.policies.non_fed_oms",
    "MAB": "ofms.policies.mab",
    "OFMSFT": "ofms.policies.ofms_ft_settings",
    "LateHedge": "ofms.policies.late_hedge_settings",
    "Device": "ofms.device.device",
    "Dictionary": "ofms.models.dictionary",
    "InvalidInput": "ofms.core.errors",
    "NotFinite": "ofms.core.errors",
    "NotReady": "ofms.device.errors",
    "Prediction": "ofms.device.device",
    "Result": "ofms.runs.result",
    "Stream": "ofms.data.stream",
    "load": "ofms.runs.result",
    "simulate": "ofms.simulator.api",
}


__getattr__ = exported(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
