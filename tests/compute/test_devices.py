"""Accelerators: tensors stay on them, losses come back in one transfer, results do not change between runs.

The device `meta` has shapes, but no values: there, every operation is checked on any machine. PyTorch's fake tensors of
CUDA would be nearer to it, but need a build for CUDA, also without a GPU: others have no code that makes a device of
CUDA the current one, which moving tensors, indexing them and every backward pass begin with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ofms.compute import devices, own_copies, threads, updates
from ofms.compute.devices import Delivery, reproducible, require_device
from ofms.compute.momentum import Momentum
from ofms.compute.own_copies import OwnCopies
from ofms.compute.protocol import Adaptation, Evaluation, Tensors
from ofms.compute.threads import ThreadedCompute
from ofms.core.errors import InvalidInput
from ofms.core.schedule import Window
from ofms.core.tasks import done
from ofms.core.typing import AnyArray
from ofms.policies.local_updates import Adapted, Epochs, GradientStep, LocalUpdate
from tests.problems import PROBLEMS, updates_of

CUDA = torch.device("cuda")
LOCAL: list[LocalUpdate] = [
    GradientStep(0.1, window=3, warm_up=0),
    GradientStep(0.1, window=3, warm_up=0, objective="pool"),
    Epochs(0.1, epochs=2, batch_size=2, window=3, warm_up=0),
    Adapted(0.1, adaptation_rate=0.1, epochs=1, batch_size=2, window=3, warm_up=0),
]
WINDOW = Window(2, np.full(3, 1 / 3))
ACCELERATOR = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
AT_HAND = ["cpu", *([] if ACCELERATOR is None else [ACCELERATOR.type])]


class OneDevice(TorchDispatchMode):
    """Rejects operations on tensors of different devices, and any computation in main memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, aten = dict(kwargs or {}), torch.ops.aten
        if func is aten._to_copy.default:
            # A tensor of this device has no values that could be copied.
            leaves = args[0].device.type == "meta" and given.get("device") == torch.device("cpu")
            return torch.empty(args[0].shape, dtype=args[0].dtype) if leaves else func(*args, **given)
        tensors = [each for each in tree_leaves((args, given)) if isinstance(each, torch.Tensor)]
        places = {tensor.device.type for tensor in tensors}
        if func is not aten.copy_.default and len(places) > 1:
            raise RuntimeError(f"{func} mixes {places}")
        if places == {"cpu"} and func.overloadpacket not in (aten.to, aten.detach, aten.lift_fresh):
            raise RuntimeError(f"{func} computes in main memory")
        return func(*args, **given)


@contextmanager
def on_one_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Tensor]]:
    """Yields the tensors that are transferred to NumPy, as zeros."""
    transferred: list[torch.Tensor] = []

    def to_array(tensor: torch.Tensor) -> AnyArray:
        transferred.append(tensor)
        return np.zeros(tuple(tensor.shape), dtype=np.float32)

    monkeypatch.setattr(devices, "to_array", to_array)
    # There are no values to look at.
    for module in (updates, own_copies):
        monkeypatch.setattr(module, "is_finite", lambda tensors: {each.device.type for each in tensors} == {"meta"})
    with OneDevice():  # type: ignore[no-untyped-call]
        yield transferred


