"""Membership in a fleet, read from a welcome: the policy's client half, the catalogue, and the networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ofms.compute.client import Architecture, Backend, ClientCompute, Description, make_client_compute
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue
from ofms.core.schedule import Schedule
from ofms.core.typing import AnyArray, Integers
from ofms.device.client_policy import read_policy
from ofms.device.welcome import read_welcome
from ofms.plugins import NO_TRUST, Trust
from ofms.policies.changes import ALL_MODELS, Slots
from ofms.policies.protocol import ClientPolicy
from ofms.policies.session import ClientSession, ClientState
from ofms.storage.envelope import Envelope


@dataclass(frozen=True, eq=False)
class Membership:
    """A device's client number in a fleet, and `compute`, which predicts and fine-tunes.

    Attributes
    ----------
    slots
        The models in use; the catalogue has all slots.
    changed, anew
        The numbers of the last event that concerns the device, and of the last one after which policies start anew.
    renewed
        By slot, the number of the last event in which its model went back to an earlier version.
    """

    deployment: str
    client: int
    seed: int
    task: Any
    budget: int
    policy: ClientPolicy
    catalogue: Catalogue
    schedule: Schedule
    compute: ClientCompute
    slots: Slots = ALL_MODELS
    changed: int = 0
    anew: int = 0
    renewed: Mapping[int, int] = field(default_factory=dict)

    @property
    def member(self) -> tuple[str, int]:
        """Deployment and client number."""
        return self.deployment, self.client

    @property
    def session(self) -> ClientSession:
        """The policy's client half, with its messages."""
        return ClientSession(self.policy, self.schedule, self.slots)

    def require_same(self, other: Membership) -> None:
        """Reject another membership of the same client whose models or policy differ: its state would not fit them."""
        for name, one, two in (
            ("models", self.catalogue.names, other.catalogue.names),
            ("revision", self.catalogue.revision, other.catalogue.revision),
            ("storage", self.catalogue.storage.tolist(), other.catalogue.storage.tolist()),
            ("task", self.task, other.task),
            ("policy", self.policy.name, other.policy.name),
            ("own_model", self.policy.own_model, other.policy.own_model),
            ("models in use", self.slots.used.tolist(), other.slots.used.tolist()),
            ("offsets", len(self.policy.offset_memories), len(other.policy.offset_memories)),
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

    def targets(self, labels: Sequence[float | int]) -> AnyArray:
        """Labels as an array of the task's type."""
        return np.array(labels, dtype=np.int64 if self.task == "classification" else np.float32)


def read_membership(welcome: Envelope, budget: int, trust: Trust = NO_TRUST, backend: Backend = "auto") -> Membership:
    """Read a welcome.

    Parameters
    ----------
    budget
        The device's memory for models; a fleet that assumes more is rejected.
    trust
        Packages from which the welcome may name architectures and policies besides the built-in ones.
    backend
        What computes.
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
    own = () if policy.own_model is None else (policy.own_model,)
    for which, numbers in (("own model", own), ("uploaded model", policy.uploaded or ())):
        if numbers and max(numbers) >= len(names):
            raise InvalidInput("message", f"{which} {max(numbers)}", f"the dictionary has {len(names)} models")
    architectures = [
        Architecture(each.name, each.architecture, each.options, each.trainable, each.graphs) for each in models
    ]
    compute = make_client_compute(Description(values.task, architectures, welcome.part("graphs")), backend, trust)
    for number, model in enumerate(models):
        unknown = set(model.trainable) - compute.layout(number).keys()
        if unknown or not model.trainable:
            raise InvalidInput("message", f"model {model.name}", f"it has no parameter {min(unknown, default='')!r}")
    return Membership(
        deployment=values.deployment,
        client=values.client,
        seed=values.seed,
        task=values.task,
        budget=values.budget,
        policy=policy,
        catalogue=catalogue,
        # Without rounds, the fleet has no horizon. A device of an older version rejects such a welcome.
        schedule=Schedule(values.rounds, values.interval, values.since, values.start),
        slots=Slots.of(len(names), _places(values.places, len(names))),
        changed=int(values.changed),
        anew=values.anew,
        renewed=_renewed(values.renewed, len(names)),
        compute=compute,
    )


def _renewed(renewed: Mapping[str, int], count: int) -> dict[int, int]:
    """Numbers of events by slot."""
    for slot in renewed:
        if not slot.isdecimal() or int(slot[:10]) >= count:
            raise InvalidInput("message", f"renewed model {slot[:40]}", f"the dictionary has {count} models")
    return {int(slot): number for slot, number in renewed.items()}


def _places(places: list[int] | None, count: int) -> Integers:
    """The slots in use; all of them if the welcome names none."""
    used = list(range(count)) if places is None else places
    if len(set(used)) < len(used) or not used or max(used) >= count:
        raise InvalidInput("message", f"places {used[:10]}", f"the dictionary has {count} models, each used once")
    return np.array(used, dtype=np.int64)
