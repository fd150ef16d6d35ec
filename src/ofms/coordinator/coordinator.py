"""The server's side of the letters, without a network: the dictionary, its versions, and the policy's server half.

An exchange is opened for the devices that asked for it, and closed with the answers that came. Everything is a function
of the letters: the same ones, in whatever order they come, give the same dictionary.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import torch

from ofms.coordinator.validation import Answer, Tensors, read_answer, read_request
from ofms.core.draws import Draws
from ofms.core.errors import InvalidInput
from ofms.core.messages import Grants, Reports, Requests
from ofms.core.schedule import Schedule
from ofms.core.typing import Integers
from ofms.models.dictionary import Dictionary
from ofms.policies.fleet import Fleet
from ofms.policies.registry import build_policy, settings_type
from ofms.policies.session import ServerSession
from ofms.storage.envelope import Envelope, decode, encode, message_arrays

# A device may have seen some more samples than an exchange has before it could report.
_MOST_LABELS = 10
_MOST_RAW_LOSS = 1e9


@dataclass(eq=False)
class OpenExchange:
    """What was granted, and what has come back so far."""

    grants: dict[int, Grants] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)


class Coordinator:
    """Runs the server half for a fleet.

    Parameters
    ----------
    dictionary
        The models; their architectures must be such that a device can build them.
    budgets
        [N] the memory of the devices, in bytes.
    bandwidth
        E, in bytes.
    rounds, interval
        The horizon T, and n: after how many samples there is an exchange.
    largest_update
        How large one device's update may be, in norms of the parameters which it updates.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        *,
        budgets: Integers,
        bandwidth: int,
        rounds: int,
        interval: int = 1,
        policy: str = "ofms-ft",
        settings: Mapping[str, Any] | None = None,
        seed: int = 0,
        largest_update: float = 1.0,
    ) -> None:
        for model in dictionary.models:
            if not model.architecture:
                raise InvalidInput("models", model.name, "a device must build it: give its architecture")
        self.dictionary, self.seed, self.largest_update = dictionary, seed, largest_update
        self.name, self.settings = policy, dict(settings or {})
        self.fleet = Fleet(dictionary.catalogue(), np.asarray(budgets), bandwidth, Schedule(rounds, interval))
        self.policy = build_policy(policy, msgspec.convert(self.settings, settings_type(policy)), self.fleet)
        self.deployment = secrets.token_hex(8)
        self.exchange = 0
        self.frozen = False
        self.session = ServerSession(self.policy, self.fleet.catalogue, bandwidth)
        self.state = self.session.open()
        self.tensors: list[Tensors] = [
            {name: tensor.clone() for name, tensor in model.tensors.items()} for model in dictionary.models
        ]
        self.requests: dict[int, Requests] = {}
        self.opened: OpenExchange | None = None

    @property
    def version(self) -> Integers:
        """[K] how often each model was changed."""
        return self.state.version

    @property
    def finished(self) -> bool:
        """Whether the horizon is reached."""
        return self.opened is None and self.exchange >= self.fleet.schedule.exchanges

    @property
    def coming(self) -> int:
        """The exchange that a device which is in none may ask for."""
        return self.exchange + (self.opened is not None)

    def welcome(self, client: int) -> bytes:
        """What a device must know to take part from the coming exchange on."""
        models = [
            {
                "name": model.name,
                "architecture": model.architecture,
                "options": dict(model.options),
                "storage": model.storage,
                "upload": model.upload,
                "trainable": list(model.trainable),
            }
            for model in self.dictionary.models
        ]
        sizes, counts = np.unique(self.fleet.budgets, return_counts=True)
        values = self._head(self.coming) | {
            "client": client,
            "seed": self.seed,
            "policy": self.name,
            "settings": self.settings,
            "task": self.dictionary.task,
            "rounds": self.fleet.schedule.rounds,
            "interval": self.fleet.schedule.interval,
            "bandwidth": self.fleet.bandwidth,
            "budget": int(self.fleet.budgets[client]),
            "fleet": [list(pair) for pair in zip(sizes.tolist(), counts.tolist(), strict=True)],
            "models": models,
        }
        return encode(Envelope("welcome", values))

    def receive(self, client: int, letter: Envelope) -> list[str]:
        """Take a device's letter; what of it was refused, a line each. A letter that makes no sense raises."""
        catalogue = self.fleet.catalogue
        if letter.values.get("deployment") != self.deployment:
            raise InvalidInput("letter", str(letter.values.get("deployment"))[:40], "it is of another deployment")
        bandwidth = None if self.policy.local is None else self.fleet.bandwidth
        request = read_request(letter, client, self.coming, catalogue, int(self.fleet.budgets[client]), bandwidth)
        refused: list[str] = []
        if self.opened is not None and client in self.opened.grants:
            if client in self.opened.answers:
                raise InvalidInput("letter", f"exchange {self.exchange + 1}", "it came before; this one is not counted")
            answer = read_answer(
                letter,
                self.opened.grants[client],
                catalogue,
                self.tensors,
                [model.trainable for model in self.dictionary.models],
                largest_update=self.largest_update,
                most_loss=self._most_loss,
            )
            self.opened.answers[client] = answer
            refused = list(answer.refused)
        self.requests[client] = request
        return refused

    def open(self, clients: Iterable[int] | None = None) -> dict[int, bytes]:
        """Open the coming exchange for devices that asked for it; a grant for each."""
        present = sorted(self.requests if clients is None else set(clients) & self.requests.keys())
        if self.opened is not None or not present:
            raise InvalidInput("exchange", self.exchange, "it is open already, or nobody asked for it")
        requests = Requests.stack([self.requests[client] for client in present])
        self.state, grants = self.session.grant(self.state, requests, Draws(self.seed, self.exchange))
        if self.frozen:
            grants = replace(grants, uploads=np.zeros_like(grants.uploads))
        self.opened = OpenExchange(
            {client: grants.rows(slice(place, place + 1)) for place, client in enumerate(present)}
        )
        # Those who asked and are not here ask again for another one.
        self.requests = {}
        return {client: self._grant(own) for client, own in self.opened.grants.items()}

    def close(self) -> list[int]:
        """Close the exchange: learn from the reports that came, and apply the updates that may count.

        Models that would stop being finite stay as they are; which these were.
        """
        if self.opened is None:
            raise InvalidInput("exchange", self.exchange, "it is not open")
        answers = [answer for _, answer in sorted(self.opened.answers.items())]
        spoilt = []
        if answers:
            reports = Reports.stack([answer.reports for answer in answers])
            self.state, step = self.session.absorb(self.state, reports)
            for model in sorted({model for answer in answers for model in answer.updates}):
                moved = dict(self.tensors[model])
                for update in (answer.updates[model] for answer in answers if model in answer.updates):
                    for name, delta in update.delta.items():
                        moved[name] = moved[name] + float(step[model]) * update.weight * delta
                if all(bool(torch.isfinite(tensor).all()) for tensor in moved.values()):
                    self.tensors[model] = moved
                else:
                    spoilt.append(model)
        self.opened = None
        self.exchange += 1
        return spoilt

    def forget(self, client: int) -> None:
        """Let nothing of a device count that did not count yet."""
        self.requests.pop(client, None)
        if self.opened is not None:
            self.opened.answers.pop(client, None)
            self.opened.grants.pop(client, None)

    def run_exchange(self, letters: Mapping[int, bytes]) -> dict[int, bytes]:
        """Where every device answers at once: count their reports of the last exchange, and grant the next one."""
        for client, content in letters.items():
            self.receive(client, decode(content))
        if self.opened is not None:
            self.close()
        return self.open()

    def roll_back(self, tensors: Mapping[int, Tensors]) -> None:
        """Go back to other tensors of some models; to devices they are new versions."""
        version = self.version.copy()
        for model, each in tensors.items():
            self.tensors[model] = dict(each)
            version[model] += 1
        self.state = replace(self.state, version=version)

    @property
    def _most_loss(self) -> float | None:
        """What a model's selection losses of an exchange can come to, where the server learns from them."""
        if not self.policy.reports_losses:
            return None
        return _MOST_RAW_LOSS if self.policy.loss_bound == "raw" else _MOST_LABELS * self.fleet.schedule.interval

    def _grant(self, own: Grants) -> bytes:
        arrays = message_arrays(own, "grant")
        for model in np.flatnonzero(own.sent[0]).tolist():
            arrays |= {f"model.{model}.{name}": tensor.numpy() for name, tensor in self.tensors[model].items()}
        return encode(Envelope("grant", self._head(self.exchange) | {"groups": int(own.groups)}, arrays))

    def _head(self, exchange: int) -> dict[str, Any]:
        return {"deployment": self.deployment, "revision": self.fleet.catalogue.revision, "exchange": exchange}
