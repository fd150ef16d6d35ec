"""The selection loss, from the task's loss; (a1) assumes that it lies in [0, 1]."""

from __future__ import annotations

import numpy as np

from ofms.core.choices import suggest
from ofms.core.errors import InvalidInput
from ofms.core.typing import Floats

BOUNDS = ("clip", "saturate", "raw")
# A bounded loss from here on is at its bound: clipped, or of a right class that had less than 1 %.
SATURATED = 0.99
# Raw losses beyond single precision count as this one.
MOST_LOSS = float(np.finfo(np.float32).max)


def selection_loss(losses: Floats, bound: str) -> Floats:
    """Bound the losses.

    - `clip`: min(L, 1), for a squared error of targets scaled to [0, 1];
    - `saturate`: 1 - exp(-L), which for the cross-entropy is one minus the probability of the right class;
    - `raw`: unbounded up to single precision, as in the paper's experiments; the theorems do not cover it.

    >>> selection_loss(np.array([0.0, 0.5, 3.0]), "clip").tolist()
    [0.0, 0.5, 1.0]
    >>> selection_loss(np.array([0.0, np.log(4.0)]), "saturate").tolist()
    [0.0, 0.75]
    """
    if bound == "clip":
        return np.clip(losses, 0.0, 1.0)
    if bound == "saturate":
        return -np.expm1(-losses)
    if bound == "raw":
        return np.minimum(losses, MOST_LOSS)
    raise InvalidInput("loss_bound", bound, suggest(bound, BOUNDS))
