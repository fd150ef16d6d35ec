"""Check that models fit the samples, and that tensors are finite."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch

from ofms.core.errors import InvalidInput
from ofms.core.failures import describe_failure
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary

_ROUNDING = 1e-3


def require_fit(dictionary: Dictionary, stream: Stream) -> None:
    """Reject models that do not accept the stream's samples."""
    if dictionary.task != stream.task:
        raise InvalidInput("task", dictionary.task, f"the stream is for {stream.task}; give models for it")
    samples = torch.from_numpy(np.ascontiguousarray(np.resize(stream.x[:1, :2], (2, *stream.x.shape[2:]))))
    widths: dict[str, int] = {}
    for model in dictionary.models:
        kinds = {tensor.dtype for tensor in model.tensors.values() if tensor.is_floating_point()}
        inputs = samples.to(kinds.pop() if len(kinds) == 1 else torch.float32)
        try:
            with torch.no_grad():
                outputs, alone = (
                    torch.func.functional_call(model.module, model.tensors, (some,)) for some in (inputs, inputs[:1])
                )
        except Exception as error:  # The user's own network may raise anything.
            reason = describe_failure(error)
            shape = list(stream.x.shape[2:])
            remedy = f"it does not accept samples of shape {shape} ({reason})"
            raise InvalidInput("models", model.name, remedy) from error
        if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2 or outputs.shape[0] != 2:
            found = list(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
            raise InvalidInput("models", model.name, f"two samples must yield a tensor [2, outputs], not {found}")
        if not _is_same(outputs[:1], alone):
            remedy = "its output for a sample differs alone and beside another; forward must not mix samples or draw"
            raise InvalidInput("models", model.name, remedy)
        widths[model.name] = outputs.shape[1]
    width = next(iter(widths.values()))
    for name, other in widths.items():
        if other != width:
            raise InvalidInput("models", name, f"it has {other} outputs, but {next(iter(widths))} has {width}")
    if dictionary.task == "regression" and width != 1:
        raise InvalidInput("models", next(iter(widths)), f"a regression model has one output, not {width}")
    if dictionary.task == "classification" and int(stream.y.max()) >= width:
        raise InvalidInput("stream targets", int(stream.y.max()), f"the models predict classes 0 to {width - 1}")


def _is_same(outputs: torch.Tensor, others: object) -> bool:
    """Whether outputs are equal up to the rounding of kernels for batches of other sizes."""
    if not isinstance(others, torch.Tensor) or outputs.shape != others.shape:
        return False
    tolerance = max(_ROUNDING, 16 * torch.finfo(outputs.dtype).eps) if outputs.is_floating_point() else 0.0
    finite = outputs[torch.isfinite(outputs)]
    largest = float(finite.abs().max()) if len(finite) else 0.0
    return torch.allclose(outputs, others, rtol=0.0, atol=tolerance * max(largest, tolerance), equal_nan=True)


def is_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all values are finite: one pass, and a second one only if a sum overflows."""
    every = list(tensors)
    if math.isfinite(sum(float(tensor.sum()) for tensor in every)):
        return True
    return all(bool(torch.isfinite(tensor).all()) for tensor in every)
