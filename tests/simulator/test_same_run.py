"""Processes that share a run compare what they run, before the first round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from ofms.compute.group import Arrays, OneProcess
from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray
from ofms.runs.checkpoint import Inputs
from ofms.runs.config import RunConfig
from ofms.simulator.agreement import require_same

CONFIG = RunConfig(
    experiment="digits",
    dataset="digits",
    policy="mab",
    preset="theory",
    seed=0,
    clients=4,
    rounds=5,
    interval=1,
    budget="5",
    bandwidth="100%",
)
INPUTS = Inputs("models", "samples")


class TwoProcesses(OneProcess):
    """This process, and another one that sent something else."""

    size = 2

    def __init__(self, rank: int, **others: Any) -> None:
        self.rank, self.others = rank, others

    def gather(self, arrays: Mapping[str, AnyArray]) -> list[Arrays]:
        own = msgspec.json.decode(arrays["own"].tobytes())
        other = {"own": np.frombuffer(msgspec.json.encode(own | self.others), np.uint8)}
        return [other, dict(arrays)] if self.rank else [dict(arrays), other]


@pytest.mark.parametrize(
    ("others", "line"),
    [
        ({"version": "0.0.1", "data": "b"}, "version = 0.0.1: .*install the same version of ofms everywhere"),
        ({"resume": True}, "resume = True: .*give all processes the same arguments"),
        ({"configuration.rounds": 6, "data": "b"}, "configuration.rounds = 6: .*give all processes the same arguments"),
        ({"dictionary": "b"}, "dictionary = b: process 2 of 2 differs from the first one, which has models; "),
        ({"data": "b"}, "data = b: .*which has samples; give all processes the same data"),
    ],
)
def test_a_process_that_differs_is_named_with_the_cause(others: dict[str, Any], line: str) -> None:
    """The cause, not what follows from it: with other rounds, the samples differ too."""
    with pytest.raises(InvalidInput, match=line):
        require_same(TwoProcesses(0, **others), CONFIG, INPUTS, resumed=False)
    with pytest.raises(SystemExit):
        require_same(TwoProcesses(1, **others), CONFIG, INPUTS, resumed=False)


def test_processes_that_run_the_same_are_not_refused() -> None:
    require_same(TwoProcesses(0), CONFIG, INPUTS, resumed=True)
