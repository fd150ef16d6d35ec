"""Schedules messages: welcomes devices, opens exchanges, waits for answers until a deadline, closes exchanges."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.presence import Presence
from ofms.coordinator.transport import Clock, Kind, Reply, Transport
from ofms.core.errors import InvalidInput
from ofms.storage.envelope import decode

# Soon after something was sent or received, seldom otherwise: a poll takes some milliseconds of the transport.
_SOONEST_POLL, _LATEST_POLL, _SLOWER = 0.1, 1.0, 1.25
# A device whose program is running answers a welcome immediately.
_JOIN_SECONDS = 5.0
_USUAL_TRAVEL_SECONDS = 10.0
_RETRY_SECONDS = 5.0


@dataclass(frozen=True)
class Sent:
    """A message awaiting its reply; `until` is when it expires or, if it was lost, when it may be resent."""

    client: int
    node: int
    kind: Kind
    content: bytes
    exchange: int
    sent: float
    until: float


class Scheduler:
    """Runs the exchanges of a deployment over a transport."""

    def __init__(self, transport: Transport, persistence: PersistentCoordinator, clock: Clock = time) -> None:
        self.transport, self.persistence, self.clock = transport, persistence, clock
        self.coordinator, self.config = persistence.coordinator, persistence.deployment.config
        self.waiting: dict[str, Sent] = {}
        # Undelivered or unanswered grants; resent if their node reconnects before the deadline.
        self.lost: list[Sent] = []
        self._presence = Presence(transport, persistence, clock)
        self._invited: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        self._poll_seconds = _SOONEST_POLL

    def run(self) -> None:
        """Run all exchanges up to the horizon; without one, until the server is stopped."""
        persistence, coordinator = self.persistence, self.coordinator
        resumes = f"the server resumes at exchange {coordinator.exchange}"
        persistence.log_event(resumes if coordinator.exchange else "the server starts")
        persistence.run_commands()
        # The deployment's id must be on disk before a device learns it.
        persistence.save()
        if not coordinator.finished:
            self._gather()
            persistence.save()
        while not coordinator.finished:
            if persistence.run_commands():
                self._change()
            self._refresh_nodes()
            present = set(persistence.nodes) & coordinator.requests.keys()
            if present:
                self._exchange(present)
            else:
                self._invite()
                self._wait()
        persistence.log_event("the server has reached its horizon")
        persistence.save()

    def _change(self) -> None:
        """Welcome the connected devices to a fleet that changed, and wait for their requests."""
        concerned = self.persistence.nodes.keys() - self.coordinator.requests.keys()
        self.waiting = {message: sent for message, sent in self.waiting.items() if sent.client not in concerned}
        self._not_before = {client: again for client, again in self._not_before.items() if client not in concerned}
        self._gather(connected=True)

    def _gather(self, *, connected: bool = False) -> None:
        """Wait until every device has requested the exchange, or those that are `connected`, or until the deadline."""
        until = self.clock.monotonic() + self.persistence.deadline
        while self.clock.monotonic() < until:
            self._refresh_nodes()
            expected = self._members()
            if connected:
                expected &= self.persistence.nodes.keys()
            if expected <= set(self.persistence.nodes) & self.coordinator.requests.keys():
                return
            self._invite()
            self._wait()

    def _exchange(self, present: set[int]) -> None:
        exchange = self.coordinator.exchange
        for client, content in self.coordinator.open(present).items():
            self._send(client, "exchange", content, exchange, self.persistence.deadline)
        self._invite()
        deadline = self.clock.monotonic() + self.persistence.deadline
        while self._expects_answers(deadline):
            self._wait()
            self._send_again(deadline)
            self._invite()
        self.lost = []
        self.persistence.close_exchange()

    def _expects_answers(self, deadline: float) -> bool:
        """Whether to wait for answers: to grants, to grants to be resent, or to recent welcomes."""
        now = self.clock.monotonic()
        if any(sent.kind == "exchange" for sent in self.waiting.values()):
            return now < deadline + self.config.travel
        recent = _JOIN_SECONDS + _USUAL_TRAVEL_SECONDS
        welcomed = any(now < sent.sent + recent for sent in self.waiting.values())
        return (bool(self.lost) or welcomed) and now < deadline

    def _members(self) -> set[int]:
        """The devices in the fleet that are not revoked; new ones join before the next exchange."""
        devices = self.persistence.deployment.roster.devices
        return {client for client in self.coordinator.setup.members if not devices[client].revoked}

    def _invite(self) -> None:
        """Welcome connected devices that are not in the open exchange and have not requested the next one."""
        coordinator, now = self.coordinator, self.clock.monotonic()
        requested = coordinator.requests.keys()
        granted = coordinator.opened.grants.keys() if coordinator.opened is not None else set()
        busy = {sent.client for sent in self.waiting.values()}
        busy |= {client for client, again in self._not_before.items() if now < again}
        for client in sorted((self.persistence.nodes.keys() & self._members()) - busy - granted - requested):
            # Once per exchange: a device whose program is not running would delay the others.
            if coordinator.opened is None or self._invited.get(client) != coordinator.next_exchange:
                self._invited[client] = coordinator.next_exchange
                self._send(client, "join", coordinator.welcome(client), coordinator.next_exchange, _JOIN_SECONDS)

    def _send(self, client: int, kind: Kind, content: bytes, exchange: int, wait: float) -> None:
        node, now = self.persistence.nodes[client], self.clock.monotonic()
        lifetime = wait + self.config.travel
        sent = Sent(client, node, kind, content, exchange, now, now + lifetime)
        message = self.transport.send(node, kind, content, wait=wait, lifetime=lifetime)
        if message is None:
            self._lose(sent, "was not sent its message: the transport rejected it")
            return
        self.waiting[message] = sent
        self._poll_seconds = _SOONEST_POLL
        self.persistence.count(client, down=len(content))
        self._log(client, f"was sent a message of {len(content)} bytes ({kind})", logging.DEBUG)

    def _wait(self) -> None:
        """Process the replies received, or sleep if there are none."""
        replies = self.transport.receive(list(self.waiting)) if self.waiting else []
        for reply in replies:
            sent = self.waiting.pop(reply.message, None)
            if sent is not None:
                self._take(sent, reply)
        now = self.clock.monotonic()
        self.waiting = {message: sent for message, sent in self.waiting.items() if now < sent.until}
        self._refresh_nodes()
        if replies:
            self._poll_seconds = _SOONEST_POLL
        else:
            self.clock.sleep(self._poll_seconds)
            self._poll_seconds = min(_LATEST_POLL, _SLOWER * self._poll_seconds)

    def _take(self, sent: Sent, reply: Reply) -> None:
        if reply.lost:
            self._lose(sent, f"did not answer: {reply.error}")
            return
        # No message of a device may stop the server.
        try:
            self._read(sent, reply)
        except InvalidInput as error:
            self.persistence.refuse(sent.client, f"message rejected: {error}")
        except Exception as error:
            self.persistence.refuse(sent.client, f"message rejected: {type(error).__name__}: {error}")

    def _lose(self, sent: Sent, reason: str) -> None:
        """Log an unanswered message; keep a grant of the open exchange, to resend it later."""
        self._log(sent.client, reason, logging.WARNING)
        again = self._not_before[sent.client] = self.clock.monotonic() + _RETRY_SECONDS
        if sent.kind == "exchange" and sent.exchange == self.coordinator.exchange:
            self.lost.append(replace(sent, until=again))

    def _read(self, sent: Sent, reply: Reply) -> None:
        requested = sent.exchange + (sent.kind == "exchange")
        if self.persistence.deployment.roster.devices[sent.client].revoked:
            return
        if reply.content is None:
            raise InvalidInput("message", reply.error, "it cannot be read")
        if reply.node != sent.node:
            raise InvalidInput("node", reply.node, "it answers for another node")
        self.persistence.count(sent.client, up=len(reply.content))
        envelope = decode(reply.content)
        self._log(sent.client, f"sent {len(reply.content)} bytes ({envelope.kind[:40]})", logging.DEBUG)
        if envelope.kind == "refusal":
            self._log(sent.client, f"rejected its message: {envelope.values.get('reason')}", logging.WARNING)
        elif envelope.kind != "nothing" and requested != self.coordinator.next_exchange:
            self._log(sent.client, f"answered exchange {sent.exchange} too late", logging.WARNING)
        elif envelope.kind != "nothing":
            self.persistence.receive(sent.client, envelope)

    def _send_again(self, deadline: float) -> None:
        """Resend lost grants to nodes that reconnected."""
        now = self.clock.monotonic()
        for sent in [sent for sent in self.lost if sent.until <= now and sent.client in self.persistence.nodes]:
            self.lost.remove(sent)
            self._send(sent.client, sent.kind, sent.content, sent.exchange, max(1.0, deadline - now))

    def _refresh_nodes(self) -> None:
        revoked = self._presence.refresh_nodes()
        if revoked:
            self.waiting = {message: sent for message, sent in self.waiting.items() if sent.client not in revoked}
            self.lost = [sent for sent in self.lost if sent.client not in revoked]

    def _log(self, client: int, line: str, level: int) -> None:
        name = self.persistence.name(client)
        self.persistence.log_event(f"exchange {self.coordinator.exchange}: {name} {line}", level)
