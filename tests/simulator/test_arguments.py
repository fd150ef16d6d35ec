"""Arguments of `simulate`: each does what one expects, or is rejected by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ofms
from tests.problems import regression_problem

DICTIONARY, STREAM = regression_problem(clients=4, rounds=8)
X, Y = STREAM.x, STREAM.y
MODULES = {model.name: model.module for model in DICTIONARY.models}
FIXED: dict[str, Any] = {"budget": "2", "bandwidth": "100%", "policy": "ofms-ft", "preset": "theory"}


def run(**given: Any) -> ofms.Result:
    values: dict[str, Any] = {"models": DICTIONARY, "stream": STREAM} | FIXED | given
    return ofms.simulate(**values)


@pytest.fixture(scope="module")
def expected() -> ofms.Result:
    return run()


def same(one: ofms.Result, other: ofms.Result) -> bool:
    return np.array_equal(one.score, other.score) and np.array_equal(one.regret(), other.regret())


@pytest.mark.parametrize(
    "models", [MODULES, list(MODULES.values()), nn.ModuleDict(MODULES), nn.ModuleList(MODULES.values())]
)
def test_networks_become_a_dictionary(models: Any, expected: ofms.Result) -> None:
    assert same(run(models=models), expected)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (nn.Linear(3, 1), "models = Linear: selection needs at least 2 models"),
        ([nn.Linear(3, 1)], "models = list: selection needs at least 2 models"),
        ({}, "models = dict: selection needs at least 2 models"),
        ([nn.Linear(3, 1), "small"], "models = model1: 'small': give a Dictionary"),
        ({1: nn.Linear(3, 1), 2: nn.Linear(3, 1)}, "models = 1: Linear: give a Dictionary"),
        (3, "models = 3: give a Dictionary"),
        (False, "models = False: give a Dictionary"),
        (np.zeros(3), "models = ndarray: give a Dictionary"),
        (Path("no-such-folder"), "models = .*no-such-folder: it has no readable dictionary"),
    ],
)
@pytest.mark.parametrize("stream", [STREAM, None])
def test_other_models_are_rejected_and_not_replaced(models: Any, message: str, stream: Any) -> None:
    """Neither with a stream nor without one does the experiment's own dictionary take their place."""
    with pytest.raises(ofms.InvalidInput, match=message):
        run(models=models, stream=stream)


def test_networks_are_used_with_the_experiment_too() -> None:
    with pytest.raises(ofms.InvalidInput, match="models = net0: it does not accept samples"):
        run(models=MODULES, stream=None, clients=2, rounds=2)


STREAMS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "tensors": lambda: (torch.tensor(X), torch.tensor(Y)),
    "tensors that require a gradient": lambda: (
        torch.tensor(X, requires_grad=True),
        torch.tensor(Y, requires_grad=True),
    ),
    "lists": lambda: (X.tolist(), Y.tolist()),
    "float64": lambda: (X.astype(np.float64), Y),
    "an array that cannot be written": lambda: (np.broadcast_to(X, X.shape), Y),
    "another byte order": lambda: (X.astype(">f4"), Y.astype(">f4")),
    "extended precision": lambda: (X.astype(np.longdouble), Y.astype(np.longdouble)),
    "a negated view": lambda: (torch._neg_view(torch.tensor(-X)), Y),
    "a masked array without masked values": lambda: (np.ma.masked_array(X, np.zeros(X.shape, dtype=bool)), Y),
}


