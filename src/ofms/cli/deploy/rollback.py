"""`ofms deploy rollback`."""

from __future__ import annotations

from pathlib import Path

import click

from ofms.cli.deploy.common import folder_argument, send_command


@click.command("rollback")
@folder_argument
@click.option("--to", type=int, metavar="E", help="Restore the dictionary as it was before exchange E.")
def command(folder: Path, to: int | None) -> None:
    """Restore an earlier dictionary; without --to, list the exchanges that can be restored."""
    from ofms.coordinator.commands import Command
    from ofms.coordinator.status import read_status
    from ofms.core.errors import InvalidInput

    kept = read_status(folder)["history"]
    choices = ", ".join(map(str, kept))
    if to is None:
        click.echo(f"--to takes one of {choices}; 0 is the initial dictionary")
        return
    if to not in kept:
        raise InvalidInput("to", to, f"use one of {choices}")
    send_command(folder, Command("rollback", to))
