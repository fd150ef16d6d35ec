"""Settings of late hedging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ofms.core.declared import Doc, Range
from ofms.policies.local_updates import Objective
from ofms.policies.settings import Count, KeptSamples, WarmUp


@dataclass(frozen=True)
class LateHedge:
    """Settings of late hedging; the defaults need no tuning."""

    window: KeptSamples = 50
    memories: Annotated[
        tuple[float, ...], Doc("For each copy of AdaHedge, over how many rounds it forgets; 0 to remember everything.")
    ] = (0, 16, 4)
    rate: Annotated[
        float,
        Range(0.01, 1),
        Doc("β, the share of AdaHedge's rate that hedging uses: less keeps more models in the pool.", "η = β ln K/Σδ"),
    ] = 0.25
    outside: Annotated[
        Literal["hedged", "drawn", "omitted"],
        Doc(
            "Whether some of the models that do not fit are drawn to stand for them, or they are omitted; "
            "hedged: what costs less on past samples."
        ),
    ] = "hedged"
    late: Annotated[bool, Doc("Whether newly held models are evaluated on past samples.")] = True
    hints: Annotated[bool, Doc("Whether a model's mean so far stands for losses that are not known yet.")] = True
    loss: Annotated[
        Literal["gradient", "plain"],
        Doc("gradient: relative losses from the gradient of the pool's loss; plain: the models' own losses."),
    ] = "gradient"
    predict: Annotated[
        Literal["pool", "one"], Doc("Predict with the pool of held models, or with one that is drawn from it.")
    ] = "pool"
    offset: Annotated[
        bool, Doc("Whether clients learn an offset and add it to their predictions.", "ŷ = Σ_k w_k φ_k + b")
    ] = True
    keep: Annotated[bool, Doc("Whether clients keep models that still fit.")] = True
    visit_every: Annotated[
        Count | None, Doc("Models visit in one of so many exchanges; none: as seldom as the window allows.")
    ] = None
    fine_tuning_rate: Annotated[
        float,
        Range(0),
        Doc(
            "c: a step aims to reduce the users' loss by c times four times the share by which fine-tuning has "
            "reduced errors so far, at least by c/8 and at most by c. 0 freezes the dictionary.",
            "c·ΣF/Σ⟨-g, d⟩/√t",
        ),
    ] = 1.0
    momentum: Annotated[float, Range(0, 0.99), Doc("β, the decay of the server's momentum.", "d ← β·d - g")] = 0.9
    tune_every: Annotated[Count, Doc("Clients fine-tune in one of so many exchanges.")] = 6
    warm_up: WarmUp = 10
    control_every: Annotated[
        int,
        Range(0),
        Doc(
            "After one of so many exchanges, and first after half as many, clients compare the fine-tuned models with "
            "their first versions, and those that became worse go back to them; 0: never."
        ),
    ] = 60
    objective: Annotated[
        Objective,
        Doc(
            "Fine-tune for each model's own loss or for that of the pool, with the offset of predictions; "
            "auto: the pool for regression."
        ),
    ] = "own"
