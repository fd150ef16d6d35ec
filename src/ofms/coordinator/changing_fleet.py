"""The fleet of a coordinator: its models, its policy, and how events change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ofms.compute.momentum import Momentum
from ofms.coordinator.validation import Tensors
from ofms.core.events import Event, doubled
from ofms.core.schedule import Schedule
from ofms.core.typing import Integers
from ofms.device.client_policy import describe_policy
from ofms.models.dictionary import Dictionary, Model
from ofms.plugins import NO_TRUST, Trust
from ofms.policies import DEFAULT
from ofms.policies.session import ServerState
from ofms.runs.setup import Setup, named_models
from ofms.storage.tensors import decode_tensors, encode_tensors


class ChangingFleet:
    """A fleet, the policy built for it, and its models in all versions that are current.

    Parameters
    ----------
    dictionary
        The models; devices must be able to build them (`Dictionary.require_deployable`).
    budgets
        [N] memory of the devices, in bytes.
    members
        The numbers of the devices in the fleet; all by default.
    bandwidth
        E, in bytes, or as in a configuration.
    rounds, interval
        The horizon T, None if there is none, and the interval n, in samples.
    doubling
        Without a horizon: the samples of the first stretch of the doubling trick, for rates that depend on T.
    largest_update
        The largest norm of a device's update, relative to the norm of the parameters that it updates.
    aggregation
        How updates are aggregated, as in a configuration.
    trust
        Packages from which policies other than the built-in ones may be imported.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        *,
        budgets: Integers,
        members: Sequence[int] | None = None,
        bandwidth: int | str,
        rounds: int | None = None,
        interval: int = 1,
        doubling: int | None = None,
        policy: str = DEFAULT,
        settings: Mapping[str, Any] | None = None,
        seed: int = 0,
        largest_update: float = 1.0,
        aggregation: str | None = None,
        trust: Trust = NO_TRUST,
    ) -> None:
        dictionary.require_deployable()
        self.dictionary, self.seed, self.largest_update = dictionary, seed, largest_update
        self.doubling = doubling if rounds is None else None
        catalogue, everyone = dictionary.catalogue(), tuple(range(len(budgets)))
        self._use(
            Setup(
                catalogue=catalogue,
                places=tuple(range(len(catalogue))),
                budgets=np.asarray(budgets),
                members=everyone if members is None else tuple(members),
                bandwidth=bandwidth if isinstance(bandwidth, str) else f"{bandwidth}B",
                schedule=Schedule(rounds, interval),
                policy=policy,
                settings=named_models(policy, settings or {}, catalogue, trust),
                trust=trust,
                aggregation=aggregation,
                horizon=None if self.doubling is None else doubled(self.doubling, 0),
            ).with_chosen_model()
        )
        # By device: the number of the last event that concerns it. And of the last one after which policies start anew.
        self.told: dict[int, int] = {}
        self.anew = 0
        self.state, self.momentum = self.session.open(), Momentum(self.policy.momentum, self.policy.square_momentum)
        # The largest budget that each device had: it may hold so much until its next grant.
        self._most_budget = dict(enumerate(self.fleet.budgets.tolist()))
        self._trainable = [model.trainable for model in dictionary.models]
        self.tensors = [self._first_version(model) for model in range(len(dictionary))]
        # By model: its version and encoded tensors. Each version is encoded once, for grants and checkpoint.
        self._encoded: dict[int, tuple[int, bytes]] = {}

    @property
    def version(self) -> Integers:
        """[K] versions of the models."""
        return self.state.version

    def apply(self, event: Event, models: Sequence[Model] = (), earlier: Mapping[int, bytes] | None = None) -> None:
        """Change the fleet; rejected by field if it is impossible.

        `models` are those that the event adds, `earlier` the encoded versions that models go back to; None if a
        checkpoint follows that has them.
        """
        before, dictionary = self.setup, self.dictionary.with_models(models)
        dictionary.require_deployable()
        after = before.after(event, catalogue=dictionary.catalogue())
        self._use(after)
        self.dictionary, self.state = dictionary, self._adapted(event, before)
        for model in range(len(self.tensors), len(dictionary)):
            self._trainable.append(dictionary.models[model].trainable)
            self.tensors.append(self._first_version(model))
        self.momentum.change(self.policy.momentum, self.policy.square_momentum)
        renewed = set(after.renewed_since(before))
        self.momentum.forget(after.places if event.anew else set(before.places) - set(after.places) | renewed)
        for model, content in (earlier or {}).items():
            self.load_model(model, content)
        self.anew = after.changed if event.anew else self.anew
        everyone = after.concerns_clients(before, event)
        for client in after.members if everyone else {*event.join, *event.budget}:
            self.told[client] = after.changed
        for client, budget in enumerate(after.budgets.tolist()):
            self._most_budget[client] = max(budget, self._most_budget.get(client, 0))

    def _adapted(self, event: Event, before: Setup) -> ServerState:
        renewed = self.setup.renewed_since(before)
        return self.session.adapt(self.state, before.server, anew=event.anew, renewed=renewed)

    def restart_due(self, exchange: int) -> Event | None:
        """The restart of the doubling trick with which an exchange begins."""
        if self.doubling is None:
            return None
        horizon = doubled(self.doubling, self.fleet.schedule.span(exchange)[0])
        return None if horizon == self.setup.horizon else Event(exchange=exchange, rounds=horizon)

    def roll_back(self, contents: Mapping[int, bytes]) -> None:
        """Replace models by encoded earlier ones, under new versions, so that devices receive them."""
        version = self.version.copy()
        version[list(contents)] += 1
        self.momentum.forget(contents)
        self.state = replace(self.state, version=version)
        for model, content in contents.items():
            self.load_model(model, content)

    def load_model(self, model: int, content: bytes) -> None:
        """Use encoded tensors as the current version of a model."""
        self.tensors[model] = decode_tensors(content)
        self._encoded[model] = int(self.version[model]), content

    def encoded_model(self, model: int) -> bytes:
        """The encoded tensors of the current version of a model."""
        version = int(self.version[model])
        if model not in self._encoded or self._encoded[model][0] != version:
            self._encoded[model] = version, encode_tensors(self.tensors[model])
        return self._encoded[model][1]

    def _first_version(self, model: int) -> Tensors:
        return {name: tensor.clone() for name, tensor in self.dictionary.models[model].tensors.items()}

    def _use(self, setup: Setup) -> None:
        """Take a fleet, its policy and its session."""
        # Rejects a policy that a device could not decode.
        self._described = describe_policy(setup.built, setup.trust)
        self.setup, self.name, self.settings = setup, setup.policy, dict(setup.settings)
        self.fleet, self.policy, self.session = setup.fleet, setup.built, setup.server
