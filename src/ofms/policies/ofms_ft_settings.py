"""Settings of OFMS-FT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ofms.policies.settings import ADDED, Count, LossBound, Positive, Rate, Round, ServerStep

GradientWeight = Literal["inverse", "use"]


@dataclass(frozen=True)
class Settings:
    """Settings that the paper leaves open.

    Attributes
    ----------
    learning_rate
        η_i: a number, a number over √T such as the paper's `10/sqrt(T)`, `tuned` for the paper's √(ln K/(μ n T)), or
        `sharp` for √(2 ln K/(G n T)), G = K·M/(K + M - 1) with M the most clusters.
    fine_tuning_rate
        η_f: a number, one over √T, or `tuned`; 0 freezes the dictionary.
    server_step
        Multiplies the 1/N mean of (3r2): 1 as in the paper's text; `N` for the sum, as in its experiments.
    importance_cap
        Cap on 1/q in the weight of a gradient; None for no cap. By use there is nothing to cap.
    loss_bound
        How selection losses are bounded to [0, 1]: `clip`, `saturate`, or `raw` for no bound.
    window
        Number of samples that the fine-tuning loss averages: with 1, the current one as in (2r2).
    warm_up
        The first round that fine-tunes.
    gradient_weight
        The weight of a held model's gradient: `inverse` for α/q as published, which trains every model for every
        client; `use` for α·p/q, which trains it for those clients that it predicts for.
    """

    learning_rate: Rate = "tuned"
    fine_tuning_rate: Rate = "tuned"
    server_step: ServerStep = 1
    importance_cap: Positive | None = None
    loss_bound: LossBound = "clip"
    window: Count = 1
    warm_up: Round = 0
    gradient_weight: Annotated[GradientWeight, ADDED] = "inverse"
