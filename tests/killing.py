"""Processes that are killed with SIGKILL while they work at a task."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from ofms.drawing.tables import Table
from tests.repeated_tasks import TASKS

# Forked from a process that has imported everything, so that a kill rarely hits an import.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        *("torch", "pandas", "sklearn.datasets", "jinja2", "matplotlib.figure", "matplotlib.backends.backend_svg"),
        *("ofms.cli", "ofms.simulator.api", "ofms.reproduction.page", "ofms.report.page"),
        "ofms.coordinator.coordinator",
    ]
)
_WAIT_SECONDS = 300
_MOST_IN_A_ROW = 4


def without_page(
    folders: Sequence[Path],
    out: Path | None = None,
    names: Sequence[str] = (),
    tables: Sequence[Table] = (),
    warnings: Sequence[str] | None = None,
) -> Path:
    """Instead of `write_report`: its charts take most of a small task's time."""
    return Path("none")


def _work(task: str, folder: str, pages: bool) -> None:
    """In a process of its own: do the task, and end with its status."""
    from ofms.report import page
    from ofms.runs import checkpoint

    if not pages:
        page.write_report = without_page

    log = os.open(Path(folder) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    checkpoint._MOST_TIME = float("inf")
    raise SystemExit(TASKS[task].run(Path(folder)))


class Workplace:
    """A task's folder, always at the same path, with a copy of its inputs."""

    def __init__(self, name: str, folder: Path, *, pages: bool = True) -> None:
        self.name, self.task, self._pages = name, TASKS[name], pages
        self.folder, self._inputs = folder / "work", folder / "inputs"
        self._inputs.mkdir()
        self.folder.mkdir()
        self.task.prepare(self.folder)
        shutil.copytree(self.folder, self._inputs, dirs_exist_ok=True)

    def renew(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self._inputs, self.folder)

    def work(self, seconds: float | None = None) -> bool:
        """Work in a process; kill it after some seconds if they are given. Return whether it was killed."""
        process = _CONTEXT.Process(target=_work, args=(self.name, str(self.folder), self._pages))
        process.start()
        process.join(_WAIT_SECONDS if seconds is None else seconds)
        if process.exitcode is None:
            process.kill()
            process.join(_WAIT_SECONDS)
        status = process.exitcode
        process.close()
        if status == -signal.SIGKILL and seconds is not None:
            return True
        assert status == 0, (self.folder / "log").read_text()
        return False

    def length(self) -> float:
        """Seconds that the whole task takes."""
        began = time.monotonic()
        self.work()
        return time.monotonic() - began


def assert_kills_change_nothing(name: str, folder: Path, kills: int, seed: int, *, pages: bool) -> None:
    """Kill a task's process at random moments, spread over its whole length; repeated, it makes the same bits."""
    place, moments = Workplace(name, folder, pages=pages), random.Random(seed)
    length = place.length()
    expected = place.task.outcome(place.folder)
    done = 0
    while done < kills:
        place.renew()
        # Several in a row, and then to the end.
        for _ in range(moments.randint(1, _MOST_IN_A_ROW)):
            done += place.work(moments.uniform(0, length))
        place.work()
        assert place.task.outcome(place.folder) == expected
        if moments.random() < 0.2:
            length = 0.5 * length + 0.5 * _measured(place)


def _measured(place: Workplace) -> float:
    """The length of the task now: the machine may be busier than before."""
    place.renew()
    return place.length()
