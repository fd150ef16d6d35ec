"""Flower's processes, with the flags that a deployment needs; what is started here is ended here."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ofms.coordinator.files import AUTHORITY, CERTIFICATE, CERTIFICATE_KEY, DEVICE_KEY, FLOWER
from ofms.core.errors import InvalidInput

_STOP_SECONDS = 10.0
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BEFORE_AGAIN = 5.0
# A SuperNode whose run ended while it took a message answers every later one with the reply to the one before.
_MIXED_UP = "Ignoring message"
_PR_SET_PDEATHSIG = 1


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(home: Path) -> dict[str, str]:
    """What Flower's processes are started with: no telemetry, no look for updates, its files in a folder of ours."""
    home.mkdir(parents=True, exist_ok=True)
    # They start each other by name.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return os.environ | {
        "PATH": path,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
    }


def superlink_command(folder: Path, host: str, port: int) -> list[str]:
    """The SuperLink of a deployment, with TLS, and with nodes that must show who they are."""
    options = {
        "--ssl-certfile": str(folder / CERTIFICATE),
        "--ssl-keyfile": str(folder / CERTIFICATE_KEY),
        "--ssl-ca-certfile": str(folder / AUTHORITY),
        "--database": str(folder / FLOWER / "superlink.db"),
        "--host": host,
        "--port": str(port),
    }
    flags = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    flat = [part for option in options.items() for part in option]
    return [sys.executable, "-m", "ofms.flower.superlink", *flat, *flags]


def supernode_command(device: Path, store: Path, server: str, port: int) -> list[str]:
    """The SuperNode of a device, whose folder has its key and the fleet's authority."""
    if "'" in str(store):
        raise InvalidInput("store", store, "Flower takes no path with a quote in it; name another")
    options = {
        "--superlink": server,
        "--root-certificates": str(device / AUTHORITY),
        "--auth-supernode-private-key": str(device / DEVICE_KEY),
        "--node-config": f"store='{store}'",
        "--port": str(port),
    }
    return [str(Path(sys.executable).parent / "flower-supernode"), *(part for each in options.items() for part in each)]


class Process:
    """A process with all that it starts; its output goes to a file or to a pipe."""

    def __init__(self, command: list[str], home: Path, log: Path | int, **variables: str) -> None:
        self.log = log
        with open(log, "ab") if isinstance(log, Path) else contextlib.nullcontext(log) as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(home) | variables,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        # With the time at which each began: a number alone may be another process's by now.
        self._family: dict[int, str] = {}
        self._remember()

    def lines(self) -> Iterator[str]:
        """What it prints, where that goes to a pipe, until it ends."""
        if self._process.stdout is None:
            return
        pipe, rest = self._process.stdout.fileno(), b""
        # Its children have the pipe too, and may outlive it: its end says nothing.
        while not self.ended:
            if select.select([pipe], [], [], _SECONDS_BETWEEN_LOOKS)[0]:
                *whole, rest = (rest + os.read(pipe, 65536)).split(b"\n")
                yield from (line.decode(errors="replace") for line in whole)
        while select.select([pipe], [], [], 0)[0] and (content := os.read(pipe, 65536)):
            *whole, rest = (rest + content).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it ended; what it started meanwhile is remembered, to be ended too."""
        if self._process.poll() is not None:
            return True
        self._remember()
        return False

    def last_lines(self, count: int = 3) -> str:
        """The end of what it printed."""
        if not isinstance(self.log, Path):
            return ""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])
        return ""

    def stop(self) -> None:
        """End it and whatever it started: asked first, then made to."""
        self._remember()
        self._signal(signal.SIGTERM)
        until = time.monotonic() + _STOP_SECONDS
        while (self._process.poll() is None or self._family) and time.monotonic() < until:
            self._forget_ended()
            time.sleep(0.1)
        self.kill()

    def kill(self) -> None:
        """End it and whatever it started at once, as a power cut would."""
        self._remember()
        self._signal(signal.SIGKILL)
        self._process.wait()
        until = time.monotonic() + _STOP_SECONDS
        while self._family and time.monotonic() < until:
            time.sleep(0.01)
            self._forget_ended()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _remember(self) -> None:
        """What it started so far and is still there; it may be somebody else's child by the time that it must end."""
        if self._process.poll() is None:
            for pid in descendants(self._process.pid):
                if began := _began(pid):
                    self._family[pid] = began
        self._forget_ended()

    def _forget_ended(self) -> None:
        self._family = {pid: began for pid, began in self._family.items() if _began(pid) == began}

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
        for pid, began in self._family.items():
            if _began(pid) == began:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)


def keep_node(command: list[str], home: Path, tell: Callable[[str], None]) -> None:
    """Run a SuperNode, and start it again whenever it ends: a server may be away, or still think that it is here."""
    while True:
        process = Process(command, home, subprocess.PIPE)
        try:
            for line in process.lines():
                tell(line)
                if _MIXED_UP in line:
                    break
        finally:
            process.stop()
        tell(f"the SuperNode ended; it starts again in {_SECONDS_BEFORE_AGAIN:.0f} s")
        time.sleep(_SECONDS_BEFORE_AGAIN)


def descendants(pid: int) -> set[int]:
    """The processes that a process started, and those that they did; Linux alone."""
    children: dict[int, list[int]] = {}
    for parent, child in _parents():
        children.setdefault(parent, []).append(child)
    found: set[int] = set()
    frontier = [pid]
    while frontier:
        for child in children.get(frontier.pop(), []):
            if child not in found:
                found.add(child)
                frontier.append(child)
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_text().rsplit(")", 1)[1].split()
            yield int(fields[1]), int(stat.parent.name)


def _began(pid: int) -> str | None:
    """When a process began, None where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] == "Z" else fields[19]


def _die_with_parent() -> None:
    """So that nothing is left behind, even where the parent is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
