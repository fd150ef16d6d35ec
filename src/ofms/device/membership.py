"""Membership in a fleet, read from a welcome: the policy's client half, the catalogue, and the networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ofms.compute.client import Architecture, Backend, ClientCompute, Description, make_client_compute
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue
from ofms.core.schedule import Schedule
from ofms.core.typing import AnyArray
from ofms.device.client_policy import read_policy
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

    @property
    def member(self) -> tuple[str, int]:
        """Deployment and client number."""
        return self.deployment, self.client

    @property
    def session(self) -> ClientSession:
        """The policy's client half, with its messages."""
        return ClientSession(self.policy, self.schedule, self.slots)

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
    values = welcome.values
    promised = int(values["budget"])
    if promised > budget:
        remedy = f"its fleet assumes {promised} bytes; give at least that, or change the fleet's entry"
        raise InvalidInput("budget", f"{budget} bytes", remedy)
    # Null if the fleet has no horizon. A device of an older version rejects such a welcome.
    rounds, models = values["rounds"], values["models"]
    names = tuple(str(model["name"]) for model in models)
    storage, upload = (np.array([model[key] for model in models], dtype=np.int64) for key in ("storage", "upload"))
    catalogue = Catalogue(names, storage, upload, np.zeros(len(names), dtype=np.int64), str(values["revision"]))
    architectures = [
        Architecture(
            str(model["name"]),
            str(model["architecture"]),
            model["options"],
            tuple(str(name) for name in model["trainable"]),
            model.get("graphs"),
        )
        for model in models
    ]
    description = Description(values["task"], architectures, welcome.part("graphs"))
    return Membership(
        deployment=str(values["deployment"]),
        client=int(values["client"]),
        seed=int(values["seed"]),
        task=values["task"],
        budget=promised,
        policy=read_policy(values["policy"], trust),
        catalogue=catalogue,
        # Earlier servers do not send these; their fleets do not change.
        schedule=Schedule(
            None if rounds is None else int(rounds),
            int(values["interval"]),
            *(int(values.get(key, 0)) for key in ("since", "start")),
        ),
        slots=Slots.of(len(names), np.array(values.get("places", range(len(names))), dtype=np.int64)),
        changed=int(values.get("changed", 0)),
        anew=int(values.get("anew", 0)),
        compute=make_client_compute(description, backend, trust),
    )
