"""Fully connected networks of one architecture as one batched product per layer.

With twenty small networks, launching kernels and recording them for automatic differentiation takes longer than the
arithmetic. Stacking makes a layer of all networks one kernel; the backward pass is written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import nn

from ofms.compute.tasks import sample_losses, shifted
from ofms.models.dictionary import Task

# The backward pass of a ReLU, with an output argument.
_relu_backward = torch.ops.aten.threshold_backward.grad_input


@dataclass(frozen=True, eq=False)
class Layer:
    """One linear layer of M models, and whether a ReLU follows.

    `weight` is [M, outputs, inputs] and `bias` [M, 1, outputs], named `weight_name` and `bias_name` in the networks,
    which share this memory.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    relu: bool
    weight_name: str
    bias_name: str


@dataclass(frozen=True, eq=False)
class Stack:
    """Models of one architecture whose parameters are contiguous in memory."""

    models: list[int]
    layers: list[Layer]

    def outputs(self, inputs: torch.Tensor, workspace: Workspace) -> torch.Tensor:
        """[M, R, C] from [R, inputs]: the same samples for all models."""
        return _forward(self.layers, inputs.expand(len(self.models), *inputs.shape), workspace)[-1]

    def outputs_of(self, inputs: torch.Tensor, workspace: Workspace) -> torch.Tensor:
        """[M, R, C] from [M, R, inputs]: samples of each model."""
        return _forward(self.layers, inputs, workspace)[-1]

    def parts(self, size: int) -> list[Stack]:
        """Split into stacks of at most `size` models that share the parameters."""
        parts = []
        for first in range(0, len(self.models), size):
            part = slice(first, first + size)
            layers = [replace(layer, weight=layer.weight[part], bias=layer.bias[part]) for layer in self.layers]
            parts.append(Stack(self.models[part], layers))
        return parts

    def some(self, positions: list[int]) -> Stack:
        """A stack of some of the models, with copied parameters."""
        index = torch.tensor(positions, device=self.layers[0].weight.device)
        layers = [
            replace(layer, weight=layer.weight.index_select(0, index), bias=layer.bias.index_select(0, index))
            for layer in self.layers
        ]
        return Stack([self.models[position] for position in positions], layers)

    def gradients(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        weights: torch.Tensor,
        task: Task,
        workspace: Workspace,
        residuals: torch.Tensor | None = None,
        offset: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Gradients of Σ_r weight_r · loss_r for every model, by parameter name.

        Parameters
        ----------
        inputs
            [M, R, inputs] samples of each model; padding has weight 0.
        targets, weights
            [M, R].
        residuals
            [M, R, C] gradients in the outputs, instead of those of the models' own losses.
        offset
            [M, R, C] what is added to the outputs before their losses are computed.
        """
        activations = _forward(self.layers, inputs, workspace)
        if residuals is not None:
            gradient = residuals * weights[..., None]
        else:
            outputs = activations[-1].requires_grad_()
            losses = sample_losses(shifted(outputs, offset).flatten(0, 1), targets.flatten(), task)
            gradient = torch.autograd.grad(losses, outputs, weights.flatten())[0]
        ones = inputs.new_ones(inputs.shape[0], 1, inputs.shape[1])
        found: dict[str, torch.Tensor] = {}
        for depth in reversed(range(len(self.layers))):
            layer, below = self.layers[depth], activations[depth]
            found[layer.weight_name] = _weight_gradients(gradient, below)
            found[layer.bias_name] = torch.bmm(ones, gradient)[:, 0]
            if depth:
                back = workspace.tensor("gradient", depth % 2, below)
                # With one output, an element-wise product is faster than a matrix product.
                product = torch.mul if gradient.shape[2] == 1 else torch.bmm
                gradient = product(gradient, layer.weight, out=back)
                if self.layers[depth - 1].relu:
                    gradient = _relu_backward(gradient, below, 0, grad_input=gradient)
        return found


def _weight_gradients(gradient: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
    """[M, outputs, inputs] the sum over samples of gradient times input; faster with the narrower factor first."""
    if gradient.shape[2] <= below.shape[2]:
        return torch.bmm(gradient.transpose(1, 2), below)
    return torch.bmm(below.transpose(1, 2), gradient).transpose(1, 2)


class Workspace:
    """Memory for activations and gradients, reused by the next call: allocating pages costs more than filling them.

    Not thread-safe: each thread has its own.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: dict[tuple[str, int, torch.dtype], torch.Tensor] = {}

    def tensor(self, kind: str, number: int, like: torch.Tensor) -> torch.Tensor:
        """An uninitialised tensor of the shape and dtype of `like`."""
        return self.shaped(kind, number, like.shape, like.dtype)

    def shaped(self, kind: str, number: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor."""
        size = math.prod(shape)
        buffer = self._buffers.get((kind, number, dtype))
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[kind, number, dtype] = torch.empty(size, dtype=dtype, device=self.device)
        return buffer[:size].view(*shape)


def _forward(layers: list[Layer], inputs: torch.Tensor, workspace: Workspace) -> list[torch.Tensor]:
    """The inputs and outputs of each layer; the caller owns the last one, the workspace the others."""
    activations = [inputs]
    for depth, layer in enumerate(layers):
        weight = layer.weight.transpose(1, 2)
        if depth + 1 == len(layers):
            result = torch.baddbmm(layer.bias, activations[-1], weight)
        else:
            shape = (*inputs.shape[:2], weight.shape[2])
            room = workspace.shaped("layer", depth, shape, inputs.dtype)
            result = torch.baddbmm(layer.bias, activations[-1], weight, out=room)
        activations.append(result.relu_() if layer.relu else result)
    return activations


def is_stackable(module: nn.Module) -> bool:
    """Whether a network is a sequence of linear layers, each optionally followed by a ReLU."""
    if type(module) is not nn.Sequential or len(module) == 0 or type(module[0]) is not nn.Linear:
        return False
    kinds = [type(layer) for layer in module]
    linears = [layer for layer in module if isinstance(layer, nn.Linear)]
    return (
        set(kinds) <= {nn.Linear, nn.ReLU}
        and (nn.ReLU, nn.ReLU) not in pairwise(kinds)
        and all(layer.bias is not None for layer in linears)
        and len({id(layer.weight) for layer in linears}) == len({id(layer) for layer in linears}) == len(linears)
        and not any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())
    )


def stack_modules(models: list[int], modules: list[nn.Sequential]) -> Stack:
    """Move the parameters of equal networks into contiguous memory; the networks keep using them in place."""
    layers = []
    names = [name for name, _ in modules[0].named_children()]
    for position, template in enumerate(modules[0]):
        if not isinstance(template, nn.Linear):
            continue
        linears = [layer for layer in (module[position] for module in modules) if isinstance(layer, nn.Linear)]
        weight = torch.stack([linear.weight.detach() for linear in linears])
        bias = torch.stack([linear.bias.detach() for linear in linears])
        for row, linear in enumerate(linears):
            linear.weight.data = weight[row]
            linear.bias.data = bias[row]
        relu = position + 1 < len(modules[0]) and isinstance(modules[0][position + 1], nn.ReLU)
        layers.append(Layer(weight, bias.unsqueeze(1), relu, f"{names[position]}.weight", f"{names[position]}.bias"))
    return Stack(models, layers)
