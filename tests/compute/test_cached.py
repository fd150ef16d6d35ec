"""Cached outputs: the same runs as without, computed once; damaged or foreign files are not used."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ofms.compute import cached, outputs
from ofms.compute.cached import CachedCompute, make_cached_compute
from ofms.compute.factory import make_compute
from ofms.compute.output_file import make_room
from ofms.compute.threads import ThreadedCompute
from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray
from ofms.data.folder import cache_folder
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.plugins import Trust, load_object
from ofms.policies.registry import setting_names
from ofms.simulator.exchange import Exchange
from ofms.simulator.fused import FusedSimulation
from ofms.simulator.simulation import make_simulation
from tests.policy_settings import SETTINGS
from tests.problems import PROBLEMS, fleet_for, policy_of, regression_problem

FROZEN: dict[str, dict[str, Any]] = {
    name: values | ({"fine_tuning_rate": 0} if "fine_tuning_rate" in setting_names(name) else {})
    for name, values in SETTINGS.items()
    if "local_rate" not in values
}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; its folder of outputs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder() / "outputs"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often all outputs are computed."""
    calls: list[int] = []
    blocks = outputs.ModelOutputs.blocks

    def counted(self: outputs.ModelOutputs, workers: int, *, progress: bool) -> object:
        calls.append(workers)
        return blocks(self, workers, progress=progress)

    monkeypatch.setattr(outputs.ModelOutputs, "blocks", counted)
    return calls


def made(dictionary: Dictionary, stream: Stream, workers: int | None = None) -> CachedCompute:
    compute = make_cached_compute(dictionary, stream, workers=workers)
    assert compute is not None
    return compute


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("interval", "dtype"), [(1, torch.float32), (5, torch.float64)], ids=["float32", "float64"])
@pytest.mark.parametrize("name", FROZEN)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_cached_run_makes_the_choices_of_a_direct_one(
    problem: str, name: str, interval: int, dtype: torch.dtype
) -> None:
    dictionary, stream = PROBLEMS[problem]()
    fleet = fleet_for(dictionary, stream, interval)
    policy = policy_of(name, fleet, **FROZEN[name])

    def run(*, cache: bool) -> list[Exchange]:
        simulation = make_simulation(policy, fleet, dictionary, stream, seed=5, dtype=dtype, cache=cache)
        assert isinstance(simulation, FusedSimulation)
        assert isinstance(simulation.compute, CachedCompute) == cache
        return list(simulation.exchanges())

    tolerance = 1e-5 if dtype is torch.float32 else 1e-12
    for direct, looked_up in zip(run(cache=False), run(cache=True), strict=True):
        assert looked_up.plan.held.tolist() == direct.plan.held.tolist()
        # Pools have the weights that were learnt; those that do not depend on the scale of losses magnify rounding.
        # By how much depends on the processor.
        of_weights = pytest.approx(direct.plan.prediction_weights, abs=100 * tolerance)
        assert looked_up.plan.prediction_weights == of_weights
        assert looked_up.expected_weights == pytest.approx(direct.expected_weights, abs=100 * tolerance)
        assert looked_up.scores == pytest.approx(direct.scores, abs=100 * tolerance)
        for key in ("losses", "client_losses", "model_scores"):
            expected = pytest.approx(getattr(direct, key), rel=tolerance, abs=tolerance, nan_ok=True)
            assert getattr(looked_up, key) == expected, key


@pytest.mark.parametrize(
    ("name", "changed"),
    [("ofms-ft", {}), ("fed-omd", {}), ("perfedavg", {}), ("perfedavg", {"local_rate": 0.0})],
)
def test_a_run_that_changes_or_adapts_models_is_not_cached(name: str, changed: dict[str, Any], folder: Path) -> None:
    dictionary, stream = regression_problem()
    fleet = fleet_for(dictionary, stream, 1)
    policy = policy_of(name, fleet, **SETTINGS[name] | changed)
    simulation = make_simulation(policy, fleet, dictionary, stream, seed=5, cache=True)
    assert isinstance(simulation, FusedSimulation)
    assert isinstance(simulation.compute, ThreadedCompute)
    assert not folder.exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("cache", [False, True])
def test_a_run_resumes_with_or_without_the_cache(cache: bool) -> None:
    dictionary, stream = regression_problem()
    fleet = fleet_for(dictionary, stream, 1)
    policy = policy_of("ofms-ft", fleet, **FROZEN["ofms-ft"])
    first = make_simulation(policy, fleet, dictionary, stream, seed=5, cache=True)
    second = make_simulation(policy, fleet, dictionary, stream, seed=5, cache=cache)
    exchanges = first.exchanges()
    for _ in range(7):
        next(exchanges)
    second.unflatten(*first.flatten())
    expected, found = list(exchanges), list(second.exchanges())
    assert len(found) == len(expected) == 13
    assert [each.plan.held.tolist() for each in found] == [each.plan.held.tolist() for each in expected]


