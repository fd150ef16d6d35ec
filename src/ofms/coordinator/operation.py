"""Ask the server of a deployment to change its fleet: what is impossible is rejected before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ofms.coordinator.changes import Requested, keep_model, read_models
from ofms.coordinator.commands import Command, give_command
from ofms.coordinator.deployment import Deployment, read_config
from ofms.coordinator.files import GRAPHS
from ofms.coordinator.graphs import export_missing, write_graphs
from ofms.coordinator.joins import has_begun
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.models.dictionary import Dictionary, Model


def current_dictionary(folder: Path) -> Dictionary:
    """The models in use, by the server's last checkpoint; before the first one, those that `server.toml` names."""
    if not has_begun(folder):
        config = read_config(folder)
        return Dictionary.read(folder / config.models, trust=config.trusted(folder))
    coordinator = PersistentCoordinator(Deployment(folder), read_only=True).coordinator
    whole = coordinator.dictionary
    return Dictionary(whole.task, tuple(whole.models[slot] for slot in coordinator.setup.places))


def request_change(
    folder: Path, requested: Requested, *, models: Path | None = None, names: Sequence[str] = ()
) -> None:
    """Queue a change, tried on a copy of the server's last checkpoint; the models of a folder are added."""
    deployment = Deployment(folder)
    persistence = PersistentCoordinator(deployment, read_only=True)
    copied = persistence.coordinator
    task, trust = copied.dictionary.task, deployment.config.trusted(deployment.folder)
    added: list[Model] = [] if models is None else read_models(models, trust, task, names)
    requested = msgspec.structs.replace(requested, add=[model.name for model in added])
    event = requested.event(copied, deployment.roster)
    copied.apply(event, added, persistence.earlier_models(event))
    graphs = deployment.folder / GRAPHS
    if added and graphs.is_dir():
        # Some devices have no PyTorch.
        write_graphs(graphs, export_missing(graphs, Dictionary(task, tuple(added)), lambda line: None))
    for model in added:
        keep_model(deployment.folder, task, model)
    give_command(folder, Command("change", change=msgspec.to_builtins(requested)))
