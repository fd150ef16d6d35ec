"""Schedules messages: welcomes devices, opens exchanges, waits for answers, closes exchanges.

An exchange is closed when a share of its devices answered, the quorum, at the latest at its deadline. With a quorum
below 1, the others may still answer, each until the deadline of its own grant: their reports count in a later exchange
(`ofms.coordinator.stragglers`), and they take part in the one that is opened next.
"""

from __future__ import annotations

import logging
import math
import time

from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.presence import Presence
from ofms.coordinator.sent_messages import Sent, SentMessages
from ofms.coordinator.transport import Clock, Kind, Reply, Transport
from ofms.core.errors import InvalidInput
from ofms.storage.envelope import decode

# Soon after something was sent or received, seldom otherwise: a poll takes some milliseconds of the transport.
_SOONEST_POLL, _LATEST_POLL, _SLOWER = 0.1, 1.0, 1.25
# A device whose program is running answers a welcome immediately.
_JOIN_SECONDS = 5.0
_USUAL_TRAVEL_SECONDS = 10.0
_RETRY_SECONDS = 5.0
# An exchange that opens while the program of a device is started again would leave it out.
_RESTART_SECONDS = 10.0


class Scheduler:
    """Runs the exchanges of a deployment over a transport."""

    def __init__(self, transport: Transport, persistence: PersistentCoordinator, clock: Clock = time) -> None:
        self.transport, self.persistence, self.clock = transport, persistence, clock
        self.coordinator, self.config = persistence.coordinator, persistence.deployment.config
        self.messages = SentMessages(transport, clock, self.config.travel)
        self._presence = Presence(transport, persistence, clock)
        self._invited: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        self._poll_seconds = _SOONEST_POLL

    def run(self) -> None:
        """Run all exchanges up to the horizon; without one, until the server is stopped."""
        persistence, coordinator = self.persistence, self.coordinator
        resumes = f"the server resumes at exchange {coordinator.exchange}"
        persistence.log_event(resumes if coordinator.exchange else "the server starts")
        persistence.log_overridden()
        persistence.run_commands()
        # The deployment's id must be on disk before a device learns it.
        persistence.save()
        self._await_stragglers()
        if not coordinator.finished:
            self._gather()
            persistence.save()
        while not coordinator.finished:
            if persistence.run_commands():
                self._change()
            self._refresh_nodes()
            present = set(persistence.nodes) & coordinator.requests.keys()
            restarting = self._presence.left_within(_RESTART_SECONDS) & coordinator.requests.keys()
            if present and len(present) >= self._quorum(len(present | restarting)):
                persistence.save_messages()
                self._exchange(present)
            else:
                self._invite()
                self._wait()
        persistence.log_event("the server has reached its horizon")
        persistence.save()

    def _change(self) -> None:
        """Welcome the connected devices to a fleet that changed, and wait for their requests."""
        working = self.coordinator.stragglers.outstanding.keys()
        concerned = self.persistence.nodes.keys() - self.coordinator.requests.keys() - working
        self.messages.forget(concerned)
        self._not_before = {client: again for client, again in self._not_before.items() if client not in concerned}
        for client in concerned & self.persistence.declined.keys():
            del self.persistence.declined[client]
        self._gather(connected=True)

    def _gather(self, *, connected: bool = False) -> None:
        """Wait until every device has requested the exchange, or until the deadline; if `connected`, until those did
        that are connected, or were so recently that their programs may be starting again.

        A quorum of them is enough if it includes those that had requested it when the server was killed: they may have
        its grant.
        """
        until, before = self.clock.monotonic() + self.persistence.deadline, set(self.coordinator.requests)
        while self.clock.monotonic() < until:
            self._refresh_nodes()
            expected = (
                self._members() - self.coordinator.stragglers.outstanding.keys() - self.persistence.declined.keys()
            )
            if connected:
                expected &= self.persistence.nodes.keys() | self._presence.left_within(_RESTART_SECONDS)
            ready = expected & self.persistence.nodes.keys() & self.coordinator.requests.keys()
            if len(ready) >= self._quorum(len(expected)) and expected & before <= ready:
                return
            self._invite()
            self._wait()

    def _quorum(self, devices: int) -> int:
        """The number of devices that is enough of so many."""
        # 0.55 * 20 is a little more than 11.
        return math.ceil(self.persistence.quorum * devices - 1e-9)

    def _exchange(self, present: set[int]) -> None:
        exchange = self.coordinator.exchange
        for client, content in self.coordinator.open(present).items():
            self._send(client, "exchange", content, exchange, self.persistence.deadline)
        self._invite()
        deadline = self.clock.monotonic() + self.persistence.deadline
        while self._expects_answers(deadline):
            self._wait()
            self._invite()
        awaited = self.messages.awaiting(exchange=exchange) if self.persistence.quorum < 1 else set()
        self.persistence.close_exchange(awaited)
        self.messages.lost = [sent for sent in self.messages.lost if sent.client in self._working]
        self.messages.forget(self.messages.awaiting() - self._working)

    def _expects_answers(self, deadline: float) -> bool:
        """Whether to wait for answers: to grants, to grants to be resent, or to recent welcomes."""
        now, opened, exchange = self.clock.monotonic(), self.coordinator.opened, self.coordinator.exchange
        assert opened is not None
        waiting = self.messages.waiting.values()
        # With a quorum, nothing holds up those who are ready: also who is welcomed now may request later.
        if self.persistence.quorum < 1 and len(opened.answers) >= self._quorum(len(opened.grants)):
            return False
        recent = _JOIN_SECONDS + _USUAL_TRAVEL_SECONDS
        welcomed = any(sent.kind == "join" and now < sent.sent + recent for sent in waiting)
        if self.persistence.quorum < 1 and self._are_gone(self.messages.awaiting(exchange=exchange)):
            # Their answers may count later, and changes of the fleet wait for the end of the exchange.
            return welcomed and now < deadline
        if any(sent.kind == "exchange" and sent.exchange == exchange for sent in waiting):
            return now < deadline + self.config.travel
        return (any(sent.exchange == exchange for sent in self.messages.lost) or welcomed) and now < deadline

    def _are_gone(self, devices: set[int]) -> bool:
        """Whether all of the devices disconnected, and none so recently that its program may be starting again."""
        return not devices & (self.persistence.nodes.keys() | self._presence.left_within(_RESTART_SECONDS))

    def _members(self) -> set[int]:
        """The devices in the fleet that are not revoked; new ones join before the next exchange."""
        devices = self.persistence.deployment.roster.devices
        return {client for client in self.coordinator.setup.members if not devices[client].revoked}

    @property
    def _working(self) -> set[int]:
        """The devices that still work on a grant of an earlier exchange."""
        return set(self.coordinator.stragglers.outstanding)

    def _await_stragglers(self) -> None:
        """After a restart: ask devices that work on an earlier grant for their answers, once they are connected."""
        now = self.clock.monotonic()
        for client, own in self.coordinator.stragglers.outstanding.items():
            content, deadline = self.coordinator.grant_again(client), now + self.persistence.deadline
            self.messages.lost.append(Sent(client, 0, "exchange", content, own.grants.exchange, now, deadline, now))

    def _give_up(self) -> None:
        """Expect nothing of devices whose messages expired or were answered otherwise; they are welcomed again."""
        now = self.clock.monotonic()
        self.messages.lost = [sent for sent in self.messages.lost if now < sent.deadline or not self._is_late(sent)]
        for client in sorted(self._working - self.messages.awaiting()):
            exchange = self.coordinator.stragglers.outstanding[client].grants.exchange
            self.coordinator.stragglers.withdraw([client])
            self._log(client, f"did not answer exchange {exchange} in time", logging.WARNING)

    def _is_late(self, sent: Sent) -> bool:
        """Whether a message is a grant of an earlier exchange on which its device still works."""
        own = self.coordinator.stragglers.outstanding.get(sent.client)
        return sent.kind == "exchange" and own is not None and own.grants.exchange == sent.exchange

    def _invite(self) -> None:
        """Welcome connected devices that are not in the open exchange and have not requested the next one."""
        self._send_again()
        self._give_up()
        coordinator, now = self.coordinator, self.clock.monotonic()
        requested = coordinator.requests.keys()
        granted = coordinator.opened.grants.keys() if coordinator.opened is not None else set()
        busy = {sent.client for sent in self.messages.waiting.values()} | self._working
        busy |= {client for client, again in self._not_before.items() if now < again}
        for client in sorted((self.persistence.nodes.keys() & self._members()) - busy - granted - requested):
            # Once per exchange: a device whose program is not running would delay the others.
            if coordinator.opened is None or self._invited.get(client) != coordinator.next_exchange:
                self._invited[client] = coordinator.next_exchange
                self._send(client, "join", coordinator.welcome(client), coordinator.next_exchange, _JOIN_SECONDS)

    def _send(self, client: int, kind: Kind, content: bytes, exchange: int, wait: float) -> None:
        node = self.persistence.nodes[client]
        if self.messages.send(client, node, kind, content, exchange, wait) is None:
            now = self.clock.monotonic()
            sent = Sent(client, node, kind, content, exchange, now, now + wait, now)
            self._lose(sent, "was not sent its message: the transport rejected it")
            return
        self._poll_seconds = _SOONEST_POLL
        self.persistence.count(client, down=len(content))
        self._log(client, f"was sent a message of {len(content)} bytes ({kind})", logging.DEBUG)

    def _wait(self) -> None:
        """Process the replies received, or sleep if there are none."""
        replies = self.messages.replies()
        for sent, reply in replies:
            self._take(sent, reply)
        self.messages.drop_expired()
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
        """Log an unanswered message; keep a grant whose answer may still count, to resend it later."""
        self._log(sent.client, reason, logging.WARNING)
        again = self._not_before[sent.client] = self.clock.monotonic() + _RETRY_SECONDS
        if sent.kind == "exchange" and (sent.exchange == self.coordinator.exchange or self._is_late(sent)):
            self.messages.lose(sent, again)

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
            self._note_refusal(sent, f"rejected its message: {envelope.values.get('reason')}")
        elif envelope.kind != "nothing" and requested != self.coordinator.next_exchange and not self._may_be_late(sent):
            self._log(sent.client, f"answered exchange {sent.exchange} too late", logging.WARNING)
        elif envelope.kind != "nothing":
            self.persistence.receive(sent.client, envelope, requested)
            self.persistence.declined.pop(sent.client, None)

    def _note_refusal(self, sent: Sent, reason: str) -> None:
        """Log why a device rejected its message; that of a welcome once, because the next one will be rejected too."""
        if sent.kind != "join" or self.persistence.declined.get(sent.client) != reason:
            self._log(sent.client, reason, logging.WARNING)
        if sent.kind == "join":
            self.persistence.declined[sent.client] = reason
            self.persistence.write_status()
            self._not_before[sent.client] = self.clock.monotonic() + _RETRY_SECONDS

    def _may_be_late(self, sent: Sent) -> bool:
        """Whether the answer to a message of an earlier exchange counts: with a quorum, nobody waited for it."""
        behind = self.coordinator.exchange - sent.exchange
        welcomed = sent.kind == "join" and self.persistence.quorum < 1 and 0 <= behind <= self.coordinator.staleness
        return self._is_late(sent) or welcomed

    def _send_again(self) -> None:
        """Resend lost grants to nodes that reconnected."""
        now, lost = self.clock.monotonic(), self.messages.lost
        for sent in [sent for sent in lost if sent.until <= now and sent.client in self.persistence.nodes]:
            lost.remove(sent)
            self._send(sent.client, sent.kind, sent.content, sent.exchange, max(1.0, sent.deadline - now))

    def _refresh_nodes(self) -> None:
        revoked = self._presence.refresh_nodes()
        if revoked:
            self.messages.forget(revoked)

    def _log(self, client: int, line: str, level: int) -> None:
        name = self.persistence.name(client)
        self.persistence.log_event(f"exchange {self.coordinator.exchange}: {name} {line}", level)