@pytest.mark.usefixtures("folder")
@DTYPES
@pytest.mark.parametrize("problem", PROBLEMS)
def test_evaluations_agree_without_hindsight(problem: str, dtype: torch.dtype) -> None:
    dictionary, stream = PROBLEMS[problem]()
    held = np.arange(stream.clients * len(dictionary)).reshape(stream.clients, -1) % 3 > 0
    weights = held / held.sum(axis=1, keepdims=True)
    found = []
    for is_cached in (False, True):
        with make_compute(dictionary, stream, dtype=dtype, cached=is_cached) as compute:
            assert isinstance(compute, CachedCompute if is_cached else ThreadedCompute)
            found.append(compute.evaluate((3, 8), held, weights, hindsight=False).result())
            states = [compute.state(model) for model in range(len(dictionary))]
            for model, tensors in enumerate(states):
                compute.load_state(model, tensors)
    assert (np.isnan(found[1].losses) == ~held[:, None]).all(), "only losses of held models"
    tolerance = 1e-5 if dtype is torch.float32 else 1e-12
    for key in ("scores", "losses", "client_losses", "model_scores"):
        expected = pytest.approx(getattr(found[0], key), rel=tolerance, abs=tolerance, nan_ok=True)
        assert getattr(found[1], key) == expected, key
    next(iter(states[0].values())).add_(1)
    with pytest.raises(ValueError, match="net0 has other parameters"):
        compute.load_state(0, states[0])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_late_outputs_are_those_of_the_networks_on_past_samples(problem: str, is_cached: bool) -> None:
    """For models held, on as many past samples as are asked for; logits are not changed."""
    dictionary, stream = PROBLEMS[problem]()
    shape = (stream.clients, len(dictionary))
    held = np.arange(shape[0] * shape[1]).reshape(shape) % 3 > 0
    late = np.arange(shape[0] * shape[1])[::-1].reshape(shape) % 5
    weights = held / held.sum(axis=1, keepdims=True)
    with make_compute(dictionary, stream, cached=is_cached) as compute:
        assert isinstance(compute, CachedCompute if is_cached else ThreadedCompute)
        found = compute.evaluate((5, 8), held, weights, hindsight=True, pooling="log", late=late)
        evaluation = found.result()
        unasked = compute.evaluate((5, 8), held, weights, hindsight=True, pooling="log").result()
    assert unasked.outputs is None
    assert evaluation.scores.tobytes() == unasked.scores.tobytes()
    length = int(np.where(held, late, 0).max()) + 3
    assert evaluation.outputs is not None
    assert evaluation.outputs.shape[:3] == (shape[0], length, shape[1])
    for client, model in np.ndindex(*shape):
        with torch.no_grad():
            x = torch.from_numpy(stream.x[client, 8 - length : 8])
            expected = dictionary.models[model].module.eval()(x).numpy().copy()
        wanted = int(late[client, model]) + 3 if held[client, model] else 0
        expected[: length - wanted] = np.nan
        assert evaluation.outputs[client, :, model] == pytest.approx(expected, rel=1e-5, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_outputs_depend_on_neither_workers_nor_blocks_beyond_rounding(
    problem: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dictionary, stream = PROBLEMS[problem]()
    found = []
    for workers, samples in ((1, 2048), (3, 2048), (2, 17)):
        monkeypatch.setattr(outputs, "_SAMPLES_PER_BLOCK", samples)
        found.append(np.array(made(dictionary, stream, workers=workers).outputs))
        next(folder.glob("*.npy")).unlink()
    assert found[0].tobytes() == found[1].tobytes()
    assert found[0] == pytest.approx(found[2], rel=1e-5, abs=1e-6)
    with torch.no_grad():
        first = dictionary.models[0].module.eval()(torch.from_numpy(stream.x[:, 2])).numpy()
    assert found[0][2, :, 0] == pytest.approx(first, rel=1e-5, abs=1e-6)


def test_outputs_are_computed_once_per_dictionary_stream_and_dtype(folder: Path, computed: list[int]) -> None:
    dictionary, stream = regression_problem()
    for _ in range(2):
        made(dictionary, stream)
    assert len(computed) == 1
    made(dictionary, stream.part(stream.clients, 10))
    make_cached_compute(dictionary, stream, dtype=torch.float64)
    other = Dictionary.from_modules({model.name: nn.Linear(3, 1) for model in dictionary.models}, task="regression")
    made(other, stream)
    assert len(computed) == 4
    assert {path.suffix for path in folder.iterdir()} == {".npy"}, "no lock and no part of a file is left"


class _Power(nn.Module):
    """A network whose outputs depend on a value that is no parameter, and that its description does not show."""

    def __init__(self, power: int) -> None:
        super().__init__()
        self.linear, self.power = nn.Linear(3, 1), power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.linear(x) ** self.power
        return outputs


def test_a_network_that_computes_something_else_is_computed_again(folder: Path, computed: list[int]) -> None:
    _, stream = regression_problem()
    networks = {"a": _Power(1), "b": _Power(1)}
    made(Dictionary.from_modules(networks, task="regression"), stream)
    networks["b"].power = 2
    found = made(Dictionary.from_modules(networks, task="regression"), stream)
    assert len(computed) == 2
    with torch.no_grad():
        expected = networks["b"](torch.from_numpy(stream.x)).numpy()
    assert found.outputs[:, :, 1].swapaxes(0, 1) == pytest.approx(expected, rel=1e-5)


FACTORY = """
import torch
from torch import nn

class Bounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        # Changes the outputs of a few samples only.
        return self.linear(x).clamp(max={largest})
"""


def test_the_edited_factory_of_a_network_is_computed_again(
    folder: Path, computed: list[int], write_module: Callable[[str, str], Trust], tmp_path: Path
) -> None:
    """Also if it changes other samples than those by which files are checked."""
    _, stream = regression_problem()
    x = np.zeros_like(stream.x)
    x[0, -1] = 100.0
    rare = replace(stream, x=x)
    for largest in (50.0, 60.0):
        trust = write_module("bounded_networks", FACTORY.format(largest=largest))
        if largest == 50.0:
            modules = {name: load_object("bounded_networks:Bounded", field="x", trusted=trust)() for name in "ab"}
            for module in modules.values():
                nn.init.ones_(module.linear.weight)
            architectures: dict[str, tuple[str, dict[str, object]]] = {
                name: ("bounded_networks:Bounded", {}) for name in modules
            }
            Dictionary.from_modules(modules, task="regression", architectures=architectures).write(tmp_path / "models")
        outputs = made(Dictionary.read(tmp_path / "models", trust=trust), rare).outputs
        assert outputs.max() == pytest.approx(largest)
    assert len(computed) == 2


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def _change_a_value(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def _replace_by_another(path: Path) -> None:
    dictionary, stream = regression_problem()
    made(dictionary, Stream(stream.x[::-1].copy(), stream.y, stream.task))
    (other,) = (each for each in path.parent.glob("*.npy") if each != path)
    other.replace(path)


@pytest.mark.parametrize(
    "damage", [_truncate, _change_a_value, _replace_by_another, lambda path: path.write_bytes(b"")]
)
def test_a_damaged_or_foreign_file_is_computed_again(
    damage: Callable[[Path], None], folder: Path, computed: list[int]
) -> None:
    problem = regression_problem()
    expected = np.array(made(*problem).outputs)
    (path,) = folder.glob("*.npy")
    damage(path)
    before = len(computed)
    assert made(*problem).outputs.tobytes() == expected.tobytes()
    assert made(*problem).outputs.tobytes() == expected.tobytes()
    assert len(computed) == before + 1


def test_large_outputs_are_not_cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dictionary, stream = regression_problem()
    monkeypatch.setattr(cached, "MOST_BYTES", 4 * stream.clients * stream.rounds * len(dictionary) - 1)
    assert make_cached_compute(dictionary, stream) is None
    assert isinstance(make_compute(dictionary, stream, cached=True), ThreadedCompute)
    assert not folder.exists()


def test_a_cache_that_cannot_be_written_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("not a folder")
    assert isinstance(make_compute(*regression_problem(), cached=True), ThreadedCompute)
    folder.unlink()

    def full(*rest: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert isinstance(make_compute(*regression_problem(), cached=True), ThreadedCompute)
    assert list(folder.iterdir()) == []


def test_files_that_were_not_used_for_longest_are_removed(tmp_path: Path) -> None:
    for age, name in enumerate(("new.npy", "old.npy", ".killed.npy.part", ".other.npy.lock")):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    make_room(tmp_path, 100, limit=400)
    assert len(list(tmp_path.iterdir())) == 4
    make_room(tmp_path, 100, limit=250)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.npy.lock", "new.npy"]


@pytest.mark.usefixtures("folder")
def test_the_same_outputs_are_not_computed_twice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is on the file, so that two threads exclude each other as two processes do."""
    computed, both_started = [], threading.Barrier(2)
    blocks = outputs.ModelOutputs.blocks

    def slow(self: outputs.ModelOutputs, workers: int, *, progress: bool) -> Iterator[AnyArray]:
        computed.append(1)
        time.sleep(0.3)
        yield from blocks(self, workers, progress=progress)

    def compute(problem: tuple[Dictionary, Stream]) -> bytes:
        both_started.wait()
        return made(*problem).outputs.tobytes()

    monkeypatch.setattr(outputs.ModelOutputs, "blocks", slow)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(compute, [regression_problem() for _ in range(2)])
    assert len(computed) == 1
    assert one == other


@pytest.mark.usefixtures("folder")
def test_outputs_that_are_not_finite_have_finite_losses() -> None:
    dictionary, stream = regression_problem()
    networks = {model.name: model.module for model in dictionary.models} | {"net1": _Power(-10_000)}
    dictionary = Dictionary.from_modules(networks, task="regression")
    held = np.zeros((stream.clients, len(dictionary)), dtype=np.bool_)
    held[:, 0] = True
    compute = made(dictionary, stream)
    found = compute.evaluate((0, 4), held, held.astype(np.float64), hindsight=True).result()
    assert np.isfinite(found.scores).all()
    assert np.isfinite(found.losses).all()
    assert np.isnan(found.model_scores[..., 1]).any(), "the model has no score of its own"


def test_no_workers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="workers = 0"):
        make_cached_compute(*regression_problem(), workers=0)
