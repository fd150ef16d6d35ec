"""Processes of a deployment: Flower's commands with the flags they need, and process trees that end together."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from ofms.coordinator.files import AUTHORITY, CERTIFICATE, CERTIFICATE_KEY, DEVICE_KEY, FLOWER
from ofms.core.errors import InvalidInput
from ofms.storage.locks import FolderLock
from ofms.storage.private import require_private

_STOP_SECONDS = 10.0
_POLL_SECONDS = 1.0
_RESTART_SECONDS = 5.0
# Logged by a SuperNode whose run ended while it received a message: from then on it answers each message with the
# reply to the previous one.
_MIXED_UP = "Ignoring message"
_PR_SET_PDEATHSIG = 1
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FLOWER_LINE = re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*: ")
_log = logging.getLogger("ofms.node")


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's processes: no telemetry, no update check, its files in `home`."""
    require_private(home)
    # Flower's processes start each other by name.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return os.environ | {
        "PATH": path,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
    }


def superlink_command(folder: Path, host: str, port: int) -> list[str]:
    """The command of a deployment's SuperLink, with TLS and authentication of nodes."""
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
    """The command of a device's SuperNode; the device's folder has its key and the fleet's authority."""
    if "'" in str(store):
        raise InvalidInput("store", store, "Flower accepts no path with a quote; choose another")
    options = {
        "--superlink": server,
        "--root-certificates": str(device / AUTHORITY),
        "--auth-supernode-private-key": str(device / DEVICE_KEY),
        "--node-config": f"store='{store}'",
        "--port": str(port),
    }
    return [sys.executable, "-m", "ofms.flower.supernode", *(part for each in options.items() for part in each)]


class Process:
    """A process with its descendants; its output goes to a file or to a pipe."""

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
        self._root = psutil.Process(self._process.pid)
        # Descendants seen so far: they may be re-parented before they are stopped. psutil compares start times, so that
        # a reused process id is not mistaken for one of them.
        self._family: set[psutil.Process] = set()
        self._session_searched = False
        self._remember()

    def lines(self) -> Iterator[str]:
        """Lines of its output until it ends, if the output goes to a pipe."""
        if self._process.stdout is None:
            return
        pipe, rest = self._process.stdout.fileno(), b""
        # Its children inherit the pipe and may outlive it, so end-of-file does not mark its end.
        while not self.ended:
            if select.select([pipe], [], [], _POLL_SECONDS)[0]:
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
        """Whether it ended; records its descendants, to stop them too."""
        self._remember()
        return self._process.poll() is not None

    def runs(self, command: str) -> bool:
        """Whether a descendant runs whose command line contains a text."""
        self._remember()
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if command in " ".join(process.cmdline()):
                    return True
        return False

    def last_lines(self, count: int = 3) -> str:
        """The last lines of its log."""
        if not isinstance(self.log, Path):
            return ""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])
        return ""

    def stop(self) -> None:
        """Terminate it and its descendants; kill those that do not end in time."""
        self._signal(signal.SIGTERM)
        until = time.monotonic() + _STOP_SECONDS
        while (self._process.poll() is None or any(map(_is_alive, self._family))) and time.monotonic() < until:
            time.sleep(0.1)
        self.kill()

    def kill(self) -> None:
        """Kill it and its descendants immediately, like a power failure."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        until = time.monotonic() + _STOP_SECONDS
        while any(map(_is_alive, self._family)) and time.monotonic() < until:
            time.sleep(0.01)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _remember(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._family |= set(self._root.children(recursive=True))
        elif not self._session_searched:
            # Killed before its children were seen: they are in the session that it led.
            self._session_searched = True
            self._family |= {process for process in psutil.process_iter() if _session_of(process) == self.pid}
        self._family = {process for process in self._family if _is_alive(process)}

    def _signal(self, number: int) -> None:
        self._remember()
        if self._process.poll() is None:
            self._process.send_signal(number)
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process.send_signal(number)


def keep_node(command: list[str], home: Path, echo: Callable[[str], None]) -> None:
    """Run a SuperNode, restarting it when it ends: the server may be unreachable or still consider it connected."""
    require_private(home)
    # A second one with the same key would be rejected by the server, and restarted for ever.
    with contextlib.closing(FolderLock(home)):
        while True:
            process = Process(command, home, subprocess.PIPE)
            try:
                for line in process.lines():
                    echo(line)
                    if _MIXED_UP in line:
                        break
            finally:
                process.stop()
            echo(f"the SuperNode ended; restarting in {_RESTART_SECONDS:.0f} s")
            time.sleep(_RESTART_SECONDS)


def relay_line(line: str) -> None:
    """Log a line of Flower's output through `logging`, with the level that it names."""
    plain = _COLOURS.sub("", line)
    found = _FLOWER_LINE.match(plain)
    level = logging.getLevelNamesMapping()[found["level"] if found is not None else "INFO"]
    _log.log(level, "%s", plain[found.end() :].strip() if found is not None else plain)


def descendants(pid: int) -> set[int]:
    """Ids of the processes that a process started, directly or not."""
    try:
        return {process.pid for process in psutil.Process(pid).children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def _is_alive(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        return None


def _die_with_parent() -> None:
    """Ask the kernel to terminate this process when its parent is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
