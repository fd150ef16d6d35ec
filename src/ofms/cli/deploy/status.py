"""`ofms deploy status`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ofms.cli.deploy.common import folder_argument


@click.command("status")
@folder_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(folder: Path, as_json: bool) -> None:
    """Show a deployment's devices, exchanges, bytes and rejected messages."""
    from ofms.coordinator.status import read_status, status_text

    found = read_status(folder)
    click.echo(json.dumps(found) if as_json else status_text(found))
