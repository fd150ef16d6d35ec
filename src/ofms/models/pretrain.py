"""Pre-training: from labelled samples to the models of a dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from ofms.core.errors import InvalidInput, NotFinite
from ofms.core.typing import AnyArray
from ofms.models.dictionary import Dictionary, Task
from ofms.models.threads import one_thread_a_worker
from ofms.models.zoo import build_module


@dataclass(frozen=True, eq=False)
class Recipe:
    """How one model is trained, and on what.

    Attributes
    ----------
    samples, targets
        Inputs and targets (class numbers, or values).
    optimizer, rate, momentum
        Plain SGD with momentum, or Adam.
    initialisation
        How weights start; `default` leaves them as the architecture makes them.
    """

    name: str
    architecture: str
    options: Mapping[str, Any]
    samples: AnyArray
    targets: AnyArray
    epochs: int
    batch_size: int
    optimizer: Literal["sgd", "adam"] = "sgd"
    rate: float = 0.01
    momentum: float = 0.9
    initialisation: Literal["default", "glorot-uniform", "glorot-normal", "uniform", "normal"] = "default"


def pretrain(
    recipes: list[Recipe], *, task: Task, seed: int = 0, workers: int = 2, progress: bool = True
) -> Dictionary:
    """Train every recipe's model; the result does not depend on the number of workers."""
    if not recipes:
        raise InvalidInput("recipes", 0, "there is nothing to train")
    for recipe in recipes:
        _require_sound(recipe)
    names = [recipe.name for recipe in recipes]
    if len(set(names)) < len(names):
        raise InvalidInput("networks", names, "two models would have one name; names must differ")
    steps = sum(recipe.epochs * -(-len(recipe.samples) // recipe.batch_size) for recipe in recipes)
    modules = []
    with torch.random.fork_rng(devices=[]):
        for index, recipe in enumerate(recipes):
            torch.manual_seed(seed * 1_000_003 + index)
            module = build_module(recipe.architecture, recipe.options)
            _initialise(module, recipe.initialisation)
            _require_fit(module, recipe, task)
            modules.append(module)
    with (
        tqdm(total=steps, desc="pre-training", unit="step", disable=None if progress else True) as bar,
        one_thread_a_worker(),
        ThreadPoolExecutor(workers) as pool,
    ):
        jobs = [
            pool.submit(_train, module, recipe, task, seed * 1_000_003 + index, bar)
            for index, (module, recipe) in enumerate(zip(modules, recipes, strict=True))
        ]
        for job in jobs:
            job.result()
    return Dictionary.from_modules(
        {recipe.name: module for recipe, module in zip(recipes, modules, strict=True)},
        task=task,
        architectures={recipe.name: (recipe.architecture, recipe.options) for recipe in recipes},
    )


def _require_sound(recipe: Recipe) -> None:
    for field, value, least in (
        ("epochs", recipe.epochs, 1),
        ("batch_size", recipe.batch_size, 1),
        ("rate", recipe.rate, 0),
        ("momentum", recipe.momentum, 0),
    ):
        if not least <= value < float("inf"):
            raise InvalidInput(f"{recipe.name}: {field}", value, f"give a number of at least {least}")
    if len(recipe.samples) == 0 or len(recipe.samples) != len(recipe.targets):
        raise InvalidInput(
            f"{recipe.name}: samples", len(recipe.samples), "give as many samples as targets, at least 1"
        )


def _require_fit(module: nn.Module, recipe: Recipe, task: Task) -> None:
    """Refuse a network that does not take the samples, or whose outputs do not fit the targets."""
    least = int(recipe.targets.max()) + 1 if task == "classification" else 1
    module.eval()
    try:
        with torch.no_grad():
            outputs = module(torch.from_numpy(np.ascontiguousarray(recipe.samples[:1], dtype=np.float32)))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        shape = list(recipe.samples.shape[1:])
        raise InvalidInput(
            "options", dict(recipe.options), f"they do not take samples of shape {shape} ({reason})"
        ) from None
    width = outputs.shape[-1]
    if width < least or (task == "regression" and width != 1):
        raise InvalidInput("options", dict(recipe.options), f"{width} outputs do not fit the targets: give {least}")


def _train(module: nn.Module, recipe: Recipe, task: Task, seed: int, bar: tqdm[Any]) -> None:
    samples = torch.from_numpy(np.ascontiguousarray(recipe.samples, dtype=np.float32))
    targets = torch.from_numpy(np.ascontiguousarray(recipe.targets))
    if task == "regression":
        targets = targets.to(torch.float32)
    order = np.random.Generator(np.random.Philox(key=seed))
    optimizer: torch.optim.Optimizer
    if recipe.optimizer == "adam":
        optimizer = torch.optim.Adam(module.parameters(), lr=recipe.rate)
    else:
        optimizer = torch.optim.SGD(module.parameters(), lr=recipe.rate, momentum=recipe.momentum)
    module.train()
    generator = torch.Generator().manual_seed(seed)
    normalised = False
    for layer in module.modules():
        normalised |= isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
        if isinstance(layer, nn.Dropout):
            layer.forward = partial(_dropout, layer, generator)  # type: ignore[method-assign]
    loss = torch.zeros(())
    for _ in range(recipe.epochs):
        shuffled = torch.from_numpy(order.permutation(len(samples)))
        for batch in shuffled.split(recipe.batch_size):
            bar.update()
            if normalised and len(batch) == 1:
                continue  # Batch norm has no statistics of one sample.
            optimizer.zero_grad(set_to_none=True)
            loss = _batch_loss(module(samples[batch]), targets[batch], task)
            loss.backward()
            optimizer.step()
        if not torch.isfinite(loss):
            raise NotFinite(f"pre-training {recipe.name}: the loss is {loss.item()}; lower the rate {recipe.rate}")
    for layer in module.modules():
        layer.__dict__.pop("forward", None)
    module.eval()


def _dropout(layer: nn.Dropout, generator: torch.Generator, x: torch.Tensor) -> torch.Tensor:
    """Dropout from a generator of its own: PyTorch's own one is shared by all threads."""
    if layer.p == 1:
        return torch.zeros_like(x)
    kept = torch.empty_like(x).bernoulli_(1 - layer.p, generator=generator)
    return x * kept.div_(1 - layer.p)


def _batch_loss(outputs: torch.Tensor, targets: torch.Tensor, task: Task) -> torch.Tensor:
    if task == "classification":
        return nn.functional.cross_entropy(outputs, targets)
    return nn.functional.mse_loss(outputs.squeeze(-1), targets)


def _initialise(module: nn.Module, kind: str) -> None:
    for layer in module.modules():
        if kind == "default" or not isinstance(layer, nn.Linear | nn.Conv2d):
            continue
        if kind == "glorot-uniform":
            nn.init.xavier_uniform_(layer.weight)
        elif kind == "glorot-normal":
            nn.init.xavier_normal_(layer.weight)
        elif kind == "uniform":
            nn.init.uniform_(layer.weight, -0.05, 0.05)
        else:
            nn.init.normal_(layer.weight, std=0.05)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
