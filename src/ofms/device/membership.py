"""Membership in a fleet, read from a welcome: the policy's client half, the catalogue, and the networks."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from ofms.compute.local import LocalNetworks
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue
from ofms.core.schedule import Schedule
from ofms.device.client_policy import read_policy
from ofms.device.welcome import read_welcome
from ofms.models.zoo import build_skeleton
from ofms.plugins import NO_TRUST, Trust
from ofms.policies.protocol import ClientPolicy
from ofms.policies.session import ClientSession, ClientState
from ofms.storage.envelope import Envelope


@dataclass(frozen=True, eq=False)
class Membership:
    """A device's client number in a fleet, and the networks with which it predicts and fine-tunes.

    Attributes
    ----------
    networks
        For predictions; they contain the tensors of held models.
    trainees
        The same networks without tensors, so that fine-tuning and predicting do not interfere.
    """

    deployment: str
    client: int
    seed: int
    task: Any
    budget: int
    policy: ClientPolicy
    catalogue: Catalogue
    schedule: Schedule
    networks: LocalNetworks
    trainees: LocalNetworks

    @property
    def member(self) -> tuple[str, int]:
        """Deployment and client number."""
        return self.deployment, self.client

    @property
    def session(self) -> ClientSession:
        """The policy's client half, with its messages."""
        return ClientSession(self.policy, self.schedule)

    def require_same(self, other: Membership) -> None:
        """Reject another membership of the same client whose models or policy differ: its state would not fit them."""
        for name, one, two in (
            ("models", self.catalogue.names, other.catalogue.names),
            ("revision", self.catalogue.revision, other.catalogue.revision),
            ("storage", self.catalogue.storage.tolist(), other.catalogue.storage.tolist()),
            ("task", self.task, other.task),
            ("policy", self.policy.name, other.policy.name),
            ("own_model", self.policy.own_model, other.policy.own_model),
        ):
            if one != two:
                raise InvalidInput("message", "welcome", f"its {name} differ from those of this deployment before")

    def join(self) -> ClientState:
        """The initial state of the client."""
        budgets = np.array([self.budget], dtype=np.int64)
        return self.session.join(self.catalogue, budgets, np.array([self.client]))

    def samples_in(self, exchange: int) -> int:
        """The number of labels that complete an exchange; the last exchange may have fewer."""
        first, stop = self.schedule.span(exchange)
        return stop - first if stop > first else self.schedule.interval


def read_membership(welcome: Envelope, budget: int, trust: Trust = NO_TRUST) -> Membership:
    """Read a welcome.

    Parameters
    ----------
    budget
        The device's memory for models; a fleet that assumes more is rejected.
    trust
        Packages from which the welcome may name architectures and policies besides the built-in ones.
    """
    values = read_welcome(welcome.values)
    if values.budget > budget:
        remedy = f"its fleet assumes {values.budget} bytes; give at least that, or change the fleet's entry"
        raise InvalidInput("budget", f"{budget} bytes", remedy)
    models = values.models
    names = tuple(model.name for model in models)
    storage, upload = (np.array([getattr(each, key) for each in models], np.int64) for key in ("storage", "upload"))
    catalogue = Catalogue(names, storage, upload, np.zeros(len(names), dtype=np.int64), values.revision)
    policy = read_policy(values.policy, trust)
    if policy.own_model is not None and policy.own_model >= len(names):
        raise InvalidInput("message", f"own model {policy.own_model}", f"the dictionary has {len(names)} models")
    # On the meta device: models that are not held take no memory.
    modules = [build_skeleton(each.architecture, each.options, trust).eval() for each in models]
    for model, module in zip(models, modules, strict=True):
        unknown = set(model.trainable) - {name for name, _ in module.named_parameters()}
        if unknown or not model.trainable:
            raise InvalidInput("message", f"model {model.name}", f"it has no parameter {min(unknown, default='')!r}")
    trainable = [model.trainable for model in models]
    return Membership(
        deployment=values.deployment,
        client=values.client,
        seed=values.seed,
        task=values.task,
        budget=values.budget,
        policy=policy,
        catalogue=catalogue,
        # Without rounds, the fleet has no horizon. A device of an older version rejects such a welcome.
        schedule=Schedule(values.rounds, values.interval),
        networks=LocalNetworks(modules, trainable, values.task),
        trainees=LocalNetworks([copy.deepcopy(module) for module in modules], trainable, values.task),
    )
