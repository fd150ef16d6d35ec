"""Several processes of one command on this machine: `--processes`, with the variables that `torchrun` sets."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, TypeVar

import click

from ofms.core.environment import whole_number

# Set for the processes that this module starts: a file into which they write what to do after another one ended.
LAUNCHED = "OFMS_LAUNCHED"
# The status of a process that ended because another one did.
PEER_ENDED = 70
# Whether processes are forks of the one that starts them, which has then imported PyTorch for all of them. On other
# systems than Linux, libraries that PyTorch and NumPy use do not work in a fork.
FORKS = sys.platform == "linux"
_GRACE_SECONDS, _POLL_SECONDS = 15.0, 0.05
Command = TypeVar("Command", bound=Callable[..., Any])


def processes_option(text: str) -> Callable[[Command], Command]:
    return click.option("--processes", type=click.IntRange(1), metavar="N", help=text)


def are_started() -> bool:
    """Whether this is one of several processes, of `torchrun` or of this module."""
    return whole_number("WORLD_SIZE", 1) > 1


def start_if_asked(processes: int | None, *modules: str, remedy: str = "") -> None:
    """Start the processes of this command and end with their status, unless this is one of them.

    `modules` are those that each of the processes imports, `remedy` what to do after one was killed, unless another one
    notes something else.
    """
    if LAUNCHED in os.environ:
        watch_parent(os.getppid())
    elif processes is not None and are_started():
        raise click.UsageError(f"--processes {processes}: torchrun starts the processes; leave it out")
    elif processes is not None and processes > 1:
        status = start_processes(processes, modules, remedy)
        if status is not None:
            raise click.exceptions.Exit(status)
    elif are_started():
        _quiet_pytorch()


def own_rank() -> int | None:
    """The number of this process, if it is one of several."""
    return whole_number("RANK", 0) if are_started() else None


def is_connected() -> bool:
    """Whether this process has connections to others; no PyTorch, no connections."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_initialized()


def own_workers(workers: int | None) -> int | None:
    """The number of threads of this process: by default, those of a machine divide its cores."""
    here = whole_number("LOCAL_WORLD_SIZE", 1)
    return max(1, (os.cpu_count() or 1) // here) if workers is None and here > 1 else workers


def start_processes(count: int, modules: Sequence[str] = (), remedy: str = "") -> int | None:
    """Run this command in so many processes, which return None; return their status once all have ended.

    If one fails, the others end too.
    """
    # Imports `random`, which a file beside the experiment must not replace.
    import shutil
    import tempfile

    from ofms.storage.files import write_whole

    _quiet_pytorch()
    for module in modules if FORKS else ():
        import_module(module)
    parent, children = os.getpid(), list[_Child]()
    folder = Path(tempfile.mkdtemp(prefix="ofms-"))
    note = folder / "note"
    if remedy:
        write_whole(note, remedy.encode())
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        LAUNCHED: str(note),
    }
    if Path("/sys/class/net/lo").exists() and "GLOO_SOCKET_IFNAME" not in os.environ:
        shared["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        for rank in range(count):
            own = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            errors = None if rank == 0 else _temporary()
            pid = _fork(own, errors) if FORKS else _spawn(own, errors)
            if pid == 0:
                watch_parent(parent)
                return None
            children.append(_Child(rank, pid, errors))
        with _Forwarded(children):
            return _wait(children, note)
    finally:
        # A signal may also end a fork before it has left this block.
        if os.getpid() == parent:
            for child in children:
                child.kill()
            shutil.rmtree(folder, ignore_errors=True)


def watch_parent(parent: int) -> None:
    """End this process when the one that started it is gone."""

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


def _quiet_pytorch() -> None:
    """Before PyTorch is imported: the line of an error says what its warnings would."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")


def _fork(variables: Mapping[str, str], errors: IO[bytes] | None) -> int:
    """A copy of this process, which goes on with the command; its number, 0 in the copy itself.

    The copy has only the thread that calls this. There is no other one but those of NumPy's linear algebra, which stops
    them before a fork; PyTorch starts its threads with its first parallel operation.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    os.environ.update(variables)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    if errors is not None:
        os.dup2(null, 1)
        os.dup2(errors.fileno(), 2)
    os.close(null)
    return 0


def _spawn(variables: Mapping[str, str], errors: IO[bytes] | None) -> int:
    """A new process with this command; its number."""
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    if errors is not None:
        actions += [
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, errors.fileno(), 2),
        ]
    command = [sys.executable, "-m", "ofms", *sys.argv[1:]]
    return os.posix_spawn(sys.executable, command, os.environ | dict(variables), file_actions=actions)


class _Child:
    """A process; what others than the first print to standard error is kept until it is known which one failed."""

    def __init__(self, rank: int, pid: int, errors: IO[bytes] | None) -> None:
        self.rank, self._pid, self._errors = rank, pid, errors
        self._status: int | None = None

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._wait(os.WNOHANG)

    def send_signal(self, number: int) -> None:
        # Signals arrive at any time: here nothing is asked that `status` may be asking.
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def last_line(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("ofms: ") if lines else ""

    def kill(self) -> None:
        if self.status is None:
            self.send_signal(signal.SIGKILL)
            self._wait()
        if self._errors is not None:
            self._errors.close()

    def _wait(self, options: int = 0) -> int | None:
        if self._status is None:
            ended, status = os.waitpid(self._pid, options)
            self._status = os.waitstatus_to_exitcode(status) if ended else None
        return self._status


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
            child.send_signal(number)


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
