"""`ofms deploy export`."""

from __future__ import annotations

from pathlib import Path

import click

from ofms.cli.deploy.common import folder_argument


@click.command("export")
@folder_argument
@click.argument("out", type=click.Path(path_type=Path))
def command(folder: Path, out: Path) -> None:
    """Write the current dictionary to a new folder, for use elsewhere."""
    from ofms.coordinator.deployment import Deployment
    from ofms.coordinator.persistence import PersistentCoordinator

    server = PersistentCoordinator(Deployment(folder), read_only=True)
    server.write_dictionary(out)
    click.echo(f"{out}: the dictionary after {server.coordinator.exchange} exchanges")