def held_and_weights(clients: int, models: int) -> tuple[AnyArray, AnyArray]:
    held = np.arange(clients * models).reshape(clients, models) % 3 > 0
    return held, held / held.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_no_tensor_of_an_evaluation_strays_and_losses_are_transferred_once(
    problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dictionary, stream = PROBLEMS[problem]()
    held, weights = held_and_weights(stream.clients, len(dictionary))
    late, own = np.where(held, 2, 0), OwnCopies(dictionary, stream, 1, device="meta")
    further: list[dict[str, Any]] = [{}, {"late": late}, {"own": own}, {"adaptation": Adaptation(WINDOW, 0.1)}]
    compute = ThreadedCompute(dictionary, stream, device="meta")
    with on_one_device(monkeypatch) as transferred, compute:
        for count, each in enumerate(further, start=1):
            found = compute.evaluate((5, 7), held, weights, hindsight=True, **each).result()
            assert found.losses.shape == (stream.clients, 2, len(dictionary))
            assert [tensor.device.type for tensor in transferred] == count * ["meta"]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_no_tensor_of_an_update_strays(problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dictionary, stream = PROBLEMS[problem]()
    held, weights = held_and_weights(stream.clients, len(dictionary))
    compute, own = (
        ThreadedCompute(dictionary, stream, device="meta"),
        OwnCopies(dictionary, stream, 1, device="meta"),
    )
    with on_one_device(monkeypatch) as transferred, compute:
        for local in LOCAL:
            momentum = Momentum(0.9)
            summed = updates_of(compute, WINDOW, weights, local, weights)
            assert {part.device.type for update in summed.values() for part in update.values()} == {"meta"}
            compute.apply(momentum.add(momentum.add(summed)), np.full(len(dictionary), 0.5))
            own.start(held[:, 1])
            assert own.train(WINDOW, held[:, 1], local) == []
        assert len(transferred) == 1, "the outputs of pools, for the update that reduces their loss"
        assert {tensor.device.type for tensor in compute.state(0).values()} == {"cpu"}
        compute.load_state(0, compute.state(0))
        assert {tensor.device.type for tensor in compute.networks.parameters[0].values()} == {"meta"}


def test_a_tensor_that_strays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    dictionary, stream = PROBLEMS["regression"]()
    held, weights = held_and_weights(stream.clients, len(dictionary))
    compute = ThreadedCompute(dictionary, stream, device="meta")
    compute.samples.y = torch.zeros(compute.samples.y.shape)
    with on_one_device(monkeypatch), compute, pytest.raises(RuntimeError, match=r"main memory|mixes"):
        compute.evaluate((5, 7), held, weights, hindsight=True).result()


def train_and_evaluate(problem: str, device: str) -> tuple[list[Evaluation], list[Tensors]]:
    dictionary, stream = PROBLEMS[problem]()
    held, weights = held_and_weights(stream.clients, len(dictionary))
    with ThreadedCompute(dictionary, stream, device=device) as compute:
        for local in LOCAL:
            summed = updates_of(compute, WINDOW, weights, local, weights)
            compute.apply(summed, np.full(len(dictionary), 0.5))
        further: list[dict[str, Any]] = [{"late": np.where(held, 2, 0)}, {"adaptation": Adaptation(WINDOW, 0.1)}]
        found = [compute.evaluate((5, 7), held, weights, hindsight=True, **each).result() for each in further]
        return found, [compute.state(model) for model in range(len(dictionary))]


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("device", AT_HAND)
def test_devices_at_hand_agree_and_repeat_their_results(problem: str, device: str) -> None:
    expected, found, again = (train_and_evaluate(problem, place) for place in ("cpu", device, device))
    for mine, theirs, repeated in zip(found[0], expected[0], again[0], strict=True):
        np.testing.assert_allclose(mine.losses, theirs.losses, rtol=1e-3, atol=1e-5)
        np.testing.assert_array_equal(mine.losses, repeated.losses)
    for own, other, repeat in zip(found[1], expected[1], again[1], strict=True):
        for name, tensor in own.items():
            torch.testing.assert_close(tensor, other[name], rtol=1e-3, atol=1e-5)
            assert torch.equal(tensor, repeat[name])


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_way_of_an_accelerator_gives_the_same_bits(problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train_and_evaluate(problem, "cpu")
    monkeypatch.setattr(threads, "Delivery", lambda device: Delivery(CUDA))
    monkeypatch.setattr(ThreadedCompute, "_start", lambda self, tasks: [done(task) for task in tasks])
    found = train_and_evaluate(problem, "cpu")
    for mine, theirs in zip(found[0], expected[0], strict=True):
        for name in ("scores", "client_losses", "losses", "model_scores", "prediction_losses", "outputs"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    for own, other in zip(found[1], expected[1], strict=True):
        assert all(torch.equal(own[name], other[name]) for name in own)


def test_accelerators_compute_in_full_precision_and_repeatably(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    with reproducible(CUDA):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.allow_tf32
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(
    ("name", "dtype", "line"),
    [
        ("cuda", "float32", "device = cuda: cuda is not available here; leave it out to run on the processor"),
        ("mps", "float32", "device = mps: mps is not available here"),
        ("tpu", "float32", "device = tpu: use cpu, cuda, cuda:1 (the second one), or mps"),
        ("cuda:x", "float32", "device = cuda:x: use cpu"),
        ("meta", "float32", "device = meta: use cpu"),
    ],
)
def test_devices_that_are_not_here_are_refused(
    name: str, dtype: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InvalidInput) as error:
        require_device(name, dtype)
    assert str(error.value).startswith(line)


def test_devices_that_are_here_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert [require_device(name) for name in (None, "cpu", "cuda", "cuda:1", "mps")] == [
        *("cpu", "cpu", "cuda", "cuda:1", "mps")
    ]
    with pytest.raises(InvalidInput, match="cuda:2: there are 2 here, numbered from 0"):
        require_device("cuda:2")
    with pytest.raises(InvalidInput, match="mps computes in float32"):
        require_device("mps", "float64")
