"""An experiment's own dictionary: found in the cache, or pre-trained and kept there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from ofms.core.errors import InvalidInput
from ofms.core.files import require_writable
from ofms.data import load_dataset
from ofms.data.folder import cache_folder
from ofms.models.dictionary import Dictionary
from ofms.models.pretrain import Recipe, pretrain
from ofms.runs.config import Experiment, RunConfig


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
        require_writable(folder.parent)
        train_dictionary(experiment, config.experiment, progress=progress).write(folder)
    return Dictionary.read(folder)


def train_dictionary(experiment: Experiment, name: str, *, workers: int | None = None, progress: bool) -> Dictionary:
    """Pre-train an experiment's dictionary: every network on every training set of its dataset."""
    plan = experiment.pretraining
    if plan is None:
        raise InvalidInput("experiment", name, "it says nothing on pre-training; give --models DIR")
    if not 0 <= plan.seed < 2**40:
        raise InvalidInput("pretraining.seed", plan.seed, "give a whole number from 0 to 2⁴⁰ - 1")
    for network in plan.networks:
        if Path(network.name).name != network.name:
            raise InvalidInput("pretraining.networks.name", network.name, "it names a file; leave out slashes")
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
        for network in plan.networks
    ]
    return pretrain(
        recipes, task=dataset.task, seed=plan.seed, workers=workers or os.cpu_count() or 1, progress=progress
    )
