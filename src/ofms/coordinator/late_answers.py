"""A fleet whose devices may answer late: which of their answers count, and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ofms.coordinator.changing_fleet import ChangingFleet
from ofms.coordinator.messages import encode_grant
from ofms.coordinator.stragglers import LateAnswer, Stragglers
from ofms.coordinator.validation import Answer, most_loss, read_answer
from ofms.core.events import Event
from ofms.core.messages import Grants, Reports
from ofms.models.dictionary import Dictionary, Model
from ofms.policies.local_updates import is_control, tuning_window_of
from ofms.storage.envelope import Envelope
from ofms.storage.tensors import encode_tensors


class LateAnswers(ChangingFleet):
    """The part of a coordinator that reads answers, in time or late.

    Parameters
    ----------
    staleness
        How many exchanges later an answer may arrive to count.
    given
        Those of the fleet.
    """

    def __init__(self, dictionary: Dictionary, *, staleness: int = 0, **given: Any) -> None:
        super().__init__(dictionary, **given)
        self.staleness, self.stragglers = staleness, Stragglers()
        self.deployment, self.exchange, self.frozen = "", 0, False

    def apply(self, event: Event, models: Sequence[Model] = (), earlier: Mapping[int, bytes] | None = None) -> None:
        """Change the fleet. Devices that the event concerns get a new welcome: their answers were for another fleet."""
        before = self.setup
        super().apply(event, models, earlier)
        self._note_replaced(self.setup.renewed_since(before))
        self.stragglers.withdraw(client for client, told in self.told.items() if told == self.setup.changed)
        if event.staleness is not None:
            self.staleness = event.staleness

    def roll_back(self, contents: Mapping[int, bytes]) -> None:
        super().roll_back(contents)
        self._note_replaced(contents)

    def grant_again(self, client: int) -> bytes:
        """The encoded grant of an earlier exchange on which a device still works, without the models that it has."""
        own = self.stragglers.outstanding[client]
        grants = replace(own.grants, sent=np.zeros_like(own.grants.sent))
        return encode_grant(self._head(grants.exchange), grants, own.opening, self._encoded_grant)

    def _receive_late(self, client: int, envelope: Envelope, exchange: int) -> list[str]:
        """Keep a report on an earlier exchange until it counts; return a line for each rejected part."""
        own = self.stragglers.outstanding[client]
        if exchange != own.grants.exchange or envelope.values.get("opening") != own.opening:
            self.stragglers.withdraw([client])
            return [f"report rejected: it answers another opening of exchange {exchange}"]
        late = self.exchange - exchange
        if late > self.staleness:
            self.stragglers.withdraw([client])
            return [f"report rejected: it is {late} exchanges late; at most {self.staleness} count"]
        answer = self._read_answer(envelope, own.grants)
        self.stragglers.take(client, answer)
        return list(answer.refused)

    def _late_due(self) -> list[LateAnswer]:
        """Late answers that count in the open exchange: if it fine-tunes, because models then move anyway."""
        local = self.policy.local
        if local is not None and tuning_window_of(local, self.fleet.schedule, self.exchange) is None:
            return []
        late = self.stragglers.due()
        return [each for each in late if not self.frozen or self.policy.reports_losses]

    def _learn_late(self, then: Any, reports: Reports, clients: int) -> None:
        self.state = self.session.learn_late(self.state, then, reports, clients)

    def _note_replaced(self, models: Iterable[int]) -> None:
        """Late updates of earlier versions of models no longer count."""
        self.stragglers.replaced |= {model: int(self.version[model]) for model in models}

    def _encoded_grant(self, model: int) -> bytes:
        """The encoded tensors of a model as the open exchange grants it."""
        control = is_control(self.policy.local, self.exchange)
        return encode_tensors(self._first_version(model)) if control else self.encoded_model(model)

    def _read_answer(self, envelope: Envelope, grants: Grants) -> Answer:
        control = is_control(self.policy.local, grants.exchange)
        return read_answer(
            envelope,
            grants,
            self.fleet.catalogue,
            self.tensors,
            self._trainable,
            largest_update=self.largest_update,
            most_loss=most_loss(self.policy, self.fleet.schedule),
            only_updated=self.policy.reports_use,
            compared=self.policy.tuned(grants.held) if control else None,
        )

    def _head(self, exchange: int) -> dict[str, Any]:
        return {"deployment": self.deployment, "revision": self.fleet.catalogue.revision, "exchange": exchange}
