"""Pre-training: from labelled samples to the models of a dictionary."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import nn
from tqdm import tqdm

from ofms.core.errors import InvalidInput, NotFinite
from ofms.core.typing import AnyArray
from ofms.models.dictionary import Dictionary, Task
from ofms.models.speed import lay_channels_last, one_thread_a_worker
from ofms.models.zoo import build_module
from ofms.plugins import NO_TRUST, Trust
from ofms.storage.files import require_writable, write_whole


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

    @property
    def steps(self) -> int:
        return self.epochs * -(-len(self.samples) // self.batch_size)

    def fingerprint(self, seed: int) -> str:
        """Another one for everything that makes another model."""
        facts = (self.name, self.architecture, dict(self.options), self.epochs, self.batch_size)
        more = (self.optimizer, self.rate, self.momentum, self.initialisation, self.samples.shape, seed)
        digest = hashlib.sha256(msgspec.json.encode((facts, more), order="deterministic"))
        for values in (self.samples, self.targets):
            digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()


def pretrain(
    recipes: list[Recipe],
    *,
    task: Task,
    seed: int = 0,
    workers: int = 2,
    progress: bool = True,
    keep: Path | None = None,
    trust: Trust = NO_TRUST,
) -> Dictionary:
    """Train every recipe's model; the result does not depend on the number of workers.

    Parameters
    ----------
    keep
        A folder that gets every model when it is done, and from which an interrupted pre-training goes on.
    trust
        Packages from which architectures outside the zoo may be imported.
    """
    if not recipes:
        raise InvalidInput("recipes", 0, "there is nothing to train")
    for recipe in recipes:
        _require_sound(recipe)
    names = [recipe.name for recipe in recipes]
    if len(set(names)) < len(names):
        raise InvalidInput("networks", names, "two models would have one name; names must differ")
    modules = []
    with torch.random.fork_rng(devices=[]):
        for index, recipe in enumerate(recipes):
            torch.manual_seed(seed * 1_000_003 + index)
            module = build_module(recipe.architecture, recipe.options, trust)
            _initialise(module, recipe.initialisation)
            _require_fit(module, recipe, task)
            modules.append(module)
    if keep is not None:
        require_writable(keep)
    kept = [
        keep is not None and _load(keep, recipe, module, seed) for recipe, module in zip(recipes, modules, strict=True)
    ]
    with (
        tqdm(
            total=sum(recipe.steps for recipe in recipes),
            initial=sum(recipe.steps for recipe, done in zip(recipes, kept, strict=True) if done),
            desc="pre-training",
            unit="step",
            disable=None if progress else True,
        ) as bar,
        one_thread_a_worker(),
        ThreadPoolExecutor(workers) as pool,
    ):
        stopped = threading.Event()

        def train(index: int) -> None:
            recipe, module = recipes[index], modules[index]
            _train(module, recipe, task, seed * 1_000_003 + index, bar, stopped)
            if keep is not None and not stopped.is_set():
                _save(keep, recipe, module, seed)

        jobs = [pool.submit(train, index) for index, done in enumerate(kept) if not done]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return Dictionary.from_modules(
        {recipe.name: module for recipe, module in zip(recipes, modules, strict=True)},
        task=task,
        architectures={recipe.name: (recipe.architecture, recipe.options) for recipe in recipes},
    )


def _save(keep: Path, recipe: Recipe, module: nn.Module, seed: int) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    content = safetensors.torch.save(tensors, {"made": recipe.fingerprint(seed)})
    write_whole(keep / f"{recipe.name}.safetensors", content)


def _load(keep: Path, recipe: Recipe, module: nn.Module, seed: int) -> bool:
    """Fill a network with what was kept, if it was made in the same way."""
    path = keep / f"{recipe.name}.safetensors"
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            made = (file.metadata() or {}).get("made")
            if made != recipe.fingerprint(seed):
                return False
            module.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (OSError, safetensors.SafetensorError, RuntimeError):
        return False
    return True


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


def _train(module: nn.Module, recipe: Recipe, task: Task, seed: int, bar: tqdm[Any], stopped: threading.Event) -> None:
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
                continue  # Batch norm has no statistics of one sample.
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
