"""A transport in memory with devices behind it, and a clock that moves in `sleep` alone."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count

from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.transport import Kind, Reply
from ofms.storage.envelope import decode
from tests.deployments import DirectFleet

TRAVEL_SECONDS = 1.0
_LONGEST_TEST = 3600.0


class FakeClock:
    """Time passes in `sleep` alone; actions run at their time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._actions: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        until = self.now + seconds
        assert until < _LONGEST_TEST, "the scheduler waits for an event that never happens"
        while self._actions and self._actions[0][0] <= until:
            self.now, _, action = heapq.heappop(self._actions)
            action()
        self.now = until

    def at(self, when: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._actions, (when, next(self._order), action))


class MemoryTransport:
    """Nodes of a deployment in memory; node ids are client numbers plus 10."""

    def __init__(self, clock: FakeClock, persistence: PersistentCoordinator, fleet: DirectFleet) -> None:
        self.clock, self.fleet = clock, fleet
        self._keys = {client: key for key, client in persistence.deployment.roster.public_keys().items()}
        self._schedule = persistence.coordinator.fleet.schedule
        self.connected = set(self._keys)
        # Seconds until the answer, by client, kind and exchange of the message; None for no answer.
        self.delay: Callable[[int, Kind, int], float | None] = lambda client, kind, exchange: 0.0
        # Changes to the replies of a client.
        self.changes: dict[int, Callable[[Reply], Reply]] = {}
        # Clients whose next grant is not accepted.
        self.full_for: set[int] = set()
        self.sent: list[tuple[float, int, Kind, bytes]] = []
        self._replies: dict[str, tuple[float, Reply]] = {}
        self._numbers = count(1)

    def nodes(self) -> dict[bytes, int]:
        return {self._keys[client]: client + 10 for client in self.connected}

    def send(self, node: int, kind: Kind, content: bytes, *, wait: float, lifetime: float) -> str | None:
        client, number = node - 10, f"message-{next(self._numbers)}"
        if client not in self.connected or (kind == "exchange" and client in self.full_for):
            self.full_for.discard(client)
            return None
        self.sent.append((self.clock.now, client, kind, content))
        delay = self.delay(client, kind, int(decode(content).values["exchange"]))
        if delay is not None:
            reply = Reply(number, node, self.answer(client, kind, content))
            if client in self.changes:
                reply = self.changes[client](reply)
            self._replies[number] = (self.clock.now + TRAVEL_SECONDS + delay, reply)
        return number

    def receive(self, messages: Iterable[str]) -> list[Reply]:
        due = [number for number in messages if number in self._replies and self._replies[number][0] <= self.clock.now]
        return [self._replies.pop(number)[1] for number in due]

    def disconnect(self, client: int) -> None:
        """The node disappears, and its messages are lost."""
        self.connected.discard(client)
        for number, (_, reply) in self._replies.items():
            if reply.node == client + 10:
                self._replies[number] = (self.clock.now, Reply(number, reply.node, error="node unavailable", lost=True))

    def connect(self, client: int) -> None:
        self.connected.add(client)

    def grants_to(self, client: int) -> list[bytes]:
        return [content for _, each, kind, content in self.sent if each == client and kind == "exchange"]

    def answer(self, client: int, kind: Kind, content: bytes) -> bytes | None:
        """Deliver a message to a device, which labels the samples of a granted exchange; its answer."""
        device = self.fleet.devices[client]
        device.receive(content)
        if kind == "exchange" and device.collect() is None:
            self.fleet.label(client, range(*self._schedule.span(device.exchange)))
        return device.collect()
