"""Several processes of one command on this machine: `--processes`, with the variables that `torchrun` sets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import click

# Set for the processes that this module starts: a file into which they write what to do after another one ended.
LAUNCHED = "OFMS_LAUNCHED"
# The status of a process that ended because another one did.
PEER_ENDED = 70
_GRACE_SECONDS, _POLL_SECONDS = 5.0, 0.05
Command = TypeVar("Command", bound=Callable[..., Any])


def processes_option(text: str) -> Callable[[Command], Command]:
    return click.option("--processes", type=click.IntRange(1), metavar="N", help=text)


def are_started() -> bool:
    """Whether this is one of several processes, of `torchrun` or of this module."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def start_if_asked(processes: int | None) -> None:
    """Start the processes of this command and end with their status, unless this is one of them."""
    if are_started():
        # Before PyTorch is imported: the line of an error says what its warnings would.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    if LAUNCHED in os.environ:
        watch_parent()
    elif processes is not None and are_started():
        raise click.UsageError(f"--processes {processes}: torchrun starts the processes; leave it out")
    elif processes is not None and processes > 1:
        raise click.exceptions.Exit(start_processes(processes, sys.argv[1:]))


def own_rank() -> int | None:
    """The number of this process, if it is one of several."""
    return int(os.environ.get("RANK", "0")) if are_started() else None


def own_workers(workers: int | None) -> int | None:
    """The number of threads of this process: by default, those of a machine divide its cores."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, (os.cpu_count() or 1) // here) if workers is None and here > 1 else workers


def start_processes(count: int, arguments: Sequence[str]) -> int:
    """Run the command in so many processes; return its status once all have ended. If one fails, so do the others."""
    # Imports `random`, which a file beside the experiment must not replace.
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ofms-") as folder:
        note = Path(folder) / "note"
        port, children = _free_port(), list[_Child]()
        shared = os.environ | {
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            LAUNCHED: str(note),
        }
        if Path("/sys/class/net/lo").exists():
            shared.setdefault("GLOO_SOCKET_IFNAME", "lo")
        try:
            for rank in range(count):
                children.append(_Child(rank, arguments, shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}))
            with _Forwarded(children):
                return _wait(children, note)
        finally:
            for child in children:
                child.kill()


def watch_parent() -> None:
    """End this process when the one that started it is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(PEER_ENDED)

    threading.Thread(target=watch, daemon=True).start()


def peer_ended(notes: Sequence[str]) -> int:
    """Note what to do after another process ended, for the process that started both; the status."""
    from ofms.storage.files import write_whole

    if notes:
        write_whole(Path(os.environ[LAUNCHED]), notes[-1].encode())
    return PEER_ENDED


class _Child:
    """A process; what others than the first print to standard error is kept until it is known which one failed."""

    def __init__(self, rank: int, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.rank, self._errors = rank, None if rank == 0 else _temporary()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ofms", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=None if rank == 0 else subprocess.DEVNULL,
            stderr=self._errors,
        )

    @property
    def status(self) -> int | None:
        return self.process.poll()

    def last_line(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("ofms: ") if lines else ""

    def kill(self) -> None:
        if self.status is None:
            self.process.kill()
            self.process.wait()
        if self._errors is not None:
            self._errors.close()


class _Forwarded:
    """Context in which signals to stop reach all processes, which stop together."""

    def __init__(self, children: Sequence[_Child]) -> None:
        self._children, self._before = children, dict[int, Any]()

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._forward)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _forward(self, number: int, frame: object) -> None:
        for child in self._children:
            if child.status is None:
                child.process.send_signal(number)


def _wait(children: Sequence[_Child], note: Path) -> int:
    failed_at: float | None = None
    while any(child.status is None for child in children):
        if failed_at is None and any(child.status for child in children):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > _GRACE_SECONDS:
            break
        time.sleep(_POLL_SECONDS)
    causes = [child for child in children if child.status not in (None, 0, PEER_ENDED)]
    if not causes:
        return max((child.status or 0 for child in children), default=0)
    cause = min(causes, key=lambda child: (child.status or 0) >= 128)
    status = cause.status or 0
    further = [note.read_text()] if note.exists() else []
    if status < 0:
        what = f"process {cause.rank + 1} of {len(children)} was ended by {signal.Signals(-status).name}"
        click.echo(f"ofms: {'; '.join([what, *further])}", err=True)
        return 1
    if line := cause.last_line():
        click.echo(f"ofms: {line}", err=True)
    return status


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _temporary() -> IO[bytes]:
    import tempfile

    return tempfile.TemporaryFile()
