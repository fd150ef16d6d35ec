"""An experiment's own dictionary: found in the cache, or pre-trained and kept there."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import msgspec

from ofms.core.errors import InvalidInput
from ofms.data import load_dataset
from ofms.data.folder import cache_folder
from ofms.data.stream import Task
from ofms.models.dictionary import INDEX, Dictionary
from ofms.models.pretrain import pretrain
from ofms.models.training import Recipe
from ofms.runs.config import Experiment, RunConfig
from ofms.storage.files import require_writable
from ofms.storage.locks import FolderLock


def task_of(experiment: Experiment) -> Task:
    """What an experiment's models do."""
    if experiment.stream is not None:
        return experiment.stream.task
    return load_dataset(str(experiment.dataset)).task


def dictionary_folder(experiment: Experiment, name: str) -> Path:
    """Where an experiment's own dictionary is kept: another one for another way of pre-training."""
    made = msgspec.json.encode([experiment.dataset, experiment.pretraining], order="deterministic")
    return cache_folder() / "models" / f"{Path(name).stem}-{hashlib.sha256(made).hexdigest()[:8]}"


def find_dictionary(experiment: Experiment, config: RunConfig, *, progress: bool) -> Dictionary:
    """The dictionary that was named, or the experiment's own from the cache, pre-trained where it is missing."""
    if config.models is not None:
        return Dictionary.read(config.models)
    folder = dictionary_folder(experiment, config.experiment)
    if not folder.exists():
        train_dictionary(experiment, config.experiment, folder, progress=progress)
    return Dictionary.read(folder)


def train_dictionary(
    experiment: Experiment, name: str, folder: Path, *, workers: int | None = None, progress: bool
) -> None:
    """Pre-train an experiment's dictionary into a folder: every network on every training set of its dataset.

    Models that are done wait beside it, so that what was interrupted goes on where it stopped. Two processes
    never train one dictionary.
    """
    require_writable(folder.parent)
    plan = experiment.pretraining
    if plan is None:
        raise InvalidInput("experiment", name, "it says nothing on pre-training; give --models DIR")
    if not 0 <= plan.seed < 2**40:
        raise InvalidInput("pretraining.seed", plan.seed, "give a whole number from 0 to 2⁴⁰ - 1")
    for network in plan.kinds():
        if Path(network.name).name != network.name:
            raise InvalidInput("pretraining.networks.name", network.name, "it names a file; leave out slashes")
    if experiment.dataset is None:
        raise InvalidInput("experiment", name, "a stream of your own has no training sets; give --models DIR")
    dataset = load_dataset(experiment.dataset)
    recipes = [
        Recipe(
            name=f"{experiment.dataset}-{each.label}-{network.name}",
            architecture=network.architecture,
            options=network.options,
            samples=each.x,
            targets=each.y,
            epochs=plan.epochs,
            batch_size=plan.batch_size,
            optimizer=network.optimizer,
            rate=network.rate,
            momentum=network.momentum,
            initialisation=network.initialisation,
        )
        for each in dataset.training_sets(seed=plan.seed)
        for network in plan.kinds()
    ]
    keep = folder.with_name(f".{folder.name}.partial")
    require_writable(keep)
    lock = FolderLock(keep)
    try:
        if (folder / INDEX).exists():  # Another process has just made it.
            return
        pretrain(
            recipes,
            task=dataset.task,
            seed=plan.seed,
            workers=workers or os.cpu_count() or 1,
            progress=progress,
            keep=keep,
        ).write(folder)
        shutil.rmtree(keep, ignore_errors=True)
    finally:
        lock.close()
