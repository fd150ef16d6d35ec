"""Local updates that cannot be fused: clients side by side, each with parameters of its own (`torch.func`)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from ofms.compute.tasks import sample_losses
from ofms.models.dictionary import Task
from ofms.policies.protocol import Adapted, Epochs

Tensors = dict[str, torch.Tensor]


def own_copies(module: nn.Module, trainable: tuple[str, ...], clients: int) -> Tensors:
    """The trainable parameters, once for each client."""
    parameters = dict(module.named_parameters())
    return {name: parameters[name].detach().expand(clients, *parameters[name].shape) for name in trainable}


def train(
    module: nn.Module, start: Tensors, x: torch.Tensor, y: torch.Tensor, local: Epochs | Adapted, task: Task
) -> Tensors:
    """Each client's parameters after its epochs over [M, W, ...] samples, in their order."""
    gradient = _gradient_function(module, task)
    current = start
    for _ in range(local.epochs):
        for xs, ys in zip(x.split(local.batch_size, dim=1), y.split(local.batch_size, dim=1), strict=True):
            if isinstance(local, Adapted):
                half = xs.shape[1] // 2
                there = (
                    _step(current, gradient(current, xs[:, :half], ys[:, :half]), local.adaptation_rate)
                    if half
                    else current
                )
                slope = gradient(there, xs[:, half:], ys[:, half:])
            else:
                slope = gradient(current, xs, ys)
            current = _step(current, slope, local.rate)
    return current


def adapt(module: nn.Module, start: Tensors, x: torch.Tensor, y: torch.Tensor, rate: float, task: Task) -> Tensors:
    """Each client's parameters after one step on its own [M, W, ...] samples."""
    return _step(start, _gradient_function(module, task)(start, x, y), rate)


def outputs(module: nn.Module, parameters: Tensors, x: torch.Tensor) -> torch.Tensor:
    """[M, n, C] outputs of each client's own network on its own samples."""
    forward: Callable[[Tensors, torch.Tensor], torch.Tensor] = vmap(lambda own, xs: functional_call(module, own, (xs,)))
    return forward(parameters, x)


def _gradient_function(module: nn.Module, task: Task) -> Callable[[Tensors, torch.Tensor, torch.Tensor], Tensors]:
    def mean_loss(parameters: Tensors, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
        return sample_losses(functional_call(module, parameters, (xs,)), ys, task).mean()

    function: Callable[[Tensors, torch.Tensor, torch.Tensor], Tensors] = vmap(grad(mean_loss))
    return function


def _step(parameters: Tensors, slope: Tensors, rate: float) -> Tensors:
    return {name: tensor - rate * slope[name] for name, tensor in parameters.items()}
