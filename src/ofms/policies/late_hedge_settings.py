"""Settings of late hedging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ofms.core.declared import Doc, Range
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue
from ofms.policies.local_updates import Objective
from ofms.policies.settings import Count, KeptSamples, ModelName, WarmUp
from ofms.policies.single_model_server import find_model


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
    fine_tuned: Annotated[
        Literal["global", "used"],
        Doc(
            "global: one model, which all clients hold and fine-tune together; used: all models, each by the clients "
            "that predict with it, as much as they do."
        ),
    ] = "global"
    model: Annotated[
        ModelName | None, Doc("The global model; none: the one with the most parameters, the first of several.")
    ] = None
    hold_global: Annotated[
        bool, Doc("Whether clients always hold the global model, where two others always fit beside it.")
    ] = True
    fine_tuning_rate: Annotated[
        float,
        Range(0),
        Doc(
            "c: the first step of a model aims to reduce its clients' loss by this share; 0 freezes the dictionary. If "
            "models are fine-tuned by use, at most: by c times four times the share by which fine-tuning has reduced "
            "errors so far, and at least by c/8.",
            "c·ΣF/Σ⟨-g, d⟩/√t",
        ),
    ] = 1.0
    momentum: Annotated[
        float, Range(0, 0.99), Doc("β, the decay of the server's momentum.", "d ← β·d - g; FedAdam's β₁")
    ] = 0.9
    square_momentum: Annotated[
        Annotated[float, Range(0, 0.9999)] | None,
        Doc(
            "The decay of the mean squares of updates; 0: momentum alone; none: 0.999 for the global model, 0 by use.",
            "FedAdam's β₂",
        ),
    ] = None
    tune_every: Annotated[
        Count | None,
        Doc("Clients fine-tune in one of so many exchanges; none: in all for the global model, in one of 6 otherwise."),
    ] = None
    warm_up: WarmUp = 10
    control_every: Annotated[
        Annotated[int, Range(0)] | None,
        Doc(
            "After one of so many exchanges, and first after half as many, clients compare fine-tuned models with "
            "their first versions, and those that became worse go back to them; 0: never; none: 60 for models that "
            "are used, 0 for the global model, which predicts worse while clients hold its first version."
        ),
    ] = None
    objective: Annotated[
        Objective,
        Doc(
            "Fine-tune for each model's own loss, with the offset of predictions, or, by use, for that of the pool; "
            "auto: the pool for regression."
        ),
    ] = "own"

    def chosen_model(self, catalogue: Catalogue) -> int | None:
        """The global model; None if no model is fine-tuned, or all models by those who use them."""
        named = None if self.model is None else find_model(catalogue, self.model)
        if self.fine_tuned == "used":
            if named is not None:
                remedy = "it names the global model; leave it out, or set fine_tuned to global"
                raise InvalidInput("model", self.model, remedy)
            if not self.hold_global:
                remedy = "there is no global model; leave it out, or set fine_tuned to global"
                raise InvalidInput("hold_global", "false", remedy)
            return None
        if self.objective != "own":
            remedy = "the global model is fine-tuned for its own loss: give own, or set fine_tuned to used"
            raise InvalidInput("objective", self.objective, remedy)
        if self.fine_tuning_rate == 0:
            return None
        return int(catalogue.upload.argmax()) if named is None else named
