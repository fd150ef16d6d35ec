"""Code shared by the commands of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ofms.coordinator.commands import Command

folder_argument = click.argument("folder", type=click.Path(path_type=Path))


def send_command(folder: Path, command: Command) -> None:
    """Queue a command for the server of a deployment."""
    from ofms.coordinator.commands import give_command
    from ofms.coordinator.deployment import read_config

    read_config(folder)
    give_command(folder, command)
    click.echo("requested; the server applies it before its next exchange")
