"""Devices that did not answer before their exchange was closed: the grants that they work on, and their late answers.

A late answer counts in the next exchange in which the fleet fine-tunes, with what was recorded at its grant: the
weights of its updates are the device's own, from the probabilities of then. An update of a model that moved τ times
since the version that it was computed on counts 1/√(1 + τ), as in asynchronous federated averaging with a buffer
(FedBuff), so that old gradients do not outweigh new ones. Models that went back to an earlier version are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ofms.coordinator.validation import Answer, Update
from ofms.core.messages import Grants, Reports
from ofms.core.states import flatten, unflatten
from ofms.core.typing import AnyArray, Integers
from ofms.storage.envelope import Envelope


@dataclass(frozen=True, eq=False)
class Outstanding:
    """A device's grant of a closed exchange, and its id."""

    grants: Grants
    opening: str


@dataclass(frozen=True, eq=False)
class LateAnswer:
    """A late answer, and [K] the versions of the models that the device was granted."""

    answer: Answer
    version: Integers

    @property
    def client(self) -> int:
        return int(self.answer.reports.client[0])

    @property
    def exchange(self) -> int:
        return int(self.answer.reports.exchange)

    def counted_in(self, exchange: int, version: Integers, replaced: Mapping[int, int]) -> Answer:
        """The answer as it counts in an exchange before which models have [K] versions.

        `replaced` has the versions of models that went back: updates of earlier ones do not count.
        """
        reports = self.answer.reports
        share = 1 / np.sqrt(1.0 + (version - self.version))
        kept = np.array([self.version[model] >= replaced.get(model, 0) for model in range(version.size)])
        updates = {
            model: replace(update, weight=float(share[model]) * update.weight)
            for model, update in self.answer.updates.items()
            if kept[model]
        }
        # That an update of an earlier version is not finite says nothing about the current one.
        reports = replace(reports, exchange=exchange, updated=reports.updated & kept, left_out=None)
        if reports.losses is not None:
            reports = replace(reports, losses=reports.losses * share)
        return Answer(replace(reports, left_out=np.zeros_like(reports.updated)), updates)


@dataclass(eq=False)
class Stragglers:
    """What a server still expects of closed exchanges, and what arrived and does not count yet.

    Attributes
    ----------
    outstanding
        By device.
    answers
        Late answers, in the order of their arrival.
    drawn
        By exchange: the policy's state after its grants and the number of its devices, if they are needed to learn.
    replaced
        By model: its version when it last went back to an earlier one.
    """

    outstanding: dict[int, Outstanding] = field(default_factory=dict)
    answers: list[LateAnswer] = field(default_factory=list)
    drawn: dict[int, tuple[Any, int]] = field(default_factory=dict)
    replaced: dict[int, int] = field(default_factory=dict)

    def expect(self, grants: Mapping[int, Grants], openings: Mapping[int, str], clients: Iterable[int]) -> None:
        """Expect the answers of devices to the grants of an exchange that is closed without them."""
        self.outstanding |= {client: Outstanding(grants[client], openings[client]) for client in clients}

    def overdue(self, exchange: int, staleness: int) -> list[int]:
        """Devices whose answers would be more than `staleness` exchanges old."""
        return [client for client, each in self.outstanding.items() if exchange - each.grants.exchange > staleness]

    def take(self, client: int, answer: Answer) -> None:
        """Keep a late answer until it counts."""
        own = self.outstanding.pop(client)
        self.answers.append(LateAnswer(answer, own.grants.version))

    def withdraw(self, clients: Iterable[int]) -> list[int]:
        """Expect nothing of devices any more, and forget what does not count yet; return those concerned."""
        gone = set(clients)
        found = gone & (self.outstanding.keys() | {each.client for each in self.answers})
        self.outstanding = {client: each for client, each in self.outstanding.items() if client not in gone}
        self.answers = [each for each in self.answers if each.client not in gone]
        self._forget_draws()
        return sorted(found)

    def due(self) -> list[LateAnswer]:
        """The late answers, which count now: by exchange and device, because sums depend on the order."""
        found, self.answers = sorted(self.answers, key=lambda each: (each.exchange, each.client)), []
        return found

    def learn(self, late: Sequence[LateAnswer], learn: Callable[[Any, Reports, int], None]) -> None:
        """Call `learn` with the state of then, the reports and the number of devices, for each exchange of `late`."""
        for exchange in sorted({each.exchange for each in late}):
            reports = [each.answer.reports for each in late if each.exchange == exchange]
            then, clients = self.drawn[exchange]
            learn(then, Reports.stack(reports), clients)
        self._forget_draws()

    def _forget_draws(self) -> None:
        needed = {each.exchange for each in self.answers} | {each.grants.exchange for each in self.outstanding.values()}
        self.drawn = {exchange: each for exchange, each in self.drawn.items() if exchange in needed}

    def write(self) -> tuple[dict[str, Any], dict[str, AnyArray]]:
        """All of it, as values and arrays of a checkpoint."""
        arrays: dict[str, AnyArray] = {}
        values: dict[str, Any] = {"outstanding": {}, "late": [], "drawn": {}, "replaced": {}}
        for client, each in self.outstanding.items():
            arrays |= {f"outstanding.{client}.{name}": array for name, array in each.grants.to_arrays().items()}
            values["outstanding"][str(client)] = each.opening
        for place, late in enumerate(self.answers):
            arrays |= {f"late.{place}.report.{name}": part for name, part in late.answer.reports.to_arrays().items()}
            arrays[f"late.{place}.version"] = late.version
            for model, update in late.answer.updates.items():
                arrays |= {f"late.{place}.delta.{model}.{name}": part.numpy() for name, part in update.delta.items()}
            values["late"].append({str(model): update.weight for model, update in late.answer.updates.items()})
        for exchange, (state, clients) in self.drawn.items():
            parts, plain = flatten(state, f"drawn.{exchange}.")
            arrays |= parts
            values["drawn"][str(exchange)] = [clients, plain]
        values["replaced"] = {str(model): version for model, version in self.replaced.items()}
        return {"stragglers": values}, arrays

    @classmethod
    def read(cls, envelope: Envelope, template: Any) -> Stragglers:
        """The inverse of `write`; `template` is a state of the policy. Earlier checkpoints have none."""
        values, found = envelope.values.get("stragglers"), cls()
        if values is None:
            return found
        for client, opening in values["outstanding"].items():
            grants = Grants.from_arrays(envelope.part(f"outstanding.{client}"))
            found.outstanding[int(client)] = Outstanding(grants, str(opening))
        for place, weights in enumerate(values["late"]):
            part = Envelope("late", {}, envelope.part(f"late.{place}"))
            deltas = part.by_model("delta")
            updates = {
                int(model): Update(
                    float(weight), {name: torch.from_numpy(each.copy()) for name, each in deltas[int(model)].items()}
                )
                for model, weight in weights.items()
            }
            answer = Answer(Reports.from_arrays(part.part("report")), updates)
            found.answers.append(LateAnswer(answer, part.arrays["version"]))
        for exchange, (clients, plain) in values["drawn"].items():
            state = unflatten(template, dict(envelope.arrays), dict(plain), f"drawn.{exchange}.")
            found.drawn[int(exchange)] = (state, int(clients))
        found.replaced = {int(model): int(version) for model, version in values["replaced"].items()}
        return found
