"""Losses, scores and updates on tensors: `protocol.py` is the interface, `threads.py` implements it on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ofms.exports import exported

if TYPE_CHECKING:
    from ofms.compute.process_group import join_group, leave_group

__all__ = ["join_group", "leave_group"]

# Importing PyTorch takes a second: names are resolved on first use.
_MODULES = {
    "join_group": "ofms.compute.process_group",
    "leave_group": "ofms.compute.process_group",
}


__getattr__ = exported(__name__, _MODULES)
