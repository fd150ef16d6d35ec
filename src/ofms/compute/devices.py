"""Where models compute: on the processor, or on an accelerator, with results that do not change between runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ofms.compute.samples import to_array
from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray

# The size of cuBLAS's workspaces with which its products do not change between runs.
_CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def require_device(name: str | None, dtype: str = "float32") -> str:
    """The name of a device that is here; None is the processor."""
    if name is None or name == "cpu":
        return "cpu"
    kind = name.partition(":")[0]
    try:
        place = torch.device(name)
    except RuntimeError:
        place = None
    if place is None or kind not in ("cuda", "mps"):
        raise InvalidInput("device", name, "use cpu, cuda, cuda:1 (the second one), or mps")
    found = torch.cuda.device_count() if kind == "cuda" else int(torch.backends.mps.is_available())
    if found == 0:
        raise InvalidInput("device", name, f"{kind} is not available here; leave it out to run on the processor")
    if (place.index or 0) >= found:
        raise InvalidInput("device", name, f"there are {found} here, numbered from 0")
    if kind == "mps" and dtype == "float64":
        raise InvalidInput("device", name, "mps computes in float32; leave out dtype, or run on the processor")
    return name


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Until the context ends, an accelerator computes in full precision, with the same results in every run."""
    if device.type == "cpu":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    switches: list[tuple[Any, str, Any]] = [
        (torch.backends.cuda.matmul, "allow_tf32", False),
        (torch.backends.cudnn, "allow_tf32", False),
        (torch.backends.cudnn, "benchmark", False),
        # All memory is written before it is read.
        (torch.utils.deterministic, "fill_uninitialized_memory", False),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in switches]
    # Read when cuBLAS is started, with the first product.
    os.environ.setdefault(*_CUBLAS)
    try:
        for owner, name, value in switches:
            setattr(owner, name, value)
        torch.use_deterministic_algorithms(True)
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        for owner, name, value in kept:
            setattr(owner, name, value)


class Delivery:
    """Hands tensors to NumPy: at once if they are in main memory, else all of them in one transfer at the end."""

    def __init__(self, device: torch.device) -> None:
        self._at_once = device.type == "cpu"
        self._waiting: list[tuple[Callable[..., None], tuple[torch.Tensor, ...]]] = []

    def give(self, receive: Callable[..., None], *tensors: torch.Tensor) -> None:
        """Call `receive` with the tensors as arrays, now or in `finish`."""
        if self._at_once:
            receive(*map(to_array, tensors))
        else:
            self._waiting.append((receive, tensors))

    def finish(self) -> None:
        """Transfer what is waiting."""
        arrays = iter(to_arrays([tensor for _, tensors in self._waiting for tensor in tensors]))
        for receive, tensors in self._waiting:
            receive(*(next(arrays) for _ in tensors))
        self._waiting = []


def to_arrays(tensors: Sequence[torch.Tensor]) -> list[AnyArray]:
    """Tensors of one device and dtype as NumPy arrays, in one transfer."""
    if not tensors:
        return []
    whole = to_array(torch.cat([tensor.detach().reshape(-1) for tensor in tensors]))
    arrays, first = [], 0
    for tensor in tensors:
        arrays.append(whole[first : first + tensor.numel()].reshape(tuple(tensor.shape)))
        first += tensor.numel()
    return arrays
