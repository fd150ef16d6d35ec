"""`ofms deploy`: the commands of a deployed fleet, one file each."""

from __future__ import annotations

import os
from importlib.util import find_spec

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
    from ofms.core.errors import InvalidInput

    if find_spec("flwr") is None:
        raise InvalidInput("flower", "not installed", "pip install 'ofms[flower]'")
    # Flower reads these variables on import.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")


for _module in (dashboard, demo, device, export, freeze, keys, models, rollback, server, set_, status, units, watch):
    command.add_command(_module.command)
