"""`ofms deploy keys`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ofms.cli.deploy.common import folder_argument
from ofms.cli.options import assignments, named_budgets, trust_option
from ofms.policies import DEFAULT


@click.command("keys")
@folder_argument
@click.option("--server", "address", metavar="HOST:PORT", help="New deployment: the server's address for devices.")
@click.option("--models", type=click.Path(path_type=Path), metavar="DIR", help="New deployment: its dictionary.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Other names and addresses of the server.")
@click.option(
    "--policy", default=DEFAULT, show_default=True, metavar="NAME", help="New deployment: its policy; see `ofms list`."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    callback=assignments,
    help="New deployment: a setting of its policy; can be repeated.",
)
@click.option("--interval", type=int, default=20, show_default=True, help="Samples between exchanges.")
@click.option(
    "--quorum",
    type=float,
    default=0.8,
    show_default=True,
    metavar="SHARE",
    help="New deployment: the share of answers that closes an exchange.",
)
@click.option("--rounds", type=int, help="The horizon, in samples; without it, the fleet runs until it is stopped.")
@click.option(
    "--doubling", type=int, metavar="SAMPLES", help="Without --rounds: rates that depend on T, by the doubling trick."
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME=BUDGET",
    callback=named_budgets,
    help="A new device and its memory for models: 64MiB, or 5 for five times the largest model.",
)
@click.option("--edge", is_flag=True, help="Export the networks as ONNX graphs, for devices without PyTorch.")
@click.option("--revoke", multiple=True, metavar="NAME", help="Revoke a device's key.")
@trust_option
def command(
    folder: Path,
    address: str | None,
    models: Path | None,
    hosts: tuple[str, ...],
    policy: str,
    settings: dict[str, Any],
    interval: int,
    quorum: float,
    rounds: int | None,
    doubling: int | None,
    devices: dict[str, str],
    edge: bool,
    revoke: tuple[str, ...],
    trust: tuple[str, ...],
) -> None:
    """Create a deployment (certificate authority, server certificate, device keys); add and revoke devices."""
    from ofms.coordinator.deployment import Deployment, read_config
    from ofms.coordinator.files import APP, DEVICE_FOLDERS, GRAPHS, SERVER, STATE
    from ofms.coordinator.graphs import export_missing, write_graphs
    from ofms.coordinator.joins import has_begun
    from ofms.coordinator.keys import change_devices, make_deployment
    from ofms.coordinator.operation import current_dictionary
    from ofms.core.errors import InvalidInput
    from ofms.flower.app import write_app
    from ofms.storage.files import adding_to
    from ofms.storage.locks import is_locked

    if address is None:
        config = read_config(folder)
        # Exported before anything is written, because it may fail.
        graphs = export_missing(folder / GRAPHS, current_dictionary(folder), click.echo) if edge else []
        change_devices(folder, devices, revoke, config.address)
        if edge:
            write_graphs(folder / GRAPHS, graphs)
    elif models is None:
        raise InvalidInput("models", None, "name the server's dictionary: --models DIR")
    elif (folder / SERVER).exists():
        raise InvalidInput("deployment", folder, "it already exists; omit --server to add devices to it")
    else:
        given: dict[str, Any] = {"policy": policy, "settings": settings, "interval": interval, "rounds": rounds}
        given |= {"doubling": doubling, "quorum": quorum}
        # All of it or nothing: a device that is refused leaves no deployment behind.
        with adding_to(folder, last=SERVER, private=True) as partial:
            make_deployment(partial, address, models, hosts=hosts, trust=trust, **given)
            write_app(partial / APP)
            change_devices(partial, devices, revoke, address)
            if edge:
                new = export_missing(partial / GRAPHS, current_dictionary(partial), click.echo)
                write_graphs(partial / GRAPHS, new)
        click.echo(f"{folder / SERVER}: the server's configuration; check it before you start the server")
    for name in devices:
        click.echo(f"{folder / DEVICE_FOLDERS / name}: copy it to {name} over a trusted channel")
    for name in revoke:
        click.echo(f"{name} is revoked; a running server disconnects it within seconds")
    if devices:
        if not has_begun(folder):
            try:
                Deployment(folder).coordinator()
            except InvalidInput as error:
                click.echo(f"before the server starts, change {folder / SERVER}: {error}")
        if is_locked(folder / STATE):
            click.echo("the running server admits new devices before its next exchange")
    elif edge and is_locked(folder / STATE):
        click.echo("restart the server to send the graphs")
