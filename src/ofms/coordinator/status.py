"""The status of a deployment: written by its server, read by `ofms deploy status`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ofms.coordinator.checkpoint import Counts, Records
from ofms.coordinator.coordinator import Coordinator
from ofms.coordinator.deployment import read_config
from ofms.coordinator.files import STATE, STATUS
from ofms.coordinator.roster import Roster
from ofms.coordinator.statistics import ClosedExchange, ModelUse
from ofms.coordinator.watch.metrics import device_state, last_score
from ofms.core.errors import InvalidInput
from ofms.core.version import __version__
from ofms.drawing.tables import format_table
from ofms.runs.units import human_bytes
from ofms.storage.files import write_whole
from ofms.storage.locks import is_locked
from ofms.storage.parsing import parse_json
from ofms.storage.typed import from_values

_REFUSALS_SHOWN = 10
# What a status of 0.3.0 does not have.
_NOT_USED: dict[str, Any] = {"held": {}, "used": {}, "reporting": 0}
_LATER = {"version": "", "task": "", "models": [], "recent": [], "use": _NOT_USED, "quorum": 1.0, "staleness": 0}
_LATER_OF_DEVICES = {"late": 0, "working_on": None, "samples": 0, "score": 0.0, "last_samples": 0, "last_score": 0.0}
_LATER_OF_DEVICES |= {"outliers": 0, "declined": None}


class _Device(msgspec.Struct):
    """What readers need of a device besides all of its `Counts`."""

    name: str
    client: int
    node: int | None
    revoked: bool
    budget: int
    working_on: int | None
    declined: str | None


class _Status(msgspec.Struct):
    """What readers need of a status besides its devices, with the defaults of `_LATER`."""

    version: str
    deployment: str
    revision: str
    policy: str
    quorum: float
    exchange: int
    exchanges: int | None
    finished: bool
    frozen: bool
    bytes_down: int
    bytes_up: int
    task: str
    models: list[str]
    versions: list[int]
    use: ModelUse
    recent: list[ClosedExchange]
    refusals: list[str]
    written: float
    in_use: list[str] = []
    quarantined: list[str] = []


class Timing(Protocol):
    """What is in force of a deployment besides its coordinator's fleet."""

    @property
    def deadline(self) -> float: ...

    @property
    def quorum(self) -> float: ...

    @property
    def declined(self) -> Mapping[int, str]:
        """By device: why it rejected its last welcome."""
        ...


def write_status(
    folder: Path, coordinator: Coordinator, roster: Roster, nodes: Mapping[int, int], records: Records, timing: Timing
) -> None:
    """Write `status.json`."""
    working = {client: own.grants.exchange for client, own in coordinator.stragglers.outstanding.items()}
    devices = [
        {"name": device.name, "client": client, "node": nodes.get(client), "revoked": device.revoked}
        | {"budget": int(coordinator.fleet.budgets[client]), "working_on": working.get(client)}
        | {"declined": timing.declined.get(client)}
        | msgspec.to_builtins(records.counts[client])
        for client, device in enumerate(roster.devices[: coordinator.fleet.budgets.size])
    ]
    schedule = coordinator.fleet.schedule
    status = {
        "version": __version__,
        "deployment": coordinator.deployment,
        "revision": coordinator.fleet.catalogue.revision,
        "policy": coordinator.name,
        "in_use": [coordinator.fleet.catalogue.names[slot] for slot in coordinator.setup.places],
        "interval": schedule.interval,
        "bandwidth": coordinator.fleet.bandwidth,
        "aggregation": coordinator.setup.aggregation or "sum",
        "settings": msgspec.to_builtins(coordinator.settings),
        "deadline": timing.deadline,
        "quorum": timing.quorum,
        "staleness": coordinator.staleness,
        "changes": coordinator.setup.changed,
        "exchange": coordinator.exchange,
        "exchanges": None if schedule.rounds is None else schedule.exchanges,
        "finished": coordinator.finished,
        "frozen": coordinator.frozen,
        "quarantined": [coordinator.fleet.catalogue.names[model] for model in coordinator.quarantined],
        "bytes_down": sum(counts.bytes_down for counts in records.counts),
        "bytes_up": sum(counts.bytes_up for counts in records.counts),
        "task": coordinator.dictionary.task,
        "models": list(coordinator.fleet.catalogue.names),
        "versions": coordinator.version.tolist(),
        "use": msgspec.to_builtins(records.use),
        "recent": msgspec.to_builtins(records.recent),
        "history": [moment.exchange for moment in records.history],
        "devices": devices,
        "refusals": records.refusals,
        "written": time.time(),
    }
    write_whole(folder / STATUS, msgspec.json.format(msgspec.json.encode(status), indent=2))


