"""The server's side of the letters, without a network: the dictionary, its versions, and the policy's server half.

Letters of the devices that take part in an exchange go in together, a grant for each comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ofms.core.draws import Draws
from ofms.core.errors import InvalidInput
from ofms.core.messages import Reports, Requests
from ofms.core.schedule import Schedule
from ofms.core.typing import Integers
from ofms.device.letters import Letter, message_arrays, seal, unseal
from ofms.models.dictionary import Dictionary
from ofms.policies.protocol import Fleet
from ofms.policies.registry import build_policy, settings_type


class Hub:
    """Runs the server half for a fleet whose devices answer in every exchange."""

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
    ) -> None:
        import msgspec

        self.dictionary, self.seed, self.exchange = dictionary, seed, 0
        self.name, self.settings = policy, dict(settings or {})
        self.fleet = Fleet(dictionary.catalogue(), np.asarray(budgets), bandwidth, Schedule(rounds, interval))
        built = msgspec.convert(self.settings, settings_type(policy))
        self.policy = build_policy(policy, built, self.fleet)
        self.state = self.policy.server.open(self.fleet.catalogue, bandwidth)
        self.tensors = [{name: tensor.clone() for name, tensor in model.tensors.items()} for model in dictionary.models]

    def welcome(self, client: int) -> bytes:
        """What a device must know to take part."""
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
        for model in models:
            if not model["architecture"]:
                raise InvalidInput("models", model["name"], "a device must build it: give its architecture")
        values = {
            "client": client,
            "seed": self.seed,
            "exchange": self.exchange,
            "policy": self.name,
            "settings": self.settings,
            "task": self.dictionary.task,
            "rounds": self.fleet.schedule.rounds,
            "interval": self.fleet.schedule.interval,
            "bandwidth": self.fleet.bandwidth,
            "revision": self.fleet.catalogue.revision,
            "models": models,
        }
        return seal(Letter("welcome", values))

    def run_exchange(self, letters: Mapping[int, bytes]) -> dict[int, bytes]:
        """Count the devices' reports of the last exchange, and grant the next one."""
        opened = {client: unseal(content) for client, content in sorted(letters.items())}
        for client, letter in opened.items():
            if letter.kind != "request" or int(letter.values["exchange"]) != self.exchange:
                raise InvalidInput("letter", client, f"it is not for exchange {self.exchange}")
        if self.exchange:
            self._absorb(opened)
        draws = Draws(self.seed, self.exchange)
        parts = [
            Requests.from_arrays(letter.part("request") | {"exchange": np.asarray(self.exchange)})
            for letter in opened.values()
        ]
        self.state, grants = self.policy.server.grant(self.state, Requests.stack(parts), draws)
        answers = {}
        for place, client in enumerate(opened):
            own = grants.rows(slice(place, place + 1))
            arrays = message_arrays(own, "grant")
            for model in np.flatnonzero(own.sent[0]).tolist():
                arrays |= {f"model.{model}.{name}": tensor.numpy() for name, tensor in self.tensors[model].items()}
            values = {"exchange": self.exchange, "groups": int(own.groups), "revision": self.fleet.catalogue.revision}
            answers[client] = seal(Letter("grant", values, arrays))
        self.exchange += 1
        return answers

    def _absorb(self, opened: Mapping[int, Letter]) -> None:
        parts = [
            Reports.from_arrays(letter.part("report") | {"exchange": np.asarray(self.exchange - 1)})
            for letter in opened.values()
        ]
        self.state, step = self.policy.server.absorb(self.state, Reports.stack(parts))
        for letter in opened.values():
            for name, array in letter.part("delta").items():
                model, _, parameter = name.partition(".")
                delta = torch.from_numpy(np.array(array))
                self.tensors[int(model)][parameter] += float(step[int(model)]) * delta
