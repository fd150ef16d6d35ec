"""The server's side of exchanges, without a network: the dictionary, its versions, and the policy's server half.

An exchange is opened for devices that requested it, and closed with the answers received; those of the other devices
may count later (`ofms.coordinator.stragglers`). The dictionary depends on the messages, not on their order.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ofms.compute.moving import move_models
from ofms.coordinator.aggregation import Closed, aggregate, left_out, outliers
from ofms.coordinator.graphs import Graphs
from ofms.coordinator.late_answers import LateAnswers
from ofms.coordinator.messages import encode_grant, encode_welcome, opening_id
from ofms.coordinator.validation import Answer, read_request
from ofms.core.draws import Draws
from ofms.core.errors import InvalidInput
from ofms.core.events import Event
from ofms.core.messages import Grants, Reports, Requests
from ofms.models.dictionary import Dictionary, Model
from ofms.policies.local_updates import copies_held, is_control
from ofms.storage.envelope import Envelope, decode


@dataclass(eq=False)
class OpenExchange:
    """The grants of an exchange, the id of each, and the answers so far."""

    grants: dict[int, Grants] = field(default_factory=dict)
    openings: dict[int, str] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)


class Coordinator(LateAnswers):
    """Runs the exchanges of a fleet.

    Parameters
    ----------
    graphs
        Finds the ONNX graphs of models, for the welcome.
    given
        Those of the fleet.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        *,
        graphs: Callable[[Dictionary], Mapping[int, Graphs]] | None = None,
        **given: Any,
    ) -> None:
        super().__init__(dictionary, **given)
        self._find_graphs = graphs
        self._graphs = {} if graphs is None else graphs(dictionary)
        self.deployment = secrets.token_hex(8)
        self.requests: dict[int, Requests] = {}
        self.opened: OpenExchange | None = None

    @property
    def quarantined(self) -> list[int]:
        """The models that diverged, and are not fine-tuned until they are thawed."""
        return np.flatnonzero(self.state.quarantined).tolist()

    @property
    def finished(self) -> bool:
        """Whether the horizon is reached; never if there is none."""
        return self.opened is None and not self.fleet.schedule.includes(self.exchange)

    @property
    def next_exchange(self) -> int:
        """The next exchange to open, which devices may request."""
        return self.exchange + (self.opened is not None)

    def welcome(self, client: int) -> bytes:
        """The encoded welcome, with which a device joins at the next exchange."""
        head = self._head(self.next_exchange) | {"places": list(self.setup.places), "anew": self.anew}
        if self.setup.renewed:
            head["renewed"] = {str(slot): number for slot, number in self.setup.renewed.items()}
        if client in self.told:
            # Repeated by the answer; as text, like all that carriers compare.
            head["changed"] = str(self.told[client])
        return encode_welcome(head, client, self.dictionary, self.fleet, self._described, self.seed, self._graphs)

    def apply(self, event: Event, models: Sequence[Model] = (), earlier: Mapping[int, bytes] | None = None) -> None:
        """Change the fleet, between two exchanges.

        Requests of devices that the event concerns no longer count: they get a new welcome, and request again.
        """
        if self.opened is not None:
            raise InvalidInput("exchange", self.exchange, "it is open; change the fleet between exchanges")
        super().apply(event, models, earlier)
        if models and self._find_graphs is not None:
            self._graphs = self._find_graphs(self.dictionary)
        number = self.setup.changed
        self.requests = {client: each for client, each in self.requests.items() if self.told.get(client, 0) != number}
        for client in event.leave:
            self.exclude(client)

    def receive(self, client: int, envelope: Envelope, requested: int | None = None) -> list[str]:
        """Process a device's message; return a line for each rejected part. An invalid message raises.

        A report on another opening of the exchange is rejected, because its weights were computed for another grant;
        the request in the same message still counts. A late message requests an earlier exchange than the next one:
        the device takes part in the next one.

        Parameters
        ----------
        requested
            The exchange that the message must request; the next one by default.
        """
        requested = self.next_exchange if requested is None else requested
        catalogue = self.fleet.catalogue
        if envelope.values.get("deployment") != self.deployment:
            raise InvalidInput("message", str(envelope.values.get("deployment"))[:40], "of another deployment")
        bandwidth = None if self.policy.local is None else self.fleet.bandwidth
        if envelope.values.get("changed", "0") != str(self.told.get(client, 0)):
            raise InvalidInput("message", "a request", "it was made before the fleet changed; a welcome follows")
        budget, copies = int(self.fleet.budgets[client]), copies_held(self.policy.local)
        request = read_request(
            *(envelope, client, requested, catalogue, budget, bandwidth, copies),
            most_held=self._most_budget[client],
        )
        for model in set(np.flatnonzero(request.wanted[0]).tolist()) - set(self.setup.places):
            raise InvalidInput("message", catalogue.names[model], "it is not in use")
        refused: list[str] = []
        if client in self.stragglers.outstanding:
            refused = self._receive_late(client, envelope, requested - 1)
        elif self.opened is not None and client in self.opened.grants:
            if client in self.opened.answers:
                raise InvalidInput("message", f"exchange {self.exchange + 1}", "a duplicate; not counted")
            if envelope.values.get("opening") != self.opened.openings[client]:
                refused = [f"report rejected: it answers another opening of exchange {self.exchange}"]
            elif envelope.part("report"):
                answer = self._read_answer(envelope, self.opened.grants[client])
                self.opened.answers[client] = answer
                refused = list(answer.refused)
        self.requests[client] = request
        return refused

    def open(self, clients: Iterable[int] | None = None) -> dict[int, bytes]:
        """Open the next exchange for devices that requested it; return the encoded grant of each."""
        present = sorted(self.requests if clients is None else set(clients) & self.requests.keys())
        if self.opened is not None or not present:
            raise InvalidInput("exchange", self.exchange, "it is already open, or no device requested it")
        requests = replace(Requests.stack([self.requests[client] for client in present]), exchange=self.exchange)
        self.state, grants = self.session.grant(self.state, requests, Draws(self.seed, self.exchange))
        # Means are over all that take part, also those that still work on an earlier grant.
        self.state = replace(self.state, clients=self.state.clients + len(self.stragglers.outstanding))
        if self.frozen:
            grants = replace(grants, uploads=np.zeros_like(grants.uploads))
        rows = {client: grants.rows(slice(place, place + 1)) for place, client in enumerate(present)}
        openings = {client: opening_id(self.deployment, own) for client, own in rows.items()}
        self.opened = OpenExchange(rows, openings)
        # Devices that requested it but are not connected must request a later one.
        self.requests = {}
        head = self._head(self.exchange)
        return {client: encode_grant(head, own, openings[client], self._encoded_grant) for client, own in rows.items()}

    def close(self, awaited: Iterable[int] = ()) -> Closed:
        """Close the exchange: learn from the reports, and apply the valid updates.

        The answers of `awaited` devices may count later, if they did not answer; and late answers count now.
        """
        if self.opened is None:
            raise InvalidInput("exchange", self.exchange, "it is not open")
        opened, stragglers = self.opened, self.stragglers
        awaited = set(awaited) & opened.grants.keys() - opened.answers.keys() if self.session.learns_late else set()
        late, drawn = self._late_due(), (self.state.policy, len(opened.answers) + len(awaited))
        answers = [answer for _, answer in sorted(opened.answers.items())]
        if self.policy.reports_losses:
            stragglers.learn(late, self._learn_late)
        else:
            answers += [each.counted_in(self.exchange, self.version, stragglers.replaced) for each in late]
        counted = [(each.client, each.exchange) for each in late]
        closed = Closed(late=counted, updates=sum(len(answer.updates) for answer in answers))
        if answers:
            reports = Reports.stack([answer.reports for answer in answers])
            if self.frozen and is_control(self.policy.local, self.exchange):
                reports = replace(reports, losses=None)
            updates, reports = aggregate(answers, reports, self.policy.aggregation, self.momentum.norms)
            before, restored = self.state, self.session.restored(self.state, reports)
            models = self.momentum, self.tensors, self._trainable
            self.state = move_models(
                self.session, before, reports, updates, *models, self._first_version, awaited=len(awaited)
            )
            quarantined = np.flatnonzero(self.state.quarantined & ~before.quarantined).tolist()
            back = np.flatnonzero(restored).tolist()
            closed = replace(closed, quarantined=quarantined, restored=back, outliers=outliers(answers))
            closed = replace(closed, left_out=left_out(reports))
            self._note_replaced(closed.restored)
        stragglers.expect(opened.grants, opened.openings, sorted(awaited))
        if awaited and self.policy.reports_losses:
            stragglers.drawn[self.exchange] = drawn
        self.opened = None
        self.exchange += 1
        return replace(closed, overdue=stragglers.withdraw(stragglers.overdue(self.exchange, self.staleness)))

    def exclude(self, client: int) -> None:
        """Drop a device's request, and its part in the open exchange."""
        self.requests.pop(client, None)
        self.stragglers.withdraw([client])
        if self.opened is not None:
            self.opened.answers.pop(client, None)
            self.opened.grants.pop(client, None)

    def run_exchange(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """Receive the messages of all devices, close the open exchange, and open the next one."""
        for client, content in messages.items():
            self.receive(client, decode(content))
        if self.opened is not None:
            self.close()
        return self.open()

    def thaw(self) -> None:
        """Resume fine-tuning, also that of quarantined models."""
        self.frozen = False
        self.state = replace(self.state, quarantined=np.zeros_like(self.state.quarantined))
