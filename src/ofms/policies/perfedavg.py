"""PerFedAvg: one pre-trained model, of which each client adapts its own copy.

A client takes a gradient step on its recent samples and predicts with the adapted copy. The shared parameters move by
the gradient at the adapted point (the first-order form): half of a batch adapts, the other half yields the gradient.

References
----------
A. Fallah, A. Mokhtari, A. Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ofms.core.declared import Doc
from ofms.core.rates import resolve_rate
from ofms.policies.fleet import Fleet
from ofms.policies.follower_client import FollowerClient
from ofms.policies.local_updates import Adapted
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.settings import BatchSize, KeptSamples, LossBound, ModelName, Passes, Rate, UploadGroups, WarmUp
from ofms.policies.single_model_server import single_model_server, weight_on


@dataclass(frozen=True)
class PerFedAvg:
    """Settings of PerFedAvg, which the paper leaves open."""

    model: Annotated[ModelName, Doc("The model that all clients hold and fine-tune.")] = 0
    local_rate: Annotated[Rate, Doc("β, the step size of the meta-gradient.", "θ - β ∇L(θ - α ∇L(θ))")] = 0.001
    adaptation_rate: Annotated[
        Rate, Doc("α, the step size with which a client adapts its copy before it predicts.", "θ - α ∇L(θ)")
    ] = 0.001
    epochs: Passes = 1
    batch_size: BatchSize = 10
    window: KeptSamples = 50
    warm_up: WarmUp = 0
    upload_groups: UploadGroups = None
    loss_bound: LossBound = "clip"


def build(settings: PerFedAvg, fleet: Fleet) -> Policy:
    server = single_model_server(fleet, settings.model, upload_groups=settings.upload_groups, copies=Adapted.copies)
    rounds = fleet.schedule.rounds
    return Policy(
        client=FollowerClient(),
        server=server,
        local=Adapted(
            rate=resolve_rate("local_rate", settings.local_rate, rounds=rounds),
            adaptation_rate=resolve_rate("adaptation_rate", settings.adaptation_rate, rounds=rounds),
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            window=settings.window,
            warm_up=settings.warm_up,
        ),
        upload_groups=settings.upload_groups,
        loss_bound=settings.loss_bound,
        expected_weights=lambda client, state: weight_on(server.model, len(fleet.catalogue)),
    )


algorithm = Algorithm(PerFedAvg, FollowerClient, build)
