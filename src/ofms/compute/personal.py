"""Local updates that cannot be fused: every client has its own parameters; side by side where that is faster."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from ofms.compute.tasks import sample_losses
from ofms.models.dictionary import Task
from ofms.policies.local_updates import Adapted, Epochs

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

    def forward(own: Tensors, xs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = functional_call(module, own, (xs,))
        return output

    if _are_images(x):
        return torch.stack([forward(own, xs) for own, xs in zip(_each(parameters), _laid_out(x), strict=True)])
    together: torch.Tensor = vmap(forward)(parameters, x)
    return together


def _gradient_function(module: nn.Module, task: Task) -> Callable[[Tensors, torch.Tensor, torch.Tensor], Tensors]:
    """The gradient of each client's mean loss at its own parameters."""

    def mean_loss(parameters: Tensors, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
        return sample_losses(functional_call(module, parameters, (xs,)), ys, task).mean()

    def one_by_one(parameters: Tensors, xs: torch.Tensor, ys: torch.Tensor) -> Tensors:
        slopes = []
        for own, x, y in zip(_each(parameters), _laid_out(xs), ys, strict=True):
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in own.items()}
            loss = mean_loss(leaves, x, y)
            slopes.append(torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True))
        return {name: torch.stack(some) for name, some in zip(parameters, zip(*slopes, strict=True), strict=True)}

    together: Callable[[Tensors, torch.Tensor, torch.Tensor], Tensors] = vmap(grad(mean_loss))
    return lambda parameters, xs, ys: (one_by_one if _are_images(xs) else together)(parameters, xs, ys)


def _are_images(x: torch.Tensor) -> bool:
    """Convolutions vectorised over clients are grouped ones, which have no fast kernel: one client after another."""
    return x.ndim == 5


def _each(parameters: Tensors) -> list[Tensors]:
    """The parameters by client."""
    return [
        dict(zip(parameters, own, strict=True))
        for own in zip(*(tensor.unbind() for tensor in parameters.values()), strict=True)
    ]


def _laid_out(x: torch.Tensor) -> list[torch.Tensor]:
    """Each client's images in the memory layout of the fast kernels."""
    return [xs.contiguous(memory_format=torch.channels_last) for xs in x]


def _step(parameters: Tensors, slope: Tensors, rate: float) -> Tensors:
    return {name: tensor - rate * slope[name] for name, tensor in parameters.items()}