@pytest.mark.parametrize("case", STREAMS)
def test_samples_of_any_kind(case: str, expected: ofms.Result) -> None:
    x, y = STREAMS[case]()
    found = run(stream=ofms.Stream(x, y, "regression"))
    assert found.score == pytest.approx(expected.score, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_tensors_of_any_dtype(dtype: torch.dtype) -> None:
    x = (torch.tensor(X) > 0).to(dtype)
    found, plain = (run(stream=ofms.Stream(each, Y, "regression")) for each in (x, x.float().numpy()))  # type: ignore[arg-type]
    assert same(found, plain)


def masked(values: Any, *index: int) -> Any:
    mask = np.zeros(values.shape, dtype=bool)
    mask[index] = True
    return np.ma.masked_array(values, mask)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (ofms.Stream(masked(X, 1, 2, 0), Y, "regression"), r"stream inputs = masked: see index \[1, 2, 0\]"),
        (ofms.Stream(X, masked(Y, 3, 1), "regression"), r"stream targets = masked: see index \[3, 1\]"),
        (ofms.Stream(X.astype(object), Y, "regression"), "stream inputs = object: give an array of real numbers"),
        (ofms.Stream(X.astype(str), Y, "regression"), "stream inputs = <U32: give an array of real numbers"),
        (ofms.Stream(X.astype(complex), Y, "regression"), "stream inputs = complex128: give an array of real numbers"),
        (ofms.Stream([[1.0], [2.0, 3.0]], Y, "regression"), "stream inputs = list: give an array of numbers"),  # type: ignore[arg-type]
        (
            ofms.Stream(torch.tensor(X).to_sparse(), Y, "regression"),  # type: ignore[arg-type]
            "stream inputs = torch.sparse_coo, .*: give a dense",
        ),
        (ofms.Stream(torch.tensor(X).to("meta"), Y, "regression"), "stream inputs = .* on meta: give a dense tensor"),  # type: ignore[arg-type]
        (
            ofms.Stream(X.astype(np.float64) * 1e39, Y, "regression"),  # type: ignore[arg-type]
            r"stream inputs = .*e\+38: see client 0, round 1; beyond float32: scale the values",
        ),
        (ofms.Stream(X, Y * np.nan, "regression"), "stream targets = not finite: see client 0, round 1; drop or fill"),
        (ofms.Stream(X, Y.astype(np.int64) * 0 - 1, "classification"), "stream targets = -1: classes must be integers"),
        (ofms.Stream(X, Y, "regression", names=("a", "b", "c", "d\x1b[2J")), "stream names = .*: give names of print"),
        (ofms.Stream(X, Y, "regression", names=("a", "b", "c", 3)), "stream names = 3: give names of print"),  # type: ignore[arg-type]
        (ofms.Stream(X, Y, "regresion"), "task = regresion: use classification or regression"),  # type: ignore[arg-type]
        (X, r"stream = ndarray: give ofms.Stream\(x, y, task\)"),
        ((X, Y), "stream = tuple: give ofms.Stream"),
        ("samples.csv", "stream = 'samples.csv': give ofms.Stream"),
        (Path("samples.csv"), "stream = PosixPath: give ofms.Stream"),
    ],
)
def test_other_samples_are_rejected_by_name(stream: Any, message: str) -> None:
    with pytest.raises(ofms.InvalidInput, match=message):
        run(stream=stream)


def test_numpy_numbers_count_as_numbers() -> None:
    numpy = {"rounds": np.int64(6), "clients": np.int32(3), "seed": np.uint8(7), "interval": np.int16(2)}
    numpy |= {"learning_rate": np.float32(0.5), "window": np.int64(2), "history": np.array(2)}
    plain = {"rounds": 6, "clients": 3, "seed": 7, "interval": 2, "learning_rate": 0.5, "window": 2, "history": 2}
    one, other = run(**numpy, workers=np.int64(1)), run(**plain)
    assert same(one, other)
    assert one.config == other.config


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_budgets_in_a_list(kind: Any) -> None:
    assert same(run(budget=kind([2, 3, 2, 4])), run(budget="2,3,2,4"))
    with pytest.raises(ofms.InvalidInput, match=r"budget = 2,3: give one budget, one per client \(4\)"):
        run(budget=kind([2, 3]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"experiment": 3}, "experiment = 3: give a name"),
        ({"policy": np}, "policy = module: give its name"),
        ({"out": 3}, "out = 3: name a folder"),
        ({"resume": 3}, "resume = 3: name the folder"),
        ({"workers": 1.5}, "workers = 1.5: give a whole number"),
        ({"loopback": "no"}, "loopback = 'no': give True or False"),
        ({"checkpoint": "soon"}, "checkpoint = 'soon': give the seconds"),
        ({"checkpoint": float("nan")}, "checkpoint = nan: give the seconds"),
        ({"trust": 3}, "trust = 3: name packages"),
        ({"rounds": 5.5}, "rounds = 5.5: give a whole number of at least 1, not a decimal number"),
        ({"budget": True}, "budget = True: write '5'"),
        ({"budget": {"a": 2}}, "budget = "),
    ],
)
def test_other_arguments_are_rejected_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ofms.InvalidInput, match=message):
        run(**given)


