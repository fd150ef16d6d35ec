"""Which devices are connected, by their keys, and which were revoked since the server started."""

from __future__ import annotations

import contextlib
import logging

from ofms.coordinator.files import POLLED, STATE
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.roster import read_roster
from ofms.coordinator.transport import Clock, Transport
from ofms.core.errors import InvalidInput
from ofms.storage.files import mark_time

_REFRESH_SECONDS = 2.0
_SIGN_SECONDS = 10.0


class Presence:
    """Keeps `persistence.nodes` up to date."""

    def __init__(self, transport: Transport, persistence: PersistentCoordinator, clock: Clock) -> None:
        self._transport, self._persistence, self._clock = transport, persistence, clock
        self._clients = persistence.deployment.roster.public_keys()
        self._next_refresh = self._next_sign = clock.monotonic()
        self._complaint = ""
        self._left: dict[int, float] = {}

    def left_within(self, seconds: float) -> set[int]:
        """The devices that disconnected less than so many seconds ago, and are not connected again."""
        now = self._clock.monotonic()
        return {
            client
            for client, left in self._left.items()
            if now < left + seconds and client not in self._persistence.nodes
        }

    def refresh_nodes(self) -> list[int]:
        """Update the connected devices, at most every two seconds; return the newly revoked ones."""
        now = self._clock.monotonic()
        if now < self._next_refresh:
            return []
        self._next_refresh = now + _REFRESH_SECONDS
        revoked = self._read_revocations()
        persistence = self._persistence
        devices, before = persistence.deployment.roster.devices, persistence.nodes
        found = {}
        connected = self._transport.nodes()
        self._give_sign(now)
        for key, node in connected.items():
            client = self._clients.get(key)
            if client is not None and not devices[client].revoked:
                found[client] = node
        if found != before:
            for client in sorted(before.keys() - found.keys()):
                persistence.log_event(f"{persistence.name(client)} disconnected")
                self._left[client] = now
            persistence.nodes = found
            for client in sorted(found.keys() - before.keys()):
                persistence.log_event(f"{persistence.name(client)} connected")
            persistence.write_status()
        return revoked

    def _give_sign(self, now: float) -> None:
        """Let the health check see that the server app works: without devices, it writes nothing else for days."""
        if now >= self._next_sign:
            self._next_sign = now + _SIGN_SECONDS
            # A full disk is said elsewhere.
            with contextlib.suppress(OSError):
                mark_time(self._persistence.folder / STATE / POLLED)

    def _read_revocations(self) -> list[int]:
        persistence = self._persistence
        try:
            found = read_roster(persistence.folder)
            entries = {entry.name: entry for entry in found.devices}
        except InvalidInput as error:
            # The roster is being edited or is invalid: keep the last valid one.
            if str(error) != self._complaint:
                self._complaint = str(error)
                persistence.log_event(f"keeping the last valid devices: {error}", logging.WARNING)
            return []
        self._complaint = ""
        revoked = []
        devices = persistence.deployment.roster.devices
        if [entry.name for entry in found.devices[: len(devices)]] == [device.name for device in devices]:
            # New ones join before the next exchange.
            devices += found.devices[len(devices) :]
            self._clients = persistence.deployment.roster.public_keys()
        for client, device in enumerate(persistence.deployment.roster.devices):
            entry = entries.get(device.name)
            if entry is not None and entry.revoked and not device.revoked:
                persistence.revoke(client)
                revoked.append(client)
        return revoked
