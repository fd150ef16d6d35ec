"""What a deployment has to tell, for people."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from ofms.coordinator.deployment import read_config
from ofms.coordinator.files import STATE, STATUS
from ofms.core.errors import InvalidInput
from ofms.drawing.tables import format_table
from ofms.runs.units import human_bytes
from ofms.storage.locks import is_locked

_REFUSALS_SHOWN = 10


def read_status(folder: Path) -> dict[str, Any]:
    """What the server wrote last, and whether it runs."""
    read_config(folder)
    try:
        status = msgspec.json.decode((folder / STATUS).read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        raise InvalidInput("deployment", folder, "its server has not run yet: ofms deploy server") from None
    except msgspec.DecodeError as error:
        raise InvalidInput("status", folder / STATUS, f"it is damaged ({error}); the server writes it anew") from None
    return status | {"running": is_locked(folder / STATE)}


def status_text(status: dict[str, Any]) -> str:
    """A table of the devices, and what else is worth knowing."""
    ago = time.time() - status["written"]
    state = "running" if status["running"] else "finished" if status["finished"] else "stopped"
    frozen = ", the dictionary is frozen" if status["frozen"] else ""
    head = (
        f"{status['policy']}, {state}{frozen}: exchange {status['exchange']} of {status['exchanges']}, "
        f"{human_bytes(status['bytes_down'])} down, {human_bytes(status['bytes_up'])} up; as of {ago:.0f} s ago"
    )
    rows = [
        [
            device["name"],
            _where(device, bool(status["running"])),
            f"{device['exchanges'] - device['missed']} of {device['exchanges']}",
            "–" if device["last_exchange"] < 0 else str(device["last_exchange"]),
            human_bytes(device["bytes_down"]),
            human_bytes(device["bytes_up"]),
            f"{human_bytes(device['held_bytes'])} of {human_bytes(device['budget'])}",
            str(device["refused"]),
        ]
        for device in status["devices"]
    ]
    table = format_table(["device", "", "answered", "last", "down", "up", "held", "refused"], rows)
    lines = [head, "", table]
    if status["refusals"]:
        lines += ["", f"refused, the last {_REFUSALS_SHOWN}:", *status["refusals"][-_REFUSALS_SHOWN:]]
    return "\n".join(lines)


def _where(device: dict[str, Any], running: bool) -> str:
    if device["revoked"]:
        return "revoked"
    return "here" if running and device["node"] is not None else "away"
