"""`ofms deploy`: the commands of a deployed fleet, one file each."""

from __future__ import annotations

import click

from ofms.cli.deploy import (
    dashboard,
    demo,
    device,
    export,
    freeze,
    keys,
    models,
    rollback,
    server,
    status,
    units,
    watch,
)
from ofms.cli.deploy import set as set_


@click.group("deploy")
def command() -> None:
    """Run a server and its devices over a network, on Flower (docs/deploy.md)."""
    # Rejects another version of Flower before anything is written.
    import ofms.flower  # noqa: F401


for _module in (dashboard, demo, device, export, freeze, keys, models, rollback, server, set_, status, units, watch):
    command.add_command(_module.command)
