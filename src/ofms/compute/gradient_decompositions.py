"""Gradients of convolutions and pooling in operations that ONNX has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions

_aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's core decompositions and those of this module."""
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    table[_aten.convolution_backward.default] = _convolution_backward
    table[_aten.max_pool2d_with_indices_backward.default] = _max_pool_backward
    return table


def _convolution_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Gradients in the input, the weight and the bias.

    That in the input is a transposed convolution; that in the weight a convolution of the input, whose channels and
    samples change places, with the gradient as its kernel.
    """
    if transposed:
        raise NotImplementedError("the gradient of a transposed convolution")
    spatial = range(2, x.ndim)
    in_input = in_weight = in_bias = None
    if wanted[0]:
        # What a stride leaves over at the border.
        left = [
            x.shape[axis] - ((gradient.shape[axis] - 1) * step - 2 * pad + spread * (weight.shape[axis] - 1) + 1)
            for axis, step, pad, spread in zip(spatial, stride, padding, dilation, strict=True)
        ]
        in_input = _aten.convolution(gradient, weight, None, stride, padding, dilation, True, left, groups)
    if wanted[1]:
        none = [0] * len(stride)
        parts = []
        for part, slopes in zip(x.chunk(groups, dim=1), gradient.chunk(groups, dim=1), strict=True):
            kernel = slopes.transpose(0, 1)
            found = _aten.convolution(part.transpose(0, 1), kernel, None, dilation, padding, stride, False, none, 1)
            parts.append(found.transpose(0, 1))
        in_weight = torch.cat(parts) if groups > 1 else parts[0]
        for axis in spatial:
            in_weight = in_weight.narrow(axis, 0, weight.shape[axis])
    if wanted[2]:
        in_bias = gradient.sum(dim=[0, *spatial])
    return in_input, in_weight, in_bias


def _max_pool_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: torch.Tensor,
) -> torch.Tensor:
    """Each gradient goes to the position of its maximum."""
    empty = torch.zeros_like(x).flatten(-2)
    return empty.scatter_add(-1, indices.flatten(-2), gradient.flatten(-2)).view_as(x)
