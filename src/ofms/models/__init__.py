"""The dictionary of models: architectures, files, costs, pre-training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ofms.exports import exported

if TYPE_CHECKING:
    from ofms.models.zoo import build_module

__all__ = ["build_module"]

# Importing PyTorch takes a second: names are resolved on first use.
_MODULES = {
    "build_module": "ofms.models.zoo",
}


__getattr__ = exported(__name__, _MODULES)
