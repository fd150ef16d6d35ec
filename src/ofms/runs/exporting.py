"""The models of a run as a dictionary's folder: of a finished run, or at the last checkpoint of an unfinished one."""

from __future__ import annotations

from pathlib import Path

from ofms.core.errors import InvalidInput
from ofms.models.dictionary import Dictionary
from ofms.models.index import INDEX, read_index
from ofms.models.model import read_tensors
from ofms.runs.checkpoint import read_checkpoint
from ofms.runs.config import RunConfig, available, load_experiment, load_run
from ofms.runs.dictionaries import dictionary_folder
from ofms.runs.folder import CONFIG, MODELS, SUMMARY, resume_command
from ofms.storage.files import new_folder, write_whole
from ofms.storage.tensors import tensors_of


def export_models(run: Path, out: Path) -> int:
    """Write the models of a run to a new folder, and return after how many rounds they are.

    Networks of the user's own are built by the packages that the run trusts, as when it is resumed.
    """
    config = load_run(str(run / CONFIG)) if (run / CONFIG).is_file() else None
    if config is None:
        raise InvalidInput("run", run, f"it is not a run's folder: it has no {CONFIG} of a run")
    if (run / SUMMARY).is_file():
        _copy_models(run, out)
        return config.rounds
    found = read_checkpoint(run)
    if found is None:
        raise InvalidInput("run", run, f"it has no checkpoint yet; wait, or continue it with: {resume_command(run)}")
    latest, arrays = found
    dictionary = _first_dictionary(run, config, latest.revision)
    tensors = [tensors_of(arrays, f"simulation.model.{model}.") for model in range(len(dictionary))]
    dictionary.with_tensors(tensors).write(out)
    return latest.rounds


def _copy_models(run: Path, out: Path) -> None:
    """Copy the saved models of a finished run; no code of theirs is imported."""
    folder = run / MODELS
    if not folder.exists():
        raise InvalidInput("run", run, "it did not save its models; run it again with --save-models")
    models = read_index(folder).models
    for entry in models:
        read_tensors(folder, entry)
    with new_folder(out) as partial:
        for name in [*dict.fromkeys(entry.file for entry in models), INDEX]:
            write_whole(partial / name, (folder / name).read_bytes())


def _first_dictionary(run: Path, config: RunConfig, revision: str) -> Dictionary:
    """The dictionary with which a run began: from its folder, or the experiment's own from the cache."""
    folder = None
    if config.models is not None:
        folder = Path(config.models)
    elif config.experiment.endswith(".toml") or config.experiment in available("experiments"):
        folder = dictionary_folder(load_experiment(config.experiment), config.experiment, config.trusted())
    dictionary = None
    if config.models is not None or (folder is not None and folder.exists()):
        dictionary = Dictionary.read(str(folder), trust=config.trusted())
    if dictionary is None or dictionary.revision() != revision:
        # They were given as Python objects, or the folder has changed.
        remedy = "the models with which it began are not there; restore them, or resume it and take its Result.models"
        raise InvalidInput("run", run, remedy)
    return dictionary
