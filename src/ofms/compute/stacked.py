"""Fully connected networks of one architecture as one batched product.

Evaluating twenty small networks on a hundred samples each is launching kernels more than computing; stacked, it is one
kernel a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, eq=False)
class Layer:
    """One linear layer of all models: [M, inputs, outputs] and [M, 1, outputs], and whether a ReLU follows."""

    weight: torch.Tensor
    bias: torch.Tensor
    relu: bool


@dataclass(frozen=True, eq=False)
class Stack:
    """Models of one architecture whose parameters lie side by side in memory."""

    models: list[int]
    layers: list[Layer]

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        """[M, R, C] from [R, inputs]: the same samples for all models."""
        hidden = inputs.expand(len(self.models), *inputs.shape)
        for layer in self.layers:
            hidden = torch.baddbmm(layer.bias, hidden, layer.weight)
            if layer.relu:
                hidden = hidden.relu_()
        return hidden


def is_stackable(module: nn.Module) -> bool:
    """Whether a network is a chain of linear layers with or without a ReLU behind each."""
    return (
        isinstance(module, nn.Sequential)
        and len(module) > 0
        and all(type(layer) in (nn.Linear, nn.ReLU) for layer in module)
        and isinstance(module[0], nn.Linear)
        and all(layer.bias is not None for layer in module if isinstance(layer, nn.Linear))
        and not any(
            isinstance(layer, nn.ReLU) and isinstance(behind, nn.ReLU)
            for layer, behind in zip(module, list(module)[1:], strict=False)
        )
    )


def stack_modules(models: list[int], modules: list[nn.Sequential]) -> Stack:
    """Move the parameters of equal networks side by side; the networks go on using them in place."""
    layers = []
    for position, template in enumerate(modules[0]):
        if not isinstance(template, nn.Linear):
            continue
        linears = [module[position] for module in modules]
        weight = torch.stack([linear.weight.detach() for linear in linears])
        bias = torch.stack([linear.bias.detach() for linear in linears])
        for row, linear in enumerate(linears):
            linear.weight.data = weight[row]
            linear.bias.data = bias[row]
        relu = position + 1 < len(modules[0]) and isinstance(modules[0][position + 1], nn.ReLU)
        layers.append(Layer(weight.transpose(1, 2), bias.unsqueeze(1), relu))
    return Stack(models, layers)
