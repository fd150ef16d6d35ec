"""Pre-training: from labelled samples to the models of a dictionary."""

from __future__ import annotations

import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import nn
from tqdm import tqdm

from ofms.core.errors import InvalidInput
from ofms.models.dictionary import Dictionary, Task
from ofms.models.speed import one_thread_per_worker
from ofms.models.training import Recipe, initialise, train
from ofms.models.zoo import ZOO, build_module, build_skeleton
from ofms.plugins import NO_TRUST, Trust
from ofms.storage.files import require_writable, write_whole


def pretrain(
    recipes: list[Recipe],
    *,
    task: Task,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = True,
    keep: Path | None = None,
    trust: Trust = NO_TRUST,
) -> Dictionary:
    """Train one model per recipe; the result does not depend on the number of workers.

    Parameters
    ----------
    keep
        A folder for finished models, from which an interrupted pre-training resumes.
    trust
        Packages from which architectures outside the zoo may be imported.
    """
    if not recipes:
        raise InvalidInput("recipes", 0, "give at least one model to train")
    for recipe in recipes:
        recipe.require_valid()
    names = [recipe.name for recipe in recipes]
    if len(set(names)) < len(names):
        raise InvalidInput("networks", names, "two models would have the same name; make names unique")
    _require_room(recipes, task)
    modules = []
    with torch.random.fork_rng(devices=[]):
        for index, recipe in enumerate(recipes):
            torch.manual_seed(seed * 1_000_003 + index)
            module = build_module(recipe.architecture, recipe.options, trust)
            initialise(module, recipe.initialisation)
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
        one_thread_per_worker(),
        ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool,
    ):
        stopped = threading.Event()

        def train_and_save(index: int) -> None:
            recipe, module = recipes[index], modules[index]
            train(module, recipe, task, seed * 1_000_003 + index, bar, stopped)
            if keep is not None and not stopped.is_set():
                _save(keep, recipe, module, seed)

        jobs = [pool.submit(train_and_save, index) for index, done in enumerate(kept) if not done]
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
    """Load the saved weights if they are from the same recipe and seed; return whether they are."""
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


def _require_room(recipes: list[Recipe], task: Task) -> None:
    """Reject networks by their shapes alone: a few bytes of options may describe one that no memory holds."""
    memory, total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 0
    for recipe in recipes:
        # A user-defined factory decides by itself what it allocates.
        if recipe.architecture in ZOO:
            skeleton = build_skeleton(recipe.architecture, recipe.options)
            _require_fit(skeleton, recipe, task, device="meta")
            total += sum(tensor.element_size() * math.prod(tensor.shape) for tensor in skeleton.state_dict().values())
            if total > memory:
                remedy = f"networks of {total} bytes do not fit this machine's memory of {memory}; make them smaller"
                raise InvalidInput("options", dict(recipe.options), remedy)


def _require_fit(module: nn.Module, recipe: Recipe, task: Task, device: str = "cpu") -> None:
    """Reject a network that does not accept the samples, or whose outputs do not match the targets."""
    least = int(recipe.targets.max()) + 1 if task == "classification" else 1
    module.eval()
    try:
        with torch.no_grad():
            sample = torch.from_numpy(np.ascontiguousarray(recipe.samples[:1], dtype=np.float32))
            outputs = module(sample.to(device))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        shape = list(recipe.samples.shape[1:])
        raise InvalidInput(
            "options", dict(recipe.options), f"the network does not accept samples of shape {shape} ({reason})"
        ) from None
    width = outputs.shape[-1]
    if width < least or (task == "regression" and width != 1):
        raise InvalidInput("options", dict(recipe.options), f"{width} outputs do not match the targets; give {least}")
