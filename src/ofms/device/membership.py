"""What a welcome says, ready for use: the policy's client half, the fleet it is built for, and the networks."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from ofms.compute.local import LocalNetworks
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue
from ofms.core.schedule import Schedule
from ofms.models.zoo import build_module
from ofms.policies.fleet import Fleet
from ofms.policies.protocol import Policy
from ofms.policies.registry import build_policy, settings_type
from ofms.policies.session import ClientSession
from ofms.storage.envelope import Envelope


@dataclass(frozen=True, eq=False)
class Membership:
    """In whose fleet a device is, as whom, and with what it predicts and fine-tunes.

    Attributes
    ----------
    networks
        They predict: a model that is held has its tensors in them.
    trainees
        The same networks without tensors, so that fine-tuning never gets in the way of a prediction.
    """

    deployment: str
    client: int
    seed: int
    task: Any
    budget: int
    policy: Policy
    fleet: Fleet
    networks: LocalNetworks
    trainees: LocalNetworks

    @property
    def session(self) -> ClientSession:
        """The client half in operation."""
        return ClientSession(self.policy, self.fleet.schedule)

    @property
    def member(self) -> tuple[str, int]:
        """Which client of which fleet."""
        return self.deployment, self.client

    def join(self) -> Any:
        """The state of a client that has seen nothing yet."""
        budgets = np.array([self.budget], dtype=np.int64)
        return self.session.join(self.fleet.catalogue, budgets, np.array([self.client]))

    def samples_in(self, exchange: int) -> int:
        """How many labels complete an exchange; the last one may have fewer."""
        first, stop = self.fleet.schedule.span(exchange)
        return stop - first if stop > first else self.fleet.schedule.interval


def read_membership(welcome: Envelope, budget: int) -> Membership:
    """The membership of a device with some memory; refused where the fleet counts on more of it."""
    values = welcome.values
    promised = int(values["budget"])
    if promised > budget:
        remedy = f"its fleet counts on {promised} bytes; give at least that, or change the fleet's entry"
        raise InvalidInput("budget", f"{budget} bytes", remedy)
    models = values["models"]
    names = tuple(str(model["name"]) for model in models)
    storage, upload = (np.array([model[key] for model in models], dtype=np.int64) for key in ("storage", "upload"))
    catalogue = Catalogue(names, storage, upload, np.zeros(len(names), dtype=np.int64), str(values["revision"]))
    schedule = Schedule(int(values["rounds"]), int(values["interval"]))
    # Rates that are tuned hang on the whole fleet; in which order its budgets come does not matter to them.
    sizes, counts = np.array(values["fleet"], dtype=np.int64).T
    fleet = Fleet(catalogue, np.repeat(sizes, counts), int(values["bandwidth"]), schedule)
    settings = msgspec.convert(values["settings"], settings_type(str(values["policy"])))
    # Without memory of their own: a device has none for models that it does not hold.
    modules = [build_module(str(model["architecture"]), model["options"]).eval().to("meta") for model in models]
    trainable = [tuple(model["trainable"]) for model in models]
    return Membership(
        deployment=str(values["deployment"]),
        client=int(values["client"]),
        seed=int(values["seed"]),
        task=values["task"],
        budget=promised,
        policy=build_policy(str(values["policy"]), settings, fleet),
        fleet=fleet,
        networks=LocalNetworks(modules, trainable, values["task"]),
        trainees=LocalNetworks([copy.deepcopy(module) for module in modules], trainable, values["task"]),
    )
