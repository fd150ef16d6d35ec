"""Runs the mutants that mutmut generates: one process imports and collects the tests once, and forks for every mutant.

`mutmut run` starts pytest anew for each mutant, which takes longer than the tests. Here a forked process calls the
collected tests that reach the mutated function, the fastest and those that killed mutants of it before first, until one
fails. Verdicts go where mutmut keeps them, so `mutmut show NAME` and `mutmut browse` work. A verdict stands until the
function changes; survivors are run again with tests of files that have changed since.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import hashlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest
from mutmut.__main__ import create_mutants
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state
from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir, setup_source_paths, walk_mutatable_files
from mutmut.utils.format_utils import mangled_name_from_mutant_name

# Exit codes as mutmut counts them.
SURVIVED, KILLED, NO_TESTS, TIMED_OUT = 0, 1, 33, 36
# The limit of a test, in CPU time: neither a busy machine nor a stopped process looks like an endless loop.
_LEAST_SECONDS, _TIMES_AS_LONG = 2.0, 5.0
_MEMORY = 4 * 2**30
_PYTEST = ["-o", "addopts=", "-o", "timeout=0", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", "-qs"]
_REACHED = Path("reached.json")


class Reached(NamedTuple):
    """The functions that a test calls, the CPU time that it takes, and the content of its file."""

    functions: list[str]
    seconds: float
    digest: str


class Mutant(NamedTuple):
    name: str
    file: SourceFileMutationData

    @property
    def function(self) -> str:
        return str(mangled_name_from_mutant_name(self.name))

    @property
    def survived(self) -> bool:
        return self.file.exit_code_by_key[self.name] in (SURVIVED, NO_TESTS)


class Running(NamedTuple):
    mutant: Mutant
    tests: list[str]
    pipe: int
    started: float


def main() -> int:
    parser = argparse.ArgumentParser(description="Run mutants, and keep the verdicts.")
    parser.add_argument("names", nargs="*", default=["*"], help="mutants, with * for any characters")
    parser.add_argument("--again", action="store_true", help="run survivors again, with all tests")
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU time of the tests of a mutant")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    options = parser.parse_args()
    set_mutant_under_test("mutant_generation")
    Path("mutants").mkdir(exist_ok=True)
    copy_src_dir()
    copy_also_copy_files()
    setup_source_paths()
    create_mutants(options.workers)
    files = [SourceFileMutationData(path=path) for path in walk_mutatable_files()]
    for file in files:
        file.load()
        file.meta_path = file.meta_path.absolute()
    os.environ["PY_IGNORE_IMPORTMISMATCH"] = "1"
    os.chdir("mutants")
    set_mutant_under_test("stats")
    selection = config().pytest_add_cli_args_test_selection
    return int(pytest.main(["--assert=plain", *_PYTEST, *selection], plugins=[Forks(files, options)]))


class Forks:
    """A pytest plugin that runs mutants instead of tests, after the collection."""

    def __init__(self, files: list[SourceFileMutationData], options: argparse.Namespace) -> None:
        self.files = files
        self.options = options
        self.running: dict[int, Running] = {}
        self.kills: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.count: Counter[int] = Counter()
        self.under_test: str | None = None
        self.pid = os.getpid()

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        # Not at the top: pytest prepares Hypothesis' plugin before it is imported.
        from hypothesis import Phase, settings

        # Before the tests are imported. A failing example is not made smaller: one is enough.
        settings.register_profile("mutants", settings(), phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """End a forked process at the first failure."""
        if (
            call.excinfo
            and not call.excinfo.errisinstance(pytest.skip.Exception)
            and not item.get_closest_marker("xfail")
        ):
            if self.under_test is None:
                print(f"fails without mutation: {item.nodeid}: {call.excinfo.exconly()}", file=sys.stderr, flush=True)
            os._exit(KILLED)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        gc.freeze()
        items = {item.nodeid: item for item in session.items}
        reached, changed = self.reached(items)
        tests_of: defaultdict[str, list[str]] = defaultdict(list)
        for test, each in reached.items():
            for function in each.functions:
                tests_of[function].append(test)
        waiting = list(self.waiting())
        for position, mutant in enumerate(waiting):
            tests = tests_of[mutant.function]
            if mutant.survived and not self.options.again:
                tests = [test for test in tests if test in changed]
                if not tests:
                    continue
            kills = self.kills[mutant.function]
            tests = sorted(tests, key=lambda test: reached[test].seconds / (kills[test] + 0.1))
            totals = accumulate(reached[test].seconds for test in tests)
            chosen = [test for test, total in zip(tests, totals, strict=True) if total <= self.options.seconds]
            if tests:
                self.fork(mutant, chosen or tests[:1], items, reached)
            else:
                self.record(mutant, NO_TESTS, 0.0)
            while len(self.running) >= self.options.workers:
                self.wait()
            if position % 100 == 0:
                print(f"{position} of {len(waiting)}: {self.summary()}", flush=True)
        while self.running:
            self.wait()
        print(f"{len(waiting)} of {len(waiting)}: {self.summary()}", flush=True)
        return True

    def summary(self) -> str:
        alive = self.count[SURVIVED] + self.count[NO_TESTS]
        return f"{self.count.total() - alive} killed ({self.count[TIMED_OUT]} by the time limit), {alive} survived"

    def waiting(self) -> Iterator[Mutant]:
        """The survivors, and the mutants without a verdict."""
        found = [Mutant(name, file) for file in self.files for name in file.exit_code_by_key]
        found = [each for each in found if any(fnmatch.fnmatch(each.name, pattern) for pattern in self.options.names)]
        yield from (mutant for mutant in found if mutant.survived)
        yield from (mutant for mutant in found if mutant.file.exit_code_by_key[mutant.name] is None)

    def reached(self, items: dict[str, pytest.Item]) -> tuple[dict[str, Reached], set[str]]:
        """What each test reaches, and the tests of files that have changed, which are run in a process of their own."""
        test_files = {test.partition("::")[0] for test in items}
        common = hashlib.sha256()
        helpers = [path for path in Path("tests").rglob("*.py") if not path.name.startswith("test_")]
        for path in sorted([*helpers, *(Path(file.path) for file in self.files)]):
            common.update(path.read_bytes())
        digests = {file: hashlib.sha256(Path(file).read_bytes() + common.digest()).hexdigest() for file in test_files}
        kept = _load() if _REACHED.exists() else {}
        current = {test: digests[test.partition("::")[0]] for test in items}
        changed = {test for test in items if test not in kept or kept[test].digest != current[test]}
        if changed:
            print(f"running {len(changed)} tests without mutation", flush=True)

        def measure() -> None:
            found = {}
            for test, item in items.items():
                if test in changed:
                    state()._stats.clear()
                    start = time.process_time()
                    self.call(item, None)
                    found[test] = Reached(sorted(state()._stats), time.process_time() - start, current[test])
                else:
                    found[test] = kept[test]
            _REACHED.write_text(json.dumps(found))

        pid = _in_child(measure)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            raise pytest.Session.Failed("tests fail without mutation")
        return _load(), changed

    def call(self, item: pytest.Item, following: pytest.Item | None) -> None:
        """Run a test, unless the first process was ended."""
        if os.getppid() != self.pid:
            os._exit(KILLED)
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)

    def fork(
        self, mutant: Mutant, tests: list[str], items: dict[str, pytest.Item], reached: dict[str, Reached]
    ) -> None:
        reading, writing = os.pipe()

        def run() -> None:
            resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
            self.under_test = mutant.name
            set_mutant_under_test(mutant.name)
            for test, following in zip(tests, [*tests[1:], None], strict=True):
                os.write(writing, b".")
                signal.setitimer(signal.ITIMER_PROF, _LEAST_SECONDS + _TIMES_AS_LONG * reached[test].seconds)
                self.call(items[test], items[following] if following else None)

        pid = _in_child(run)
        os.close(writing)
        self.running[pid] = Running(mutant, tests, reading, time.monotonic())

    def wait(self) -> None:
        pid, status = os.wait()
        mutant, tests, pipe, started = self.running.pop(pid)
        begun = len(os.read(pipe, len(tests)))
        os.close(pipe)
        code = os.waitstatus_to_exitcode(status)
        if code != SURVIVED:
            self.kills[mutant.function][tests[begun - 1]] += 1
        verdict = TIMED_OUT if code == -signal.SIGPROF else KILLED if code else SURVIVED
        self.record(mutant, verdict, time.monotonic() - started)

    def record(self, mutant: Mutant, verdict: int, seconds: float) -> None:
        self.count[verdict] += 1
        if verdict in (SURVIVED, NO_TESTS) and not mutant.survived:
            print(f"survived{' without tests' if verdict == NO_TESTS else ''}: {mutant.name}", flush=True)
        mutant.file.exit_code_by_key[mutant.name] = verdict
        mutant.file.durations_by_key[mutant.name] = seconds
        mutant.file.save()


def _load() -> dict[str, Reached]:
    return {test: Reached(*each) for test, each in json.loads(_REACHED.read_bytes()).items()}


def _in_child(task: Callable[[], None]) -> int:
    """The number of a process that ends with status 0 after the task."""
    if pid := os.fork():
        return pid
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        task()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
