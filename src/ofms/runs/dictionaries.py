"""An experiment's own dictionary: read from the cache, or pre-trained and stored there."""

from __future__ import annotations

import hashlib
import logging
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
from ofms.plugins import NO_TRUST, Trust, source_key
from ofms.runs.config import Experiment, RunConfig, load_experiment
from ofms.storage.files import require_writable
from ofms.storage.locks import FolderLock

_log = logging.getLogger(__name__)


def task_of(experiment: Experiment, trust: Trust = NO_TRUST) -> Task:
    """The task of an experiment's models; `trust` adds to the packages that its file trusts."""
    if experiment.stream is not None:
        return experiment.stream.task
    return load_dataset(str(experiment.dataset), experiment.trusted() | trust).task


def dictionary_folder(experiment: Experiment, name: str, trust: Trust = NO_TRUST) -> Path:
    """The cache folder of an experiment's dictionary; its name depends on the dataset and the pre-training.

    Also on the source of a dataset and of architectures of the user's own; `trust` says where it is.
    """
    networks = [] if experiment.pretraining is None else experiment.pretraining.networks
    names = [str(experiment.dataset), *(str(network.get("architecture")) for network in networks)]
    if experiment.pretraining is not None:
        names.append(str(experiment.pretraining.common.get("architecture")))
    parts = [experiment.dataset, experiment.pretraining, *source_key(names, experiment.trusted() | trust)]
    made = msgspec.json.encode(parts, order="deterministic")
    return cache_folder() / "models" / f"{Path(name).stem}-{hashlib.sha256(made).hexdigest()[:8]}"


def find_dictionary(
    experiment: Experiment | None, config: RunConfig, *, progress: bool, workers: int | None = None
) -> Dictionary:
    """The given dictionary, or the experiment's own from the cache, pre-trained if it is missing.

    Without an experiment, the one named in the configuration is loaded if needed. `workers` are the threads of
    pre-training, one per core by default.
    """
    trust = config.trusted()
    if config.models is not None:
        _log.debug("dictionary: %s", config.models)
        return Dictionary.read(config.models, trust=trust)
    if experiment is None:
        experiment = load_experiment(config.experiment)
    folder = dictionary_folder(experiment, config.experiment, trust)
    if not folder.exists():
        _log.debug("pre-training the dictionary of %s into %s", config.experiment, folder)
        train_dictionary(experiment, config.experiment, folder, trust=trust, workers=workers, progress=progress)
    _log.debug("dictionary: %s", folder)
    return Dictionary.read(folder, trust=trust)


def train_dictionary(
    experiment: Experiment,
    name: str,
    folder: Path,
    *,
    trust: Trust = NO_TRUST,
    workers: int | None = None,
    progress: bool,
) -> None:
    """Pre-train an experiment's dictionary into a folder: every network on every training set of its dataset.

    Finished models are kept next to it, so that an interrupted pre-training resumes. Two processes never train the same
    dictionary. `trust` adds to the packages that the experiment's file trusts.
    """
    require_writable(folder.parent)
    plan = experiment.pretraining
    if plan is None:
        raise InvalidInput("experiment", name, "it has no [pretraining]; give --models DIR")
    if not 0 <= plan.seed < 2**40:
        raise InvalidInput("pretraining.seed", plan.seed, "give a whole number from 0 to 2⁴⁰ - 1")
    for network in plan.kinds():
        if Path(network.name).name != network.name:
            raise InvalidInput("pretraining.networks.name", network.name, "it becomes a file name; leave out slashes")
    if experiment.dataset is None:
        raise InvalidInput("experiment", name, "a stream of your own has no training sets; give --models DIR")
    trust = experiment.trusted() | trust
    dataset = load_dataset(experiment.dataset, trust)
    recipes = [
        Recipe(
            name=f"{dataset.name}-{each.label}-{network.name}",
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
        if (folder / INDEX).exists():  # Written by another process in the meantime.
            return
        pretrain(
            recipes,
            task=dataset.task,
            seed=plan.seed,
            workers=workers,
            progress=progress,
            keep=keep,
            trust=trust,
        ).write(folder)
        shutil.rmtree(keep, ignore_errors=True)
    finally:
        lock.close()
