"""Settings of OFMS-FT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ofms.core.declared import Doc, Values
from ofms.policies.settings import ADDED, LossBound, Positive, ServerStep, TunedRate, WarmUp, Window

GradientWeight = Literal["inverse", "use"]


@dataclass(frozen=True)
class OFMSFT:
    """Settings of OFMS-FT, which the paper leaves open."""

    learning_rate: Annotated[
        float | str,
        Values("a number of at least 0, one over √T as in 10/sqrt(T), tuned, or sharp"),
        Doc(
            "η_i, the learning rate of the weights of models.",
            "(5); tuned: √(ln K/(μ n T)); sharp: √(2 ln K/(G n T)), G = K·M/(K + M - 1) with M the most clusters",
        ),
    ] = "tuned"
    fine_tuning_rate: Annotated[
        TunedRate, Doc("η_f, the clients' step size; 0 freezes the dictionary.", "(1r2); tuned: 1/√(α n T · mean μ)")
    ] = "tuned"
    server_step: ServerStep = 1
    importance_cap: Annotated[
        Positive | None,
        Doc("The largest 1/q in the weight of a gradient; none: no cap. By use there is nothing to cap.", "(2r2)"),
    ] = None
    loss_bound: LossBound = "clip"
    window: Window = 1
    warm_up: WarmUp = 0
    gradient_weight: Annotated[
        GradientWeight,
        ADDED,
        Doc(
            "The weight of a held model's gradient: inverse as published, which trains every model for every client; "
            "use, which trains it for those clients that it predicts for.",
            "inverse: α/q (2r2); use: α·p/q",
        ),
    ] = "inverse"
