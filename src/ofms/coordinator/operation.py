"""Ask the server of a deployment to change its fleet: what is impossible is rejected before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ofms.coordinator.changes import Requested, discard_models, keep_model, read_models
from ofms.coordinator.commands import Command, give_command, waiting_commands
from ofms.coordinator.coordinator import Coordinator
from ofms.coordinator.deployment import Deployment, read_config
from ofms.coordinator.files import GRAPHS
from ofms.coordinator.graphs import export_missing, write_graphs
from ofms.coordinator.joins import has_begun
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.roster import Roster
from ofms.core.errors import InvalidInput
from ofms.core.events import Event
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
    _require_not_waiting(folder, [model.name for model in added])
    requested = msgspec.structs.replace(requested, add=[model.name for model in added])
    event = requested.event(copied, deployment.roster)
    _require_room(copied, event, added, deployment.roster)
    copied.apply(event, added, persistence.earlier_models(event))
    graphs = deployment.folder / GRAPHS
    if added and graphs.is_dir():
        # Some devices have no PyTorch.
        remedy = f"devices of this fleet may have none, since it has {graphs}; add another network"
        write_graphs(graphs, export_missing(graphs, Dictionary(task, tuple(added)), lambda line: None, remedy=remedy))
    kept: dict[str, str] = {}
    try:
        for model in added:
            kept[model.name] = keep_model(deployment.folder, task, model)
        requested = msgspec.structs.replace(requested, kept=kept)
        give_command(folder, Command("change", change=msgspec.to_builtins(requested)))
    except BaseException:
        discard_models(deployment.folder, kept)
        raise


def _require_room(coordinator: Coordinator, event: Event, added: Sequence[Model], roster: Roster) -> None:
    """Reject models that a device has no room for, by the names of the devices."""
    used = [coordinator.dictionary.models[slot] for slot in coordinator.setup.places]
    sizes = [model.storage for model in (*used, *added) if model.name not in event.retire]
    budgets = {client: int(coordinator.fleet.budgets[client]) for client in coordinator.setup.members}
    budgets |= dict(event.budget)
    least = sum(sorted(sizes)[-2:])
    small = [f"{roster.devices[client].name} has {found} bytes" for client, found in budgets.items() if found < least]
    if small:
        remedy = f"it must hold the two largest models together; give at least {least} bytes"
        raise InvalidInput("budget", ", ".join(small), remedy)


def _require_not_waiting(folder: Path, names: Sequence[str]) -> None:
    """Reject models of which others with the same name wait to be added."""
    for command in waiting_commands(folder):
        for name in set(names) & set((command.change or {}).get("add", [])):
            remedy = "an earlier command that adds a model of this name waits for the server; use another name"
            raise InvalidInput("model", name, remedy)
