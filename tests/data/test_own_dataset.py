"""A dataset of the user's own, named as `package.module:name` in an experiment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ofms
from ofms.core.errors import InvalidInput
from ofms.data import load_dataset
from ofms.plugins import Trust

MODULE = """
import numpy as np
from ofms.data.stream import Stream, TrainingSet

class Pumps:
    name = "pumps"
    task = "regression"
    summary = "made up"

    def fetch(self):
        pass

    def check(self):
        return "pumps: there"

    def stream(self, *, clients, rounds, seed):
        x = np.random.default_rng(seed).random((clients, rounds, 2), dtype=np.float32)
        return Stream(x, x.mean(axis=-1), self.task)

    def training_sets(self, *, seed):
        x = np.random.default_rng(seed).random((64, 2), dtype=np.float32)
        return [TrainingSet(f"set{each}", x, x[:, each]) for each in range(2)]

dataset = Pumps()
unfinished = object()
"""
EXPERIMENT = """
summary = "pumps"
dataset = "pump_data:dataset"
clients = 3
rounds = 6
budget = "2"
bandwidth = "100%"

[pretraining]
epochs = 1
batch_size = 16
networks = [{ name = "net", architecture = "pump_nets:net", options = { width = 3 } }]
"""
NETWORKS = """
from torch import nn

def net(width):
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))
"""


def test_an_experiment_can_name_an_own_dataset(tmp_path: Path, write_module: Callable[[str, str], Trust]) -> None:
    trust = write_module("pump_data", MODULE) | write_module("pump_nets", NETWORKS)
    path = tmp_path / "mine.toml"
    path.write_text(EXPERIMENT)
    with pytest.raises(InvalidInput, match=r"dataset = pump_data:dataset: .*--trust pump_data"):
        ofms.simulate(str(path))
    result = ofms.simulate(str(path), trust=trust, out=tmp_path / "run")
    assert list(result.figures["models"]) == ["pumps-set0-net", "pumps-set1-net"]
    assert result.config.trust is not None
    assert result.config.trust.packages == ("pump_data", "pump_nets")
    again = ofms.simulate(str(tmp_path / "run" / "config.toml"))
    assert again.score.tolist() == result.score.tolist()


def test_an_object_that_is_not_a_dataset_is_refused(write_module: Callable[[str, str], Trust]) -> None:
    trust = write_module("pump_data", MODULE)
    with pytest.raises(InvalidInput, match="dataset = pump_data:unfinished: it lacks name, task, fetch"):
        load_dataset("pump_data:unfinished", trust)
    with pytest.raises(InvalidInput, match=r"dataset = pumps: use one of digits, .* or your own as package\.module"):
        load_dataset("pumps", trust)
