"""Code shared by the commands of a deployment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ofms.coordinator.commands import Command

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
folder_argument = click.argument("folder", type=click.Path(path_type=Path))


def send_command(folder: Path, command: Command) -> None:
    """Queue a command for the server of a deployment."""
    from ofms.coordinator.commands import give_command
    from ofms.coordinator.deployment import read_config

    read_config(folder)
    give_command(folder, command)
    click.echo("requested; the server applies it before its next exchange")


def log_options(command: Decorated) -> Decorated:
    """Options of commands that keep running: what they log, and how."""
    from ofms.core.logs import LEVELS

    options = [
        click.option("-v", "--verbose", is_flag=True, help="Log also each message; the same as --log-level debug."),
        click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="The least."),
        click.option(
            "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Of a line."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def start_logs(verbose: bool, log_level: str, log_format: str) -> None:
    """Log to standard error, as the options say."""
    from ofms.core.logs import configure_logs

    configure_logs("debug" if verbose else log_level, log_format)
