"""The folder that a run leaves behind: what was run, what came of it, round by round and client by client."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import msgspec
import numpy as np

from ofms.core.errors import InvalidInput
from ofms.runs.config import RunConfig, load_run
from ofms.storage.files import require_writable, write_whole
from ofms.storage.locks import FolderLock

if TYPE_CHECKING:
    from ofms.simulator.result import Result

CONFIG, METRICS, CLIENTS = "config.toml", "metrics.jsonl", "clients.npz"
HISTORY, SUMMARY = "history.npz", "summary.json"


def new_run_folder(out: str | Path | None, config: RunConfig) -> Path:
    """The folder for a run: the one that was asked for, or a new one under `runs`."""
    if out is not None:
        return require_free(Path(out))
    require_writable(Path("runs"))
    name = f"{Path(config.experiment).stem}-{config.policy}-{config.preset}-seed{config.seed}"
    for number in itertools.count(1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        break
    return folder


def require_free(folder: Path) -> Path:
    """Refuse a folder that holds something, or that cannot be named."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise InvalidInput("out", f"{str(folder)[:60]}…", f"{error.strerror}; name another folder") from None
    if taken:
        raise InvalidInput("out", folder, "something is there already; name a new folder")
    return folder


class RunFolder:
    """Writes a run. Metrics come line by line while it goes on; the rest appears whole.

    Parameters
    ----------
    rounds
        How many rounds there are of it already: none for a new run. Lines after them are dropped.
    """

    def __init__(self, path: Path, config: RunConfig, *, rounds: int = 0) -> None:
        require_writable(path)
        self.path = path
        self._lock = FolderLock(path)
        try:
            self.lines = _lines(path, rounds)
            write_whole(path / CONFIG, config.to_toml().encode())
            write_whole(path / METRICS, b"".join(msgspec.json.encode(line) + b"\n" for line in self.lines))
            self._metrics: IO[bytes] = open(path / METRICS, "ab")  # noqa: SIM115
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._metrics.close()
        self._lock.close()

    def on_rounds(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add lines to the metrics; they are in the file when it returns."""
        self._metrics.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        self._metrics.flush()

    def on_finish(self, result: Result) -> None:
        """Write the results; a folder with a summary is a finished run."""
        summary = msgspec.to_builtins(result.summary())
        for name, arrays in ((CLIENTS, result.clients), (HISTORY, result.history)):
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **dict(arrays))  # type: ignore[arg-type]
            write_whole(self.path / name, buffer.getvalue())
        write_whole(self.path / SUMMARY, msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n")


def unfinished_run(path: Path) -> RunConfig:
    """The configuration of a run that can go on, or a refusal."""
    if not (path / CONFIG).is_file():
        raise InvalidInput("resume", path, f"no run is there: {CONFIG} is missing")
    config = load_run(str(path / CONFIG))
    if config is None:
        raise InvalidInput("resume", path, f"its {CONFIG} is damaged; start the run again")
    if (path / SUMMARY).exists():
        raise InvalidInput("resume", path, f"it is finished; its figures are in {SUMMARY}")
    return config


def _lines(path: Path, rounds: int) -> list[dict[str, Any]]:
    """The metrics of the first rounds of a run."""
    if rounds == 0:
        return []
    try:
        content = (path / METRICS).read_bytes().splitlines()[:rounds]
        lines = [msgspec.json.decode(line, type=dict[str, Any]) for line in content]
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidInput("run", path, f"its {METRICS} is damaged ({error}); start it again") from None
    if len(lines) < rounds:
        raise InvalidInput("run", path, f"its {METRICS} ends before its checkpoint; start it again")
    return lines
