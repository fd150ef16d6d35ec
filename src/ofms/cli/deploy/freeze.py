"""`ofms deploy freeze`."""

from __future__ import annotations

from pathlib import Path

import click

from ofms.cli.deploy.common import folder_argument, send_command


@click.command("freeze")
@folder_argument
@click.option("--off", is_flag=True, help="Resume fine-tuning.")
def command(folder: Path, off: bool) -> None:
    """Stop fine-tuning; model selection continues."""
    from ofms.coordinator.commands import Command

    send_command(folder, Command("thaw" if off else "freeze"))
