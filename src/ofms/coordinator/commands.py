"""Commands to a running server: files that it processes before its next exchange."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import msgspec

from ofms.coordinator.files import COMMANDS
from ofms.storage.files import require_writable, write_whole
from ofms.storage.parsing import parse_json


class Command(msgspec.Struct, forbid_unknown_fields=True):
    """`freeze`, `thaw`, `rollback` to the dictionary before exchange `to`, or `change` the fleet."""

    do: str
    to: int | None = None
    change: dict[str, Any] | None = None


def waiting_commands(folder: Path) -> list[Command]:
    """The commands that the server has not executed, in their order; without those that it will reject."""
    found = []
    for path in sorted((folder / COMMANDS).glob("*.json")):
        with contextlib.suppress(FileNotFoundError, ValueError):
            found.append(parse_json(path.read_bytes(), Command))
    return found


def give_command(folder: Path, command: Command) -> None:
    """Queue a command, which the deployment's server executes before its next exchange."""
    require_writable(folder / COMMANDS)
    # After those that wait, also if the clock was set back.
    waiting = [int(path.stem) for path in (folder / COMMANDS).glob("*.json") if path.stem.isdecimal()]
    number = max(time.time_ns(), max(waiting, default=0) + 1)
    write_whole(folder / COMMANDS / f"{number:020d}.json", msgspec.json.encode(command))
