"""PerFedAvg: one pre-trained model as the start from which each client adapts its own copy.

A client takes a gradient step on its recent samples and predicts with the adapted copy. The shared parameters move by
the gradient at the adapted point (the first-order form): half of a batch adapts, the other half gives the gradient.

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
    """PerFedAvg's open settings.

    Attributes
    ----------
    model
        Which model of the dictionary, by name or index.
    local_rate
        The rate of the meta-gradient's step.
    adaptation_rate
        The rate of the adaptation step.
    epochs, batch_size
        Passes over the window, and samples in a batch.
    window, warm_up
        How many samples a client keeps, and the first round that adapts and fine-tunes.
    upload_groups
        The number of groups, of which one uploads: from the bandwidth where it is left out; 1 for all.
    loss_bound
        As in OFMS-FT; it matters for regret alone.
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
