"""Training one model: its recipe, and the loop."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from ofms.core.errors import InvalidInput, NotFinite
from ofms.core.typing import AnyArray
from ofms.models.dictionary import Task
from ofms.models.speed import lay_channels_last


@dataclass(frozen=True, eq=False)
class Recipe:
    """The recipe of one model: how to train it, and on which samples.

    Attributes
    ----------
    samples, targets
        Inputs and targets (class indices, or values).
    optimizer, rate, momentum
        SGD with momentum, or Adam.
    initialisation
        Distribution of the initial weights; `default` keeps the architecture's own.
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

    @property
    def steps(self) -> int:
        return self.epochs * -(-len(self.samples) // self.batch_size)

    def fingerprint(self, seed: int) -> str:
        """SHA-256 of everything that determines the trained model."""
        facts = (self.name, self.architecture, dict(self.options), self.epochs, self.batch_size)
        more = (self.optimizer, self.rate, self.momentum, self.initialisation, self.samples.shape, seed)
        digest = hashlib.sha256(msgspec.json.encode((facts, more), order="deterministic"))
        for values in (self.samples, self.targets):
            digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()

    def require_valid(self) -> None:
        """Reject values out of range, and samples without targets."""
        for field, value, least in (
            ("epochs", self.epochs, 1),
            ("batch_size", self.batch_size, 1),
            ("rate", self.rate, 0),
            ("momentum", self.momentum, 0),
        ):
            if not least <= value < float("inf"):
                raise InvalidInput(f"{self.name}: {field}", value, f"give a number of at least {least}")
        if len(self.samples) == 0 or len(self.samples) != len(self.targets):
            raise InvalidInput(
                f"{self.name}: samples", len(self.samples), "give as many samples as targets, at least 1"
            )


def initialise(module: nn.Module, kind: str) -> None:
    """Draw the weights of dense and convolutional layers; their biases start at 0."""
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


def train(module: nn.Module, recipe: Recipe, task: Task, seed: int, bar: tqdm[Any], stopped: threading.Event) -> None:
    """Train a module in place, until the recipe's last epoch or until `stopped` is set."""
    samples = torch.from_numpy(np.ascontiguousarray(recipe.samples, dtype=np.float32))
    lay_channels_last(module)
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
            if stopped.is_set():
                return
            bar.update()
            if normalised and len(batch) == 1:
                continue  # Batch norm needs more than one sample for its statistics.
            optimizer.zero_grad(set_to_none=True)
            inputs = samples[batch]
            if inputs.ndim == 4:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            loss = _batch_loss(module(inputs), targets[batch], task)
            loss.backward()
            optimizer.step()
        if not torch.isfinite(loss):
            raise NotFinite(f"pre-training {recipe.name}: the loss is {loss.item()}; lower the rate {recipe.rate}")
    for layer in module.modules():
        layer.__dict__.pop("forward", None)
    module.eval()


def _dropout(layer: nn.Dropout, generator: torch.Generator, x: torch.Tensor) -> torch.Tensor:
    """Dropout with its own generator, because all threads share PyTorch's global one."""
    if layer.p == 1:
        return torch.zeros_like(x)
    kept = torch.empty_like(x).bernoulli_(1 - layer.p, generator=generator)
    return x * kept.div_(1 - layer.p)


def _batch_loss(outputs: torch.Tensor, targets: torch.Tensor, task: Task) -> torch.Tensor:
    if task == "classification":
        return nn.functional.cross_entropy(outputs, targets)
    return nn.functional.mse_loss(outputs.squeeze(-1), targets)
