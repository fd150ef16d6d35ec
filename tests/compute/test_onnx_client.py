"""Exported graphs compute what PyTorch does, for any number of samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ofms
from ofms.compute import gradient_decompositions
from ofms.compute.losses import output_losses
from ofms.compute.onnx_export import NotExported, export_graphs, input_shape
from ofms.compute.torch_client import TorchClient
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import build_module
from ofms.policies.local_updates import Adapted, Epochs, GradientStep, LocalUpdate
from tests.edge_fleets import ARCHITECTURES, dictionary_of, onnx_client, samples_of

PROBLEMS = ["images", "values"]
STEPS: list[LocalUpdate] = [
    GradientStep(0.1, window=50, warm_up=0),
    Epochs(0.1, epochs=2, batch_size=3, window=50, warm_up=0),
    Adapted(0.1, adaptation_rate=0.05, epochs=1, batch_size=4, window=50, warm_up=0),
]


def torch_client(problem: str) -> TorchClient:
    architecture, options, task = ARCHITECTURES[problem]
    models = dictionary_of(problem).models
    return TorchClient([build_module(architecture, options) for _ in models], [each.trainable for each in models], task)


def clients(problem: str) -> tuple[Any, Any, list[dict[str, Any]]]:
    """The two implementations with the same models held, and their tensors."""
    one, other = torch_client(problem), onnx_client(problem)
    tensors = [{name: each.numpy() for name, each in model.tensors.items()} for model in dictionary_of(problem).models]
    for client in (one, other):
        for model, each in enumerate(tensors):
            client.hold(model, each)
    return one, other, tensors


@pytest.mark.parametrize("problem", PROBLEMS)
def test_outputs_losses_and_updates_agree(problem: str) -> None:
    one, other, tensors = clients(problem)
    for count in (1, 2, 17):
        x, y = samples_of(problem, count)
        y = y if ARCHITECTURES[problem][2] == "classification" else y.astype(np.float32)
        outputs = one.outputs(1, x)
        assert np.allclose(other.outputs(1, x), outputs, atol=1e-6)
        assert np.allclose(other.losses(outputs, y), one.losses(outputs, y), atol=1e-6)
        weights, pool = np.linspace(0.5, 1.5, count), np.array([0.2, 0.5, 0.3, 0, 0])
        offset = np.sin(np.arange(outputs.shape[1]) + 1.0)
        for own in (None, offset):
            residuals = one.residuals(dict(enumerate(tensors)), x, y, pool, own)
            assert np.allclose(other.residuals(dict(enumerate(tensors)), x, y, pool, own), residuals, atol=1e-6)
        cases: list[tuple[LocalUpdate, Any, Any]] = [(STEPS[0], residuals, None), (STEPS[0], None, offset)]
        for step, slopes, own in [*cases, *((step, None, None) for step in STEPS)]:
            expected = one.update(2, tensors[2], x, y, weights, 1.0, step, slopes, own)
            found = other.update(2, tensors[2], x, y, weights, 1.0, step, slopes, own)
            assert list(found) == list(expected)
            for name, array in expected.items():
                assert found[name].dtype == np.float32
                assert np.allclose(found[name], array, atol=1e-5, rtol=1e-5), (count, step, name)
            assert any(np.abs(array).max() > 1e-3 for array in expected.values())
        adapted = one.adapted(3, tensors[3], x, y, 0.1)
        assert np.allclose(other.outputs(3, x, adapted), one.outputs(3, x, adapted), atol=1e-6)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_both_describe_the_same_tensors(problem: str) -> None:
    one, other, _ = clients(problem)
    counted = {name: each for name, each in one.layout(0).items() if not name.endswith("num_batches_tracked")}
    assert dict(other.layout(0)) == counted


def test_a_wrong_input_is_a_value_error() -> None:
    _, other, _ = clients("values")
    with pytest.raises(ValueError, match="x"):
        other.outputs(0, np.zeros((1, 7), dtype=np.float32))


def test_losses_in_numpy_are_those_of_pytorch_however_extreme() -> None:
    outputs = np.array([[0.0, 3.0], [1e30, -1e30], [88.0, -88.0], [3e38, 3e38]], dtype=np.float32)
    y = np.array([1, 0, 1, 0])
    expected = nn.functional.cross_entropy(torch.from_numpy(outputs), torch.from_numpy(y), reduction="none")
    assert np.allclose(output_losses(outputs, y, "classification"), expected.numpy())
    values = np.array([[3e38], [0.5]], dtype=np.float32)
    assert output_losses(values, np.array([-3e38, 1.5], dtype=np.float32), "regression").tolist() == [np.inf, 1.0]


@settings(max_examples=25, deadline=None)
@given(
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    kernel=st.integers(1, 3),
    size=st.integers(6, 9),
    count=st.integers(1, 3),
)
def test_the_gradient_of_a_convolution_is_that_of_autograd(
    stride: int, padding: int, dilation: int, groups: int, kernel: int, size: int, count: int
) -> None:
    x = torch.randn(count, 4, size, size + 1, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 4 // groups, kernel, kernel, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(6, dtype=torch.float64, requires_grad=True)
    shape = ([stride] * 2, [padding] * 2, [dilation] * 2)
    outputs = nn.functional.conv2d(x, weight, bias, *shape, groups)
    slopes = torch.randn_like(outputs)
    expected = torch.autograd.grad(outputs, [x, weight, bias], slopes)
    found = gradient_decompositions._convolution_backward(
        slopes, x.detach(), weight.detach(), [6], *shape, False, [0, 0], groups, [True] * 3
    )
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        assert torch.allclose(one, other)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 1, 0), (3, 2, 1)])
def test_the_gradient_of_max_pooling_is_that_of_autograd(kernel: int, stride: int, padding: int) -> None:
    # Small integers: ties, which PyTorch gives to the first.
    x = torch.randint(0, 3, (2, 3, 8, 8)).double().requires_grad_()
    outputs, indices = nn.functional.max_pool2d(x, kernel, stride, padding, return_indices=True)
    slopes = torch.randn_like(outputs)
    (expected,) = torch.autograd.grad(outputs, x, slopes)
    sizes = [kernel] * 2, [stride] * 2, [padding] * 2, [1, 1]
    found = gradient_decompositions._max_pool_backward(slopes, x.detach(), *sizes, False, indices)
    assert torch.allclose(found, expected)


class Branching(nn.Module):
    """What it computes depends on the values of its input."""

    input_shape = (3,)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x if x.sum() > 0 else -x)
        return found


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Branching, "data-dependent"),
        (lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten()), "attribute input_shape"),
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2))), r"not one tensor \[n, C\]"),
    ],
)
def test_a_network_that_cannot_be_exported_says_why(module: Any, reason: str) -> None:
    dictionary = Dictionary.from_modules({"a": module(), "b": module()}, task="classification")
    with pytest.raises(NotExported, match=reason):
        export_graphs(dictionary.models[0], "classification")


def test_the_shape_of_an_input_is_known_or_stated() -> None:
    for problem, shape in (("images", (1, 10, 10)), ("digits", (64,))):
        assert input_shape(dictionary_of(problem).models[0]) == shape
    stated = Dictionary.from_modules({"a": Branching(), "b": Branching()}, task="regression")
    assert input_shape(stated.models[0]) == (3,)
    assert isinstance(stated, ofms.Dictionary)
