"""PerFedAvg: one pre-trained model as the start from which each client adapts its own copy.

A client takes a gradient step on its recent samples and predicts with the adapted copy. The shared parameters move by
the gradient at the adapted point (the first-order form): a batch's first half adapts, its second half gives it.

References
----------
A. Fallah, A. Mokhtari, A. Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ofms.core.rates import resolve_rate
from ofms.policies.follower_client import FollowerClient
from ofms.policies.protocol import Adapted, Algorithm, Fleet, Policy, require_common_settings
from ofms.policies.single_model_server import single_model_server


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
        The rate of the step that adapts.
    epochs, batch_size
        How often a client passes over the window, and in batches of how many samples.
    window, warm_up
        How many samples a client keeps, and the first round that adapts and fine-tunes.
    upload_groups
        Into how many groups clients are split, of which one uploads: by the bandwidth where it is left out; 1 for all.
    loss_bound
        As in OFMS-FT; it matters for regret alone.
    """

    model: int | str = 0
    local_rate: float | str = 0.001
    adaptation_rate: float | str = 0.001
    epochs: int = 1
    batch_size: int = 10
    window: int = 50
    warm_up: int = 0
    upload_groups: int | None = None
    loss_bound: Literal["clip", "saturate", "raw"] = "clip"


def build(settings: Settings, fleet: Fleet) -> Policy:
    """PerFedAvg for a fleet."""
    require_common_settings(settings.loss_bound, settings.window, settings.warm_up)
    server = single_model_server(
        fleet,
        settings.model,
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        upload_groups=settings.upload_groups,
        copies=Adapted.copies,
    )
    rounds = fleet.schedule.rounds
    local = Adapted(
        rate=resolve_rate("local_rate", settings.local_rate, rounds=rounds),
        adaptation_rate=resolve_rate("adaptation_rate", settings.adaptation_rate, rounds=rounds),
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        window=settings.window,
        warm_up=settings.warm_up,
    )
    return Policy(
        name="perfedavg",
        client=FollowerClient(fleet.schedule, local),
        server=server,
        local=local,
        loss_bound=settings.loss_bound,
        expected_weights=server.expected_weights,
    )


algorithm = Algorithm(Settings, FollowerClient, build)
