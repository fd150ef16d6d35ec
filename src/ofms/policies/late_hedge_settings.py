"""Settings of late hedging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ofms.policies.local_updates import Objective
from ofms.policies.settings import Count, Range, Round


@dataclass(frozen=True)
class Settings:
    """Settings; the defaults need no tuning.

    Attributes
    ----------
    window
        The number of samples that a client keeps.
    memories
        For each member, over how many rounds it forgets; 0 to remember everything.
    fine_tuning_rate
        By which share of the users' loss a step aims to reduce it, before √t; an eighth of it until fine-tuning made
        predictions better. 0 freezes the dictionary.
    momentum
        The decay of the server's momentum.
    tune_every, warm_up
        Clients fine-tune in one of so many exchanges, from round `warm_up` on.
    control_every
        After one of so many exchanges, and first after half as many, clients compare the fine-tuned models with their
        first versions, and those that became worse go back to them; 0 for never.
    objective
        Gradients are those of each model's `own` loss or of the loss of the `pool`; `auto`: the latter for regression.
    late, hints, loss, predict, thin, keep, visit_every
        Parts of the method, to turn off one by one: losses on past samples; hints for losses not known yet; relative
        losses from the pool's gradient, or `plain` ones; the `pool` of models, or `one` drawn from it; fewer draws
        where little weight lies outside memory; keep models that still fit; visitors in one of so many exchanges.
    """

    window: Count = 50
    memories: tuple[float, ...] = (0, 16, 4)
    late: bool = True
    hints: bool = True
    loss: Literal["gradient", "plain"] = "gradient"
    predict: Literal["pool", "one"] = "pool"
    thin: bool = True
    keep: bool = True
    visit_every: Count | None = None
    fine_tuning_rate: Annotated[float, Range(0)] = 1.0
    momentum: Annotated[float, Range(0, 0.99)] = 0.9
    tune_every: Count = 6
    warm_up: Round = 10
    control_every: Annotated[int, Range(0)] = 60
    objective: Objective = "auto"
