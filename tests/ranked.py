"""Runs that several processes share, each a real one: small cases, and what identifies a result bit for bit.

    python -m tests.ranked FOLDER RANKS STOP CASE...

forks so many processes, which join each other and run the cases one after another in folders of FOLDER, from their
checkpoints if they were interrupted. With STOP above 0, a signal reaches the last process in that exchange. The first
process writes the results' digests to FOLDER/digests.json.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ofms import simulate
from ofms.compute.group import ALONE, Group
from ofms.core.errors import InvalidInput
from ofms.data.stream import Stream
from ofms.flower.processes import free_port
from ofms.models.dictionary import Dictionary
from ofms.runs.interrupt import RunInterrupted
from ofms.runs.result import Result
from ofms.simulator.exchange import Exchange
from ofms.simulator.metrics import Line, Measurement
from tests.policy_settings import SETTINGS
from tests.problems import image_problem, regression_problem

WAIT_SECONDS = 300
SHARDS = 4
_OF_THE_PLACE = ("seconds", "machine", "command", "folder")
_EVENTS = [
    {"exchange": 2, "join": ["8-11"], "add": ["net5"]},
    {"exchange": 3, "retire": ["net0"], "budget": {"2": 4, "9": 4}},
    {"exchange": 4, "leave": [0, 11]},
]


def _by_policy() -> dict[str, tuple[str, dict[str, Any]]]:
    cases: dict[str, tuple[str, dict[str, Any]]] = {}
    for policy, settings in SETTINGS.items():
        for problem in ("vectors", "images"):
            for interval in (1, 4):
                given = {"policy": policy, "interval": interval, "history": 7} | settings
                cases[f"{policy}, {problem}, interval {interval}"] = (problem, given)
    return cases


BY_POLICY = _by_policy()
_MIXED = {"budget": "3:60%,5:40%"}
FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "budgets that differ": ("vectors", {"policy": "ofms-ft"} | SETTINGS["ofms-ft"] | _MIXED),
    "late hedging, budgets that differ": (
        "vectors",
        {"policy": "late-hedge", "budget": "2:50%,6:50%"} | SETTINGS["late-hedge"],
    ),
    "late hedging, clients and models that come and go": (
        "vectors",
        {"policy": "late-hedge", "interval": 2, "events": _EVENTS} | SETTINGS["late-hedge"],
    ),
    "OFMS-FT, clients and models that come and go": (
        "vectors",
        {"policy": "ofms-ft", "interval": 2, "events": _EVENTS} | SETTINGS["ofms-ft"] | _MIXED,
    ),
    "adapted copies of clients that join": (
        "vectors",
        {"policy": "perfedavg", "events": [{"exchange": 5, "join": ["0-2"]}]} | SETTINGS["perfedavg"],
    ),
    "own copies, doubling": ("images", {"policy": "fed-poe", "doubling": 4} | SETTINGS["fed-poe"]),
    "cached outputs": ("vectors", {"policy": "budgeted-experts", "cache": True} | SETTINGS["budgeted-experts"]),
    "updates that are not finite": ("broken", {"policy": "ofms-ft"} | SETTINGS["ofms-ft"]),
    "a stream that drifts": ("changing", {"policy": "late-hedge"} | SETTINGS["late-hedge"]),
    # Groups of one or two clients: most processes upload nothing.
    "double precision, vectors": (
        "vectors",
        {"policy": "ofms-ft", "dtype": "float64", "bandwidth": "10%"} | SETTINGS["ofms-ft"],
    ),
    "double precision, images": (
        "images",
        {"policy": "late-hedge", "dtype": "float64", "bandwidth": "15%"} | SETTINGS["late-hedge"],
    ),
    "without hindsight": ("images", {"policy": "late-hedge", "hindsight": False} | SETTINGS["late-hedge"]),
}
CASES = BY_POLICY | FURTHER


def problem_of(name: str) -> tuple[Dictionary, Stream]:
    """A dictionary, and samples of enough clients for four shards."""
    if name == "images":
        return image_problem(clients=9)
    dictionary, stream = regression_problem(clients=14)
    if name == "broken":
        x = stream.x.copy()
        x[3, 6] = x[12, 9] = 3e38
        return dictionary, Stream(x, stream.y, stream.task)
    return dictionary, Stream(stream.x, stream.y, stream.task, changes=(9,)) if name == "changing" else stream


def run_case(name: str, folder: Path | None = None, group: Group = ALONE, **further: Any) -> Result:
    """Run a case, from its checkpoint if it was interrupted in the folder."""
    problem, given = CASES[name]
    dictionary, stream = problem_of(problem)
    common: dict[str, Any] = {"models": dictionary, "stream": stream, "workers": 1, "group": group, "report": False}
    cache = bool(given.get("cache"))
    if folder is not None and (folder / "config.toml").exists():
        return simulate(resume=folder, cache=cache, **common, **further)
    fleet: dict[str, Any] = {"preset": "published", "budget": "3", "bandwidth": "60%", "seed": 5, "shards": SHARDS}
    out: Any = {} if folder is None else {"out": folder, "checkpoint": 1000.0}
    return simulate(**common, **(fleet | given), **out, **further)


def digest_of(result: Result) -> str:
    """Of everything that a run gives, except for the time that it took."""
    digest = hashlib.sha256(json.dumps(result.rounds, default=_plain, sort_keys=True).encode())
    for arrays in (result.clients, result.history):
        for name, array in sorted(arrays.items()):
            digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
    for model in result.models.models:
        for name, tensor in sorted(model.tensors.items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
    figures = {
        key: value for key, value in result.figures.items() if key not in ("seconds", "machine", "command", "folder")
    }
    digest.update(json.dumps(figures, default=_plain, sort_keys=True).encode())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def variables_of(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The environment of a process as `torchrun` sets it."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


def start(ranks: int, arguments: Sequence[str], **variables: str) -> list[subprocess.Popen[str]]:
    """The processes of `python -m MODULE ...`, as `torchrun` starts them."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env=os.environ | variables_of(rank, ranks, port) | variables,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def run_cases(ranks: int, folder: Path, names: Sequence[str], stop: int = 0) -> dict[str, str]:
    """The digests of cases that so many processes run; those that were interrupted are left out."""
    command = [sys.executable, "-m", "tests.ranked", str(folder), str(ranks), str(stop), *names]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    digests: dict[str, str] = json.loads((folder / "digests.json").read_text())
    return digests


