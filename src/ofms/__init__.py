"""Online federated model selection and fine-tuning (OFMS-FT).

In every round, each device draws models that fit its memory, predicts with one of them, learns from its losses which
models suit it, and helps fine-tune the dictionary under a limited upload bandwidth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ofms.core.version import __version__
from ofms.exports import exported

if TYPE_CHECKING:
    from ofms.core.errors import InvalidInput, NotFinite
    from ofms.data.stream import Stream
    from ofms.device.device import Device, Prediction
    from ofms.device.errors import NotReady
    from ofms.models.dictionary import Dictionary
    from ofms.runs.result import Result, load
    from ofms.simulator.api import simulate

__all__ = [
    "Device",
    "Dictionary",
    "InvalidInput",
    "NotFinite",
    "NotReady",
    "Prediction",
    "Result",
    "Stream",
    "__version__",
    "load",
    "simulate",
]

# Importing PyTorch takes a second: names are resolved on first use.
_MODULES = {
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