def read_status(folder: Path) -> dict[str, Any]:
    """The last status, and whether the server is running; reads only."""
    read_config(folder)
    try:
        status = parse_json((folder / STATUS).read_bytes(), dict[str, Any])
    except FileNotFoundError:
        raise InvalidInput("deployment", folder, "its server has not run yet; start it: ofms deploy server") from None
    except ValueError as error:
        raise InvalidInput("status", folder / STATUS, f"it is damaged ({error}); the server will rewrite it") from None
    try:
        status = _LATER | status
        from_values(status, _Status)
        devices = [_LATER_OF_DEVICES | device for device in from_values(status["devices"], list[dict[str, Any]])]
        from_values(devices, list[_Device])
        from_values(devices, list[Counts])
        for name in Counts.__struct_fields__:
            if any(name not in device for device in devices):
                raise KeyError(name)
    except (KeyError, msgspec.ValidationError) as error:
        raise InvalidInput("status", folder / STATUS, f"it is damaged ({error}); the server will rewrite it") from None
    return status | {"devices": devices, "running": is_locked(folder / STATE)}


def status_text(status: dict[str, Any]) -> str:
    """The status as a summary line, a table of the devices, and the last rejections."""
    ago = time.time() - status["written"]
    state = "running" if status["running"] else "finished" if status["finished"] else "stopped"
    frozen = ", the dictionary is frozen" if status["frozen"] else ""
    quorum = "" if status["quorum"] == 1 else f" (quorum {100 * status['quorum']:g} %)"
    horizon = "" if status["exchanges"] is None else f" of {status['exchanges']}"
    head = (
        f"{status['policy']}, {state}{frozen}: exchange {status['exchange']}{horizon}{quorum}, "
        f"{human_bytes(status['bytes_down'])} down, {human_bytes(status['bytes_up'])} up; updated {ago:.0f} s ago"
    )
    rows = [
        [
            device["name"],
            device_state(device, bool(status["running"])),
            _score(last_score(device), status["task"]),
            f"{device['exchanges'] - device['missed'] + device['late']} of {device['exchanges']}",
            str(device["late"]),
            "–" if device["last_exchange"] < 0 else str(device["last_exchange"]),
            human_bytes(device["bytes_down"]),
            human_bytes(device["bytes_up"]),
            f"{human_bytes(device['held_bytes'])} of {human_bytes(device['budget'])}",
            str(device["refused"]),
            str(device["outliers"]),
        ]
        for device in status["devices"]
    ]
    score = "accuracy" if status["task"] == "classification" else "squared error"
    columns = ["device", "", score, "answered", "late", "last", "down", "up", "held", "rejected", "outliers"]
    table = format_table(columns, rows)
    lines = [head, "", table]
    late = [
        f"{device['name']} (exchange {device['working_on']})"
        for device in status["devices"]
        if device["working_on"] is not None
    ]
    if late:
        lines += ["", f"still working on an earlier exchange: {', '.join(late)}"]
    for device in status["devices"]:
        if device["declined"] is not None:
            lines += ["", f"{device['name']} takes no part: it {device['declined']}"]
    if status.get("quarantined"):
        lines += ["", f"quarantined, because their updates were not finite: {', '.join(status['quarantined'])}"]
    if status["refusals"]:
        lines += ["", f"last {_REFUSALS_SHOWN} rejections:", *status["refusals"][-_REFUSALS_SHOWN:]]
    return "\n".join(lines)


def _score(score: float | None, task: str) -> str:
    if score is None:
        return "–"
    return f"{100 * score:.1f} %" if task == "classification" else f"{score:.3g}"
