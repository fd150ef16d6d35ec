"""The HTML report of runs; descriptions of dictionaries and bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ofms.exports import exported

if TYPE_CHECKING:
    from ofms.report.page import write_report

__all__ = ["write_report"]

# Importing PyTorch takes a second: names are resolved on first use.
_MODULES = {
    "write_report": "ofms.report.page",
}


__getattr__ = exported(__name__, _MODULES)
