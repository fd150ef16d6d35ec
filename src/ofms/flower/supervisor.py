"""`ofms deploy server`: runs the SuperLink, registers the devices' keys, and restarts a server app that ends early."""

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

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.files import AUTHORITY, EVENTS, FLOWER, split_address
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.roster import read_roster
from ofms.coordinator.watch.server import WatchServer, start_watch
from ofms.core.errors import InvalidInput, ProcessEnded
from ofms.flower.control import Control
from ofms.flower.processes import Process, superlink_command
from ofms.flower.sizes import bound_file, largest_reply, write_bound
from ofms.storage.locks import FolderLock
from ofms.storage.private import require_private

_POLL_SECONDS = 1.0
_REFRESH_SECONDS = 2.0
_START_SECONDS = 60.0
_MOST_FAILURES = 3
# Part of the server app's command line, and how often its process is not found before it counts as ended.
_SERVER_APP, _MOST_MISSING = "flwr-serverapp", 2
# Flower would log each node's poll, every three seconds.
_QUIET = {"FLWR_LOG_LEVEL": os.environ.get("FLWR_LOG_LEVEL", "WARNING")}


class Supervisor:
    """Runs a deployment's server until it reaches its horizon, if it has one, or is stopped.

    Parameters
    ----------
    listen
        The address to listen on; by default all interfaces, or loopback if the server's address is loopback.
    echo
        Called with each new line of the event log.
    """

    def __init__(self, folder: Path, *, listen: str | None = None, echo: Callable[[str], None] = print) -> None:
        self.deployment = Deployment(folder)
        self.folder, self._echo = self.deployment.folder, echo
        # Report configuration errors before starting anything.
        catalogue = PersistentCoordinator(self.deployment, read_only=True).coordinator.fleet.catalogue
        self._largest_reply = largest_reply(catalogue)
        host, self.port = split_address(self.deployment.config.address)
        self.listen = listen or ("127.0.0.1" if host in ("127.0.0.1", "localhost") else "0.0.0.0")
        self._home = self.folder / FLOWER
        require_private(self._home)
        self._lock = FolderLock(self._home)
        self._events_file, self._echoed = self._events_position()
        self._superlink: Process | None = None
        self._control: Control | None = None
        self._watch: WatchServer | None = None
        self._registered: set[bytes] | None = None
        self._run = 0
        # How often the server app's process was not found; None before it started.
        self._missing: int | None = None
        self._refreshed = 0.0

    def __enter__(self) -> Self:
        log = self._home / "superlink.log"
        host = "127.0.0.1" if self.listen in ("0.0.0.0", "::") else self.listen
        try:
            # First, so that a port in use is said before any process starts.
            config = self.deployment.config
            self._watch = start_watch(self.folder, config.watch, [split_address(config.address)[0]])
            command = superlink_command(self.folder, self.listen, self.port)
            write_bound(self.folder, self._largest_reply)
            own = {"OFMS_EVENTS": str(self.folder / EVENTS), "OFMS_LARGEST_REQUEST": str(bound_file(self.folder))}
            self._superlink = Process(command, self._home, log, **own, **_QUIET)
            _wait_for_answer(self._superlink, host, self.port, self.folder / AUTHORITY)
            self._control = Control(host, self.port, self.folder / AUTHORITY)
            self._register_devices()
            self._control.stop_all()
            self._run = self._control.start(self.folder)
        except httpx.HTTPError as error:
            self._stop()
            raise ProcessEnded(f"a request to the SuperLink failed: {error}; see {log}") from None
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run(self) -> None:
        """Run to the horizon if there is one; a server app that ends early is restarted from its checkpoint."""
        failures, reached = 0, self._exchange()
        while True:
            how = self.poll()
            if how == "completed":
                return
            if how is not None:
                failures = failures + 1 if self._exchange() == reached else 1
                reached = self._exchange()
                if failures >= _MOST_FAILURES:
                    raise ProcessEnded(f"the server app ended {failures} times without completing an exchange: {how}")
                self._echo(f"the server app ended ({how}); restarting it")
                self._start()
            time.sleep(_POLL_SECONDS)

    def poll(self) -> str | None:
        """Echo new events and exclude revoked devices; return how the server app ended, None while it runs."""
        if self._superlink is None or self._control is None:
            raise RuntimeError("the server was not started")
        if self._superlink.ended:
            raise ProcessEnded(f"the SuperLink ended; {self._superlink.log}:\n{self._superlink.last_lines()}")
        self._echo_events()
        now = time.monotonic()
        if now - self._refreshed < _REFRESH_SECONDS:
            return None
        self._refreshed = now
        with contextlib.suppress(httpx.HTTPError):
            self._register_devices()
            how = self._control.ended(self._run)
            if how is None and self._is_app_gone(self._superlink):
                self._control.stop(self._run)
                how = "its process was killed"
            return how
        return None

    @property
    def pid(self) -> int:
        """The process id of the SuperLink, which starts the apps."""
        if self._superlink is None:
            raise RuntimeError("the server was not started")
        return self._superlink.pid

    def kill(self) -> None:
        """Kill all processes immediately, like a power failure."""
        if self._superlink is not None:
            self._superlink.kill()
        self._stop()

    def _start(self) -> None:
        if self._control is not None:
            self._missing = None
            self._run = self._control.start(self.folder)

    def _is_app_gone(self, superlink: Process) -> bool:
        """Whether the server app's process has ended without notice: Flower would notice a minute later."""
        if superlink.runs(_SERVER_APP):
            self._missing = 0
        elif self._missing is not None:
            self._missing += 1
        return self._missing is not None and self._missing >= _MOST_MISSING

    def _register_devices(self) -> None:
        """Register the keys of the devices, and unregister revoked ones."""
        if self._control is None:
            return
        try:
            roster = read_roster(self.folder)
        except InvalidInput:
            return  # The roster is being edited or is invalid, which the server app logs: keep the last valid one.
        wanted = {key: roster.devices[client] for key, client in roster.public_keys().items()}
        active = {key for key, device in wanted.items() if not device.revoked}
        if self._registered == active:
            return
        there = self._control.nodes()
        for key, node in there.items():
            if key not in active:
                self._control.unregister(node)
        for key in active - there.keys():
            self._control.register(key + b"\n", wanted[key].name)
        self._registered = active

    def _echo_events(self) -> None:
        with contextlib.suppress(FileNotFoundError), open(self.folder / EVENTS, "rb") as events:
            found = os.fstat(events.fileno())
            if found.st_ino != self._events_file or found.st_size < self._echoed:
                # Another file since the log was rotated, or the same one, emptied.
                self._events_file, self._echoed = found.st_ino, 0
            events.seek(self._echoed)
            whole, newline, _ = events.read().rpartition(b"\n")
            self._echoed += len(whole) + len(newline)
            for line in whole.decode(errors="replace").splitlines():
                self._echo(line)

    def _events_position(self) -> tuple[int, int]:
        """The file of the event log and its size."""
        with contextlib.suppress(FileNotFoundError):
            found = (self.folder / EVENTS).stat()
            return found.st_ino, found.st_size
        return 0, 0

    def _exchange(self) -> int:
        with contextlib.suppress(InvalidInput):
            return PersistentCoordinator(self.deployment, read_only=True).coordinator.exchange
        return -1

    @property
    def page(self) -> str | None:
        """The address of the page that shows the fleet; None if it is switched off."""
        return None if self._watch is None else self._watch.url

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._superlink is not None:
            self._superlink.stop()
        if self._control is not None:
            self._control.__exit__(None, None, None)
        self._echo_events()
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
