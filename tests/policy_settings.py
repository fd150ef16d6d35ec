"""Settings under which each policy selects and fine-tunes models of a small problem."""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, dict[str, Any]] = {
    "late-hedge": {"window": 8, "tune_every": 2, "warm_up": 2, "control_every": 4},
    "ofms-ft": {"learning_rate": 0.5, "fine_tuning_rate": 0.05, "window": 4, "warm_up": 2, "loss_bound": "raw"},
    "mab": {"learning_rate": 0.5},
    "non-fed-oms": {"learning_rate": 0.5, "feedback": "all"},
    "rms-ft": {"fine_tuning_rate": 0.05, "window": 4, "warm_up": 2, "server_step": "N"},
    "b-fed-omft": {"learning_rate": 0.5, "exploration": 0.1, "fine_tuning_rate": 0.05, "window": 4, "warm_up": 2},
    "budgeted-experts": {"learning_rate": 0.5},
    "fed-poe": {"learning_rate": 0.5, "fine_tuning_rate": 0.05, "window": 4, "warm_up": 2},
    "explore-then-commit": {"exploration": 8},
    "follow-the-leader": {},
    "fed-omd": {"model": 1, "local_rate": 0.05, "batch_size": 2, "epochs": 2, "window": 5, "warm_up": 3},
    "perfedavg": {"model": 1, "local_rate": 0.05, "adaptation_rate": 0.05, "batch_size": 3, "window": 5, "warm_up": 3},
}
