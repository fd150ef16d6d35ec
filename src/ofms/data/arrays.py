"""Arrays of real numbers from what callers have: NumPy arrays of any layout, tensors, lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray


def real_array(field: str, values: Any) -> AnyArray:
    """A NumPy array of real numbers in this machine's byte order; rejected if a value is masked.

    >>> real_array("inputs", [[1, 2]])
    array([[1, 2]])
    >>> real_array("inputs", np.ma.masked_equal([0, 1], 1))
    Traceback (most recent call last):
    ...
    ofms.core.errors.InvalidInput: inputs = masked: see index [1]; drop or fill the sample
    """
    if hasattr(values, "detach"):  # A tensor; PyTorch may not be imported.
        values = _tensor_values(field, values)
    if isinstance(values, np.ma.MaskedArray):
        if np.ma.is_masked(values):
            where = [int(index) for index in np.argwhere(np.ma.getmaskarray(values))[0]]
            raise InvalidInput(field, "masked", f"see index {where}; drop or fill the sample")
        values = values.data
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InvalidInput(field, type(values).__name__, f"give an array of numbers ({error})") from None
    if array.dtype.kind not in "fiub":
        raise InvalidInput(field, array.dtype, "give an array of real numbers")
    # PyTorch reads neither extended precision nor another byte order nor, without a warning, an array that cannot be
    # written.
    copied = array if array.flags.writeable else array.copy()
    kind = array.dtype if array.dtype.itemsize <= 8 else np.dtype(np.float64)
    return copied.astype(kind.newbyteorder("="), copy=False)


def _tensor_values(field: str, tensor: Any) -> Any:
    """The values of a tensor of any type that has some; rejects sparse and quantised tensors, and those of `meta`."""
    try:
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        known = str(plain.dtype) in ("torch.float16", "torch.float32", "torch.float64")
        return (plain if known or not plain.is_floating_point() else plain.float()).numpy()
    except (TypeError, RuntimeError, NotImplementedError):
        kind = f"{tensor.layout}, {tensor.dtype} on {tensor.device}"
        raise InvalidInput(field, kind, "give a dense tensor of numbers, or an array") from None
