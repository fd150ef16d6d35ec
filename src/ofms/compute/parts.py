"""What clients fine-tune on."""

from __future__ import annotations

from dataclasses import dataclass

from ofms.core.schedule import Window
from ofms.core.typing import Floats


@dataclass(frozen=True, eq=False)
class Part:
    """The samples on which some clients fine-tune, with their [N, K] weights.

    Attributes
    ----------
    residuals
        [N, n, C] gradients in the outputs, instead of those of the models' own losses.
    offset
        [N, C] what is added to the outputs before their losses are computed.
    """

    window: Window
    update_weight: Floats
    residuals: Floats | None = None
    offset: Floats | None = None