def main(folder: Path, ranks: int, stop: int, names: Sequence[str]) -> int:
    """Fork the processes, which share what this one has imported; whether one of them failed."""
    # Imported before the forks.
    import ofms.compute.process_group
    import ofms.simulator.api  # noqa: F401

    context, port = multiprocessing.get_context("fork"), free_port()
    processes = [
        context.Process(target=work, args=(variables_of(rank, ranks, port), folder, stop, names))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return int(any(process.exitcode for process in processes))


def work(variables: Mapping[str, str], folder: Path, stop: int, names: Sequence[str]) -> None:
    """One of the processes."""
    os.environ.update(variables)
    from ofms.compute.process_group import join_group, leave_group

    group, digests = join_group(), dict[str, str]()
    if stop and group.rank == group.size - 1:
        signal_in(stop)
    for place, name in enumerate(names):
        try:
            digests[name] = digest_of(run_case(name, folder / str(place), group))
        except RunInterrupted:
            assert stop
        except InvalidInput as error:
            digests[name] = str(error)
    if group.rank == 0:
        (folder / "digests.json").write_text(json.dumps(digests))
    leave_group()


def signal_in(exchange: int) -> None:
    """Send this process a signal to stop during an exchange."""
    add = Measurement.add

    def signalled(self: Measurement, record: Exchange) -> list[Line]:
        if record.index == exchange:
            os.kill(os.getpid(), signal.SIGTERM)
        return add(self, record)

    Measurement.add = signalled  # type: ignore[method-assign,assignment]


def expected(names: Sequence[str]) -> Mapping[str, str]:
    """The digests of cases in one process."""
    return {name: digest_of(run_case(name)) for name in names}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
