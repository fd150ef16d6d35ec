"""Fed-OMD: one pre-trained model, fine-tuned by all clients with local epochs of SGD.

References
----------
A. Mitra, H. Hassani, G. Pappas, "Online Federated Learning", CDC 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ofms.core.rates import resolve_rate
from ofms.policies.follower_client import FollowerClient
from ofms.policies.protocol import Algorithm, Epochs, Fleet, Policy, require_common_settings
from ofms.policies.single_model_server import single_model_server


@dataclass(frozen=True)
class Settings:
    """Fed-OMD's open settings.

    Attributes
    ----------
    model
        Which model of the dictionary, by name or index.
    local_rate
        The rate of local SGD.
    epochs, batch_size
        How often it passes over the window, and in batches of how many samples.
    window, warm_up
        How many samples a client keeps, and the first round that fine-tunes.
    upload_groups
        Into how many groups clients are split, of which one uploads: by the bandwidth where it is left out; 1 for all.
    loss_bound
        As in OFMS-FT; it matters for regret alone.
    """

    model: int | str = 0
    local_rate: float | str = 0.001
    epochs: int = 1
    batch_size: int = 10
    window: int = 50
    warm_up: int = 0
    upload_groups: int | None = None
    loss_bound: Literal["clip", "saturate", "raw"] = "clip"


def build(settings: Settings, fleet: Fleet) -> Policy:
    """Fed-OMD for a fleet."""
    require_common_settings(settings.loss_bound, settings.window, settings.warm_up)
    server = single_model_server(
        fleet,
        settings.model,
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        upload_groups=settings.upload_groups,
    )
    rate = resolve_rate("local_rate", settings.local_rate, rounds=fleet.schedule.rounds)
    local = Epochs(rate, settings.epochs, settings.batch_size, settings.window, settings.warm_up)
    return Policy(
        name="fed-omd",
        client=FollowerClient(fleet.schedule, local),
        server=server,
        local=local,
        loss_bound=settings.loss_bound,
        expected_weights=server.expected_weights,
    )


algorithm = Algorithm(Settings, FollowerClient, build)
