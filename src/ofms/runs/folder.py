"""The folder of a run: configuration, metrics by round and by client, summary."""

from __future__ import annotations

import io
import itertools
import logging
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec
import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray
from ofms.runs.config import FORMAT, RunConfig, load_run
from ofms.runs.soundness import require_lines, require_sound_run
from ofms.storage.archives import read_npz
from ofms.storage.files import is_vacant, remove_leftovers, require_writable, write_whole
from ofms.storage.growing import GrowingFile
from ofms.storage.locks import FolderLock
from ofms.storage.parsing import parse_json, parse_toml

if TYPE_CHECKING:
    from ofms.models.dictionary import Dictionary
    from ofms.runs.result import Result

CONFIG, METRICS, CLIENTS = "config.toml", "metrics.jsonl", "clients.npz"
HISTORY, SUMMARY, MODELS, PAGE = "history.npz", "summary.json", "models", "report.html"
_log = logging.getLogger(__name__)
# Format 1 has no format number in its summary, and other names for two arrays.
_RENAMED = {"vote_share": "prediction_share", "vote": "prediction_weights"}


def new_run_folder(out: str | Path | None, config: RunConfig) -> Path:
    """The folder for a run: the requested one, or a new one under `runs`."""
    if out is not None:
        return require_free(Path(out))
    require_writable(Path("runs"))
    policy = config.policy.replace(":", ".")
    name = f"{Path(config.experiment).stem}-{policy}-{config.preset}-seed{config.seed}"
    for number in itertools.count(1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        break
    return folder


def require_free(folder: Path) -> Path:
    """Reject a folder that is not empty, or a path that cannot exist."""
    try:
        str(folder.absolute()).encode()
    except UnicodeEncodeError:
        raise InvalidInput("out", ascii(str(folder)), "it is not valid UTF-8; name another folder") from None
    try:
        taken = folder.exists() and (not folder.is_dir() or not is_vacant(folder))
    except OSError as error:
        raise InvalidInput("out", f"{str(folder)[:60]}…", f"{error.strerror}; name another folder") from None
    if taken:
        raise InvalidInput("out", folder, "it already exists; name a new folder")
    return folder


def resume_command(folder: Path) -> str:
    """The command that resumes the run in a folder, quoted for a shell."""
    return shlex.join(["ofms", "run", "--resume", str(folder)])


class RunFolder:
    """Observer that writes a run: metrics are appended round by round; every other file is written atomically.

    Parameters
    ----------
    resumed
        Whether the folder holds an interrupted run; otherwise it must be free.
    """

    def __init__(self, path: Path, config: RunConfig, *, resumed: bool = False) -> None:
        require_writable(path)
        self.path, self.config = path, config
        self._lock = FolderLock(path)
        self._metrics: GrowingFile | None = None
        try:
            # Checked again: another process may have written a run meanwhile.
            if resumed:
                unfinished_run(path)
            else:
                require_free(path)
            remove_leftovers(path)
        except BaseException:
            self._lock.close()
            raise

    def start(self, rounds: int = 0) -> list[dict[str, Any]]:
        """Begin after some rounds that are in the folder, and return their lines; later lines are dropped."""
        lines = _first_lines(self.path, rounds)
        content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        # Written first: a folder with a configuration can be resumed.
        if not (self.path / CONFIG).exists():  # A resumed run keeps its own.
            write_whole(self.path / CONFIG, self.config.to_toml().encode())
        write_whole(self.path / METRICS, content)
        self._metrics = GrowingFile(self.path / METRICS, len(content))
        return lines

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._metrics is not None:
            self._metrics.close()
        self._lock.close()
        if isinstance(error, OSError) and (self.path / CONFIG).exists():
            error.add_note(f"continue with: {resume_command(self.path)}")

    def on_rounds(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append lines to the metrics."""
        if self._metrics is None:
            raise RuntimeError("the run was not started")
        self._metrics.append(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    def on_finish(self, result: Result) -> None:
        """Write arrays, then the summary, which marks the run as finished."""
        for name, arrays in ((CLIENTS, result.clients), (HISTORY, result.history)):
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
            write_whole(self.path / name, buffer.getvalue())
        summary = msgspec.json.encode({"format": FORMAT} | result.figures)
        write_whole(self.path / SUMMARY, msgspec.json.format(summary, indent=1) + b"\n")

    def write_models(self, dictionary: Dictionary) -> None:
        """Write the fine-tuned dictionary; before the summary, so that a finished run has it."""
        # Of a process that was killed before it wrote the summary.
        shutil.rmtree(self.path / MODELS, ignore_errors=True)
        dictionary.write(self.path / MODELS)

    def write_page(self) -> None:
        """Write the report of the finished run; the run is complete without it."""
        from ofms.report.page import write_report

        try:
            _log.debug("report: %s", write_report([self.path]))
        except InvalidInput as error:
            _log.warning("no report: %s", error.remedy)
        except OSError as error:
            _log.warning("no report: %s: %s", error.filename, error.strerror)


class RunParts(NamedTuple):
    """The content of a finished run's folder."""

    config: RunConfig
    figures: dict[str, Any]
    lines: list[dict[str, Any]]
    clients: dict[str, AnyArray]
    history: dict[str, AnyArray]


def read_run_folder(folder: Path) -> RunParts:
    """Read a finished run of this or the previous format."""
    if not (folder / CONFIG).is_file():
        raise InvalidInput("run", folder, f"it is not a run's folder: {CONFIG} is missing")
    if not (folder / SUMMARY).is_file():
        raise InvalidInput("run", folder, f"it is not finished; resume it with: {resume_command(folder)}")
    config = load_run(str(folder / CONFIG))
    try:
        if config is None:
            raise ValueError(f"{CONFIG} is not that of a run{_why(folder / CONFIG)}")
        figures = parse_json((folder / SUMMARY).read_bytes(), dict[str, Any])
        number = figures.pop("format", None)
        if number not in (None, FORMAT):
            raise InvalidInput("run", folder, f"its format is {number}; this version reads up to {FORMAT}")
        lines = _decode_lines((folder / METRICS).read_bytes().splitlines())
        clients, history = (read_npz(folder / name) for name in (CLIENTS, HISTORY))
        if number is None:
            clients, history = (
                {_RENAMED.get(key, key): array for key, array in each.items()} for each in (clients, history)
            )
        require_sound_run(config, figures, lines, clients, history)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("run", folder, f"it is damaged ({error}); run it again") from None
    if number is None:
        figures = {
            "not_covered": None,
            "frozen": None,
            "groups": float(np.mean([line["groups"] for line in lines])),
            "client_seconds": float(clients["seconds"].mean()) if "seconds" in clients else None,
        } | figures
    return RunParts(config, figures, lines, clients, history)


def unfinished_run(path: Path) -> RunConfig:
    """The configuration of a run that can be resumed."""
    if not (path / CONFIG).is_file():
        raise InvalidInput("resume", path, f"it is not a run's folder: {CONFIG} is missing")
    config = load_run(str(path / CONFIG))
    if config is None:
        raise InvalidInput("resume", path, f"its {CONFIG} is damaged{_why(path / CONFIG)}; start a new run")
    if (path / SUMMARY).exists():
        page = "" if (path / PAGE).exists() else f"; write its page with: {shlex.join(['ofms', 'report', str(path)])}"
        raise InvalidInput("resume", path, f"it is finished; its figures are in {SUMMARY}{page}")
    return config


def _why(path: Path) -> str:
    """What is wrong with a file that is no TOML."""
    try:
        parse_toml(path.read_bytes())
    except (OSError, ValueError) as error:
        return f" ({error})"
    return ""


def _first_lines(path: Path, rounds: int) -> list[dict[str, Any]]:
    """The metrics of a run's first rounds."""
    if rounds == 0:
        return []
    try:
        lines = _decode_lines((path / METRICS).read_bytes().splitlines()[:rounds])
        if len(lines) < rounds:
            raise ValueError("it ends before the checkpoint")
        require_lines(lines, rounds)
    except (OSError, ValueError) as error:
        raise InvalidInput("run", path, f"its {METRICS} is damaged ({error}); start a new run") from None
    return lines


def _decode_lines(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    return [parse_json(line, dict[str, Any]) for line in lines]
