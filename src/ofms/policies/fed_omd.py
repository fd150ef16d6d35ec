"""Fed-OMD: one pre-trained model, fine-tuned by all clients with local epochs of SGD.

References
----------
A. Mitra, H. Hassani, G. Pappas, "Online Federated Learning", CDC 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ofms.core.declared import Doc
from ofms.core.rates import resolve_rate
from ofms.policies.fleet import Fleet
from ofms.policies.follower_client import FollowerClient
from ofms.policies.local_updates import Epochs
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.settings import BatchSize, KeptSamples, LocalRate, LossBound, ModelName, Passes, UploadGroups, WarmUp
from ofms.policies.single_model_server import single_model_server, weight_on


@dataclass(frozen=True)
class FedOMD:
    """Settings of Fed-OMD, which the paper leaves open."""

    model: Annotated[ModelName, Doc("The model that all clients hold and fine-tune.")] = 0
    local_rate: LocalRate = 0.001
    epochs: Passes = 1
    batch_size: BatchSize = 10
    window: KeptSamples = 50
    warm_up: WarmUp = 0
    upload_groups: UploadGroups = None
    loss_bound: LossBound = "clip"


def build(settings: FedOMD, fleet: Fleet) -> Policy:
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


algorithm = Algorithm(FedOMD, FollowerClient, build)
