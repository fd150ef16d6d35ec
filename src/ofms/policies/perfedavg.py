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

from ofms.core.rates import resolve_rate
from ofms.policies.fleet import Fleet
from ofms.policies.follower_client import FollowerClient
from ofms.policies.local_updates import Adapted
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.settings import Count, LossBound, Rate, Round
from ofms.policies.single_model_server import single_model_server, weight_on


@dataclass(frozen=True)
class Settings:
    """Settings that the paper leaves open.

    Attributes
    ----------
    model
        The model, by name or index.
    local_rate
        Step size of the meta-gradient.
    adaptation_rate
        Step size of the adaptation.
    epochs, batch_size
        Passes over the window, and samples per batch.
    window, warm_up
        Number of samples that a client keeps, and the first round that adapts and fine-tunes.
    upload_groups
        Number of groups, one of which uploads; derived from the bandwidth if None. With 1, all clients upload.
    loss_bound
        As in OFMS-FT; it affects the measured regret only.
    """

    model: int | str = 0
    local_rate: Rate = 0.001
    adaptation_rate: Rate = 0.001
    epochs: Count = 1
    batch_size: Count = 10
    window: Count = 50
    warm_up: Round = 0
    upload_groups: Count | None = None
    loss_bound: LossBound = "clip"


def build(settings: Settings, fleet: Fleet) -> Policy:
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


algorithm = Algorithm(Settings, FollowerClient, build)
