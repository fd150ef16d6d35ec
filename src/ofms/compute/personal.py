"""Local updates that cannot be fused: each client has its own parameters, vectorised over clients if that is faster."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from ofms.compute.tasks import sample_losses, shifted
from ofms.models.dictionary import Task
from ofms.policies.local_updates import Adapted, Epochs

Tensors = dict[str, torch.Tensor]


def own_copies(module: nn.Module, trainable: tuple[str, ...], clients: int) -> Tensors:
    """The trainable parameters, repeated for each client."""
    parameters = dict(module.named_parameters())
    return {name: parameters[name].detach().expand(clients, *parameters[name].shape) for name in trainable}


def train(
    module: nn.Module, start: Tensors, x: torch.Tensor, y: torch.Tensor, local: Epochs | Adapted, task: Task
) -> Tensors:
    """Each client's parameters after its epochs over [M, W, ...] samples, in the order of the samples."""
    gradient = _gradient_function(module, task)
    current = start
    for _ in range(local.epochs):
        for xs, ys in zip(x.split(local.batch_size, dim=1), y.split(local.batch_size, dim=1), strict=True):
            if isinstance(local, Adapted):
                half = xs.shape[1] // 2
                adapted = (
                    _step(current, gradient(current, xs[:, :half], ys[:, :half]), local.adaptation_rate)
                    if half
                    else current
                )
                gradients = gradient(adapted, xs[:, half:], ys[:, half:])
            else:
                gradients = gradient(current, xs, ys)
            current = _step(current, gradients, local.rate)
    return current


def adapt(module: nn.Module, start: Tensors, x: torch.Tensor, y: torch.Tensor, rate: float, task: Task) -> Tensors:
    """Each client's parameters after one gradient step on its own [M, W, ...] samples."""
    return _step(start, _gradient_function(module, task)(start, x, y), rate)


def descend(
    module: nn.Module, start: Tensors, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor, rate: float, task: Task
) -> Tensors:
    """Each client's parameters after one gradient step on the [W] weighted sum of its own samples' losses."""
    return _step(start, _gradient_function(module, task, weights)(start, x, y), rate)


def gradients(
    module: nn.Module,
    shared: Tensors,
    x: torch.Tensor,
    y: torch.Tensor,
    weights: torch.Tensor,
    residuals: torch.Tensor | None,
    offset: torch.Tensor | None,
    task: Task,
) -> Tensors:
    """[M, ...] each client's gradient at shared parameters, of the [M, W] weighted sum of its own samples' losses.

    [M, W, C] `residuals` are the gradients in the outputs, instead of those of the losses; losses are those of outputs
    with the [M, C] `offset`.
    """

    def total_loss(
        parameters: Tensors,
        xs: torch.Tensor,
        ys: torch.Tensor,
        ws: torch.Tensor,
        given: torch.Tensor | None,
        shift: torch.Tensor | None,
    ) -> torch.Tensor:
        found = functional_call(module, parameters, (xs,))
        losses = sample_losses(shifted(found, shift), ys, task) if given is None else (found * given).sum(dim=1)
        return (losses * ws).sum()

    if not _are_images(x):
        batched = [None if each is None else 0 for each in (residuals, offset)]
        own_gradients = vmap(grad(total_loss), in_dims=(None, 0, 0, 0, *batched))
        together: Tensors = own_gradients(shared, x, y, weights, residuals, offset)
        return together
    by_client = []
    for place, xs in enumerate(_channels_last(x)):
        given, shift = (None if each is None else each[place] for each in (residuals, offset))
        by_client.append(grad(total_loss)(shared, xs, y[place], weights[place], given, shift))
    return {name: torch.stack([each[name] for each in by_client]) for name in shared}


def outputs(module: nn.Module, parameters: Tensors, x: torch.Tensor) -> torch.Tensor:
    """[M, n, C] outputs of each client's own network on its own samples."""

    def forward(own: Tensors, xs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = functional_call(module, own, (xs,))
        return output

    if _are_images(x):
        pairs = zip(_by_client(parameters), _channels_last(x), strict=True)
        return torch.stack([forward(own, xs) for own, xs in pairs])
    together: torch.Tensor = vmap(forward)(parameters, x)
    return together


def _gradient_function(
    module: nn.Module, task: Task, weights: torch.Tensor | None = None
) -> Callable[[Tensors, torch.Tensor, torch.Tensor], Tensors]:
    """The gradient of each client's weighted loss, or of its mean loss if None, at its own parameters."""

    def total_loss(parameters: Tensors, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
        losses = sample_losses(functional_call(module, parameters, (xs,)), ys, task)
        return losses.mean() if weights is None else (losses * weights).sum()

    def one_by_one(parameters: Tensors, xs: torch.Tensor, ys: torch.Tensor) -> Tensors:
        gradients = []
        for own, x, y in zip(_by_client(parameters), _channels_last(xs), ys, strict=True):
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in own.items()}
            loss = total_loss(leaves, x, y)
            parts = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
            gradients.append(parts)
        return {name: torch.stack(some) for name, some in zip(parameters, zip(*gradients, strict=True), strict=True)}

    together: Callable[[Tensors, torch.Tensor, torch.Tensor], Tensors] = vmap(grad(total_loss))
    return lambda parameters, xs, ys: (one_by_one if _are_images(xs) else together)(parameters, xs, ys)


def _are_images(x: torch.Tensor) -> bool:
    """Whether samples are images: clients then run one by one, because grouped convolutions have no fast kernel."""
    return x.ndim == 5


def _by_client(parameters: Tensors) -> list[Tensors]:
    """Split the parameters by client."""
    return [
        dict(zip(parameters, own, strict=True))
        for own in zip(*(tensor.unbind() for tensor in parameters.values()), strict=True)
    ]


def _channels_last(x: torch.Tensor) -> list[torch.Tensor]:
    """Each client's images in the memory layout that fast kernels need."""
    return [xs.contiguous(memory_format=torch.channels_last) for xs in x]


def _step(parameters: Tensors, gradients: Tensors, rate: float) -> Tensors:
    return {name: tensor - rate * gradients[name] for name, tensor in parameters.items()}
