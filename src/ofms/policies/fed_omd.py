"""Fed-OMD: one pre-trained model, fine-tuned by all clients with local epochs of SGD.

References
----------
A. Mitra, H. Hassani, G. Pappas, "Online Federated Learning", CDC 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

from ofms.core.rates import resolve_rate
from ofms.policies.fleet import Fleet
from ofms.policies.follower_client import FollowerClient
from ofms.policies.local_updates import Epochs
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
        Step size of local SGD.
    epochs, batch_size
        Passes over the window, and samples per batch.
    window, warm_up
        Number of samples that a client keeps, and the first round that fine-tunes.
    upload_groups
        Number of groups, one of which uploads; derived from the bandwidth if None. With 1, all clients upload.
    loss_bound
        As in OFMS-FT; it affects the measured regret only.
    """

    model: int | str = 0
    local_rate: Rate = 0.001
    epochs: Count = 1
    batch_size: Count = 10
    window: Count = 50
    warm_up: Round = 0
    upload_groups: Count | None = None
    loss_bound: LossBound = "clip"


def build(settings: Settings, fleet: Fleet) -> Policy:
    server = single_model_server(fleet, settings.model, upload_groups=settings.upload_groups)
    rate = resolve_rate("local_rate", settings.local_rate, rounds=fleet.schedule.rounds)
    return Policy(
        client=FollowerClient(),
        server=server,
        local=Epochs(rate, settings.epochs, settings.batch_size, settings.window, settings.warm_up),
        upload_groups=settings.upload_groups,
        loss_bound=settings.loss_bound,
        expected_weights=lambda client, state: weight_on(server.model, len(fleet.catalogue)),
    )


algorithm = Algorithm(Settings, FollowerClient, build)