def test_a_path_names_an_experiment(tmp_path: Path, expected: ofms.Result) -> None:
    run(out=tmp_path / "run")
    assert same(ofms.simulate(tmp_path / "run" / "config.toml", models=DICTIONARY, stream=STREAM), expected)


@pytest.mark.parametrize(
    ("modules", "task", "message"),
    [
        (list(MODULES.values()), "regression", "modules = list: give networks by name"),
        ({"a": "b"}, "regression", "modules = a: str: give torch.nn.Modules by name"),
        ({**MODULES, "": next(iter(MODULES.values()))}, "regression", "name = '': models: give a name of printable"),
        (
            {**MODULES, "a\nb": next(iter(MODULES.values()))},
            "regression",
            "name = .*: models: give a name of printable",
        ),
        (MODULES, "regresion", "task = regresion: models: use classification or regression"),
    ],
)
def test_a_dictionary_names_what_is_wrong(modules: Any, task: Any, message: str) -> None:
    with pytest.raises(ofms.InvalidInput, match=message):
        ofms.Dictionary.from_modules(modules, task=task)


class _Centred(nn.Linear):
    """Its outputs depend on the other samples of a batch, which are of other clients."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input - input.mean(dim=0))


class _Noisy(nn.Linear):
    """Draws from PyTorch's generator, so that no seed repeats the run."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + torch.randn(len(input), 1)


class _Last(nn.Module):
    """Without parameters: the last input."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input[:, -1:]


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda: _Centred(3, 1), "models = model0: its output for a sample differs alone and beside another"),
        (lambda: _Noisy(3, 1), "models = model0: its output for a sample differs alone and beside another"),
        (lambda: nn.LazyLinear(1), "model0: weight = no values yet: call the network with a sample"),
        (lambda: nn.Linear(3, 1, device="meta"), "model0: weight = no values yet: "),
        (_Last, "models = model0: it has no parameters and therefore no size"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_networks_that_cannot_be_compared(network: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ofms.InvalidInput, match=message):
        run(models=[network(), network()])


@pytest.mark.parametrize("names", [np.array(["a", "b", "c", "d"]), ["a", "b", "c", "d"]])
def test_names_of_clients_in_any_sequence(names: Any) -> None:
    stream = ofms.Stream(X, Y, "regression", names=names)
    assert repr(stream).endswith(": a to d)")
    assert run(stream=stream, budget="a=2,*=3").client_names == ["a", "b", "c", "d"]


def test_names_that_differ_in_spaces_only() -> None:
    """A stray space in a table would make two clients of one."""
    with pytest.raises(ofms.InvalidInput, match="stream names = 'b ': another name differs in spaces only"):
        run(stream=ofms.Stream(X, Y, "regression", names=("a", "b", "b ", "c")))


def test_a_stream_of_ones_own_is_no_dataset(expected: ofms.Result) -> None:
    """Its configuration, which is on its page, names none."""
    assert (expected.config.experiment, expected.config.dataset) == ("own stream", None)
