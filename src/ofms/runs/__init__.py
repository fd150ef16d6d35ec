"""Runs: configuration, presets, experiments, run folders, checkpoints, results."""

from __future__ import annotations

from ofms.exports import exported

# Not from `typing`: its import takes longer than all of this, and a signal meanwhile prints a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ofms.runs.config import load_experiment
    from ofms.runs.dictionaries import train_dictionary
    from ofms.runs.formatting import comparison_table, draw_regret

__all__ = ["comparison_table", "draw_regret", "load_experiment", "train_dictionary"]

# Importing PyTorch takes a second: names are resolved on first use.
_MODULES = {
    "comparison_table": "ofms.runs.formatting",
    "draw_regret": "ofms.runs.formatting",
    "load_experiment": "ofms.runs.config",
    "train_dictionary": "ofms.runs.dictionaries",
}


__getattr__ = exported(__name__, _MODULES)
