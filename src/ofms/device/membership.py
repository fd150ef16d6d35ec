"""Membership in a fleet, read from a welcome: the policy's client half, its fleet, and the networks."""

from __future__ import annotations

import copy
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from ofms.compute.local import LocalNetworks
from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue
from ofms.core.schedule import Schedule
from ofms.models.zoo import ZOO, build_module
from ofms.policies import MODULES
from ofms.policies.fleet import Fleet
from ofms.policies.protocol import Policy
from ofms.policies.registry import build_policy, settings_type
from ofms.policies.session import ClientSession
from ofms.storage.envelope import Envelope


@dataclass(frozen=True, eq=False)
class Membership:
    """Which client of which fleet a device is, and the networks with which it predicts and fine-tunes.

    Attributes
    ----------
    networks
        For predictions: the tensors of held models are in them.
    trainees
        The same networks without tensors, so that fine-tuning and predicting do not interfere.
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
        """The policy's client half with its messages."""
        return ClientSession(self.policy, self.fleet.schedule)

    @property
    def member(self) -> tuple[str, int]:
        """Deployment and client number."""
        return self.deployment, self.client

    def join(self) -> Any:
        """The initial state of the client."""
        budgets = np.array([self.budget], dtype=np.int64)
        return self.session.join(self.fleet.catalogue, budgets, np.array([self.client]))

    def samples_in(self, exchange: int) -> int:
        """The number of labels that complete an exchange; the last exchange may have fewer."""
        first, stop = self.fleet.schedule.span(exchange)
        return stop - first if stop > first else self.fleet.schedule.interval


def read_membership(welcome: Envelope, budget: int, trust: Sequence[str] = ()) -> Membership:
    """Read a welcome.

    Parameters
    ----------
    budget
        The device's memory for models; a fleet that counts on more is refused.
    trust
        Packages from which the welcome may name architectures and policies besides the built-in ones.
    """
    values = welcome.values
    promised = int(values["budget"])
    if promised > budget:
        remedy = f"its fleet counts on {promised} bytes; give at least that, or change the fleet's entry"
        raise InvalidInput("budget", f"{budget} bytes", remedy)
    models = values["models"]
    # Before anything is built: importing a module runs it.
    _require_trusted("policy", str(values["policy"]), MODULES, trust)
    for model in models:
        _require_trusted("architecture", str(model["architecture"]), ZOO, trust)
    names = tuple(str(model["name"]) for model in models)
    storage, upload = (np.array([model[key] for model in models], dtype=np.int64) for key in ("storage", "upload"))
    catalogue = Catalogue(names, storage, upload, np.zeros(len(names), dtype=np.int64), str(values["revision"]))
    schedule = Schedule(int(values["rounds"]), int(values["interval"]))
    # Tuned rates depend on all budgets of the fleet, in any order.
    sizes, counts = np.array(values["fleet"], dtype=np.int64).T
    fleet = Fleet(catalogue, np.repeat(sizes, counts), int(values["bandwidth"]), schedule)
    settings = msgspec.convert(values["settings"], settings_type(str(values["policy"])))
    # On the meta device: models that are not held take no memory.
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


def _require_trusted(field: str, reference: str, builtin: Container[str], trust: Sequence[str]) -> None:
    """Refuse a name that is not built in and whose package the user did not trust."""
    module = reference.partition(":")[0]
    if reference in builtin or any(module == package or module.startswith(f"{package}.") for package in trust):
        return
    package = module.partition(".")[0]
    remedy = f"the server names code outside ofms; open the device with trust=({package!r},) if you trust it"
    raise InvalidInput(field, reference[:80], remedy)
