"""Runs that several processes share end with the bits of one process, also if they are resumed by another number."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ofms.runs.interrupt import RunInterrupted
from ofms.simulator.metrics import Measurement
from tests import ranked

FEW = [
    "late-hedge, vectors, interval 1",
    "ofms-ft, images, interval 4",
    "own copies, doubling",
    "OFMS-FT, clients and models that come and go",
    "updates that are not finite",
]


def test_a_run_that_one_process_began_is_resumed_by_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ranked.expected(FEW)
    with monkeypatch.context() as patched:
        patched.setattr(Measurement, "add", Measurement.add)
        ranked.signal_in(1)
        for place, name in enumerate(FEW):
            with pytest.raises(RunInterrupted):
                ranked.run_case(name, tmp_path / str(place))
    assert ranked.run_cases(3, tmp_path, FEW) == wanted


def test_exchanges_that_one_process_forgets_before_another_are_joined(tmp_path: Path) -> None:
    """Clients with memory for all models know all losses at once, those with memory for two many exchanges later."""
    names = ["late hedging, budgets that differ", "late-hedge, vectors, interval 1"]
    assert ranked.run_cases(4, tmp_path, names, stop=6) == {}, "both were interrupted"
    assert ranked.run_cases(3, tmp_path, names) == ranked.expected(names)


@pytest.mark.parametrize("ranks", [2, 4])
def test_processes_whose_clients_upload_nothing_sum_in_double_precision_too(ranks: int, tmp_path: Path) -> None:
    names = ["double precision, vectors", "double precision, images"]
    assert ranked.run_cases(ranks, tmp_path, names) == ranked.expected(names)


@pytest.fixture(scope="module")
def alone() -> Mapping[str, str]:
    """The digests of all cases in one process."""
    return ranked.expected(list(ranked.CASES))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_policy_ends_with_the_same_bits(ranks: int, alone: Mapping[str, str], tmp_path: Path) -> None:
    found = ranked.run_cases(ranks, tmp_path, list(alone))
    assert {name for name in alone if found[name] != alone[name]} == set()


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 3])
def test_every_policy_is_resumed_by_another_number_of_processes(
    stop: int, alone: Mapping[str, str], tmp_path: Path
) -> None:
    finished = ranked.run_cases(4, tmp_path, list(alone), stop=stop)
    # Runs of images with an interval of 4 have three exchanges.
    assert {name for name in finished if not name.endswith("images, interval 4")} == set()
    found = ranked.run_cases(3, tmp_path, list(alone)) | finished
    assert {name for name in alone if found[name] != alone[name]} == set()
