"""`ofms deploy server`: the SuperLink, the devices' keys in it, and the server app, started again if it ends early."""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from ofms.coordinator.deployment import Deployment, read_roster
from ofms.coordinator.files import AUTHORITY, EVENTS, FLOWER, split_address
from ofms.coordinator.keys import pem_of
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.core.errors import InvalidInput, ProcessEnded
from ofms.flower.control import Control
from ofms.flower.processes import Process, superlink_command
from ofms.storage.files import require_writable
from ofms.storage.locks import FolderLock

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BETWEEN_QUESTIONS = 2.0
_START_SECONDS = 60.0
_MOST_FAILURES = 3
# Every node asks every three seconds, and Flower would say so.
_QUIET = {"FLWR_LOG_LEVEL": os.environ.get("FLWR_LOG_LEVEL", "WARNING")}


class Supervisor:
    """Runs a deployment's server until it reaches its horizon or is stopped.

    Parameters
    ----------
    listen
        The address to listen on; by default all of them, or loopback where that is where devices find the server.
    tell
        Gets the lines of the log as they come.
    """

    def __init__(self, folder: Path, *, listen: str | None = None, tell: Callable[[str], None] = print) -> None:
        self.deployment = Deployment(folder)
        self.folder, self._tell = self.deployment.folder, tell
        # Whatever is wrong with it is said before anything starts.
        PersistentCoordinator(self.deployment, look_only=True)
        host, self.port = split_address(self.deployment.config.address)
        self.listen = listen or ("127.0.0.1" if host in ("127.0.0.1", "localhost") else "0.0.0.0")
        self._home = self.folder / FLOWER
        require_writable(self._home)
        self._lock = FolderLock(self._home)
        self._told = self._events_size()
        self._superlink: Process | None = None
        self._control: Control | None = None
        self._run = 0
        self._asked = 0.0

    def __enter__(self) -> Self:
        log = self._home / "superlink.log"
        host = "127.0.0.1" if self.listen in ("0.0.0.0", "::") else self.listen
        try:
            command = superlink_command(self.folder, self.listen, self.port)
            self._superlink = Process(command, self._home, log, OFMS_EVENTS=str(self.folder / EVENTS), **_QUIET)
            _wait_for_answer(self._superlink, host, self.port, self.folder / AUTHORITY)
            self._control = Control(host, self.port, self.folder / AUTHORITY)
            self._let_in()
            self._run = self._control.start(self.folder)
        except httpx.HTTPError as error:
            self._stop()
            raise ProcessEnded(f"the SuperLink does not do what it is asked: {error}; see {log}") from None
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run(self) -> None:
        """Until the horizon; a server app that ends early is started again from its checkpoint."""
        failures, reached = 0, self._exchange()
        while True:
            how = self.look()
            if how == "completed":
                return
            if how is not None:
                failures = failures + 1 if self._exchange() == reached else 1
                reached = self._exchange()
                if failures >= _MOST_FAILURES:
                    raise ProcessEnded(f"the server app ended {failures} times without an exchange: {how}")
                self._tell(f"the server app ended ({how}); starting it again")
                self._start()
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def look(self) -> str | None:
        """Pass on new lines of the log, shut out who was revoked; how the server app ended, where it did."""
        if self._superlink is None or self._control is None:
            raise RuntimeError("the server was not started")
        if self._superlink.ended:
            raise ProcessEnded(f"the SuperLink ended; {self._superlink.log}:\n{self._superlink.last_lines()}")
        self._pass_on()
        now = time.monotonic()
        if now - self._asked < _SECONDS_BETWEEN_QUESTIONS:
            return None
        self._asked = now
        with contextlib.suppress(httpx.HTTPError):
            self._let_in()
            return self._control.ended(self._run)
        return None

    @property
    def pid(self) -> int:
        """The SuperLink's process, whose children the apps are."""
        if self._superlink is None:
            raise RuntimeError("the server was not started")
        return self._superlink.pid

    def kill(self) -> None:
        """End everything at once, as a power cut would."""
        if self._superlink is not None:
            self._superlink.kill()
        self._stop()

    def _start(self) -> None:
        if self._control is not None:
            self._run = self._control.start(self.folder)

    def _let_in(self) -> None:
        """Register the devices' keys; those that were revoked go."""
        if self._control is None:
            return
        try:
            devices = read_roster(self.folder).devices
        except InvalidInput:
            return  # Somebody is at it; the server app says so.
        wanted = {pem_of(device.key).strip(): device for device in devices}
        if self._registered == {key for key, device in wanted.items() if not device.revoked}:
            return
        there = self._control.nodes()
        for key, node in there.items():
            if key not in wanted or wanted[key].revoked:
                self._control.unregister(node)
        for key, device in wanted.items():
            if not device.revoked and key not in there:
                self._control.register(key + b"\n", device.name)
        self._registered = {key for key, device in wanted.items() if not device.revoked}

    _registered: set[bytes] | None = None

    def _pass_on(self) -> None:
        with contextlib.suppress(FileNotFoundError), open(self.folder / EVENTS, "rb") as events:
            events.seek(self._told)
            whole, newline, _ = events.read().rpartition(b"\n")
            self._told += len(whole) + len(newline)
            for line in whole.decode(errors="replace").splitlines():
                self._tell(line)

    def _events_size(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / EVENTS).stat().st_size
        return 0

    def _exchange(self) -> int:
        with contextlib.suppress(InvalidInput):
            return PersistentCoordinator(self.deployment, look_only=True).coordinator.exchange
        return -1

    def _stop(self) -> None:
        if self._superlink is not None:
            self._superlink.stop()
        if self._control is not None:
            self._control.__exit__(None, None, None)
        self._pass_on()
        self._lock.close()


def _wait_for_answer(process: Process, host: str, port: int, authority: Path) -> None:
    """Wait until a SuperLink answers."""
    until = time.monotonic() + _START_SECONDS
    with httpx.Client(verify=ssl.create_default_context(cafile=str(authority))) as client:
        while time.monotonic() < until:
            if process.ended:
                break
            with contextlib.suppress(httpx.HTTPError):
                if client.get(f"https://{host}:{port}/health").status_code < 500:
                    return
            time.sleep(0.1)
    raise ProcessEnded(f"the SuperLink does not answer at {host}:{port}; {process.log}:\n{process.last_lines()}")
