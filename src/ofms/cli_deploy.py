"""`ofms deploy`: the commands of a real fleet. They parse and print."""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click


@click.group()
def deploy() -> None:
    """The real thing: a server and its devices over a network, on Flower (docs/deploy.md)."""
    from ofms.core.errors import InvalidInput

    if find_spec("flwr") is None:
        raise InvalidInput("flower", "not installed", "pip install 'ofms[flower]'")
    # Before anything of Flower's is imported.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")


def _named_budgets(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """NAME=BUDGET."""
    found = {}
    for value in values:
        name, equals, budget = value.partition("=")
        if not equals or not name or not budget:
            raise click.BadParameter(f"{value!r} is not NAME=BUDGET")
        if name in found:
            raise click.BadParameter(f"{name!r} is named twice")
        found[name] = budget
    return found


_FOLDER = click.argument("folder", type=click.Path(path_type=Path))


@deploy.command()
@_FOLDER
@click.option("--server", "address", metavar="HOST:PORT", help="A new deployment: where devices find its server.")
@click.option("--models", type=click.Path(path_type=Path), metavar="DIR", help="Its dictionary.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Other names and addresses of the server.")
@click.option("--interval", type=int, default=20, show_default=True, help="Samples between two exchanges.")
@click.option("--rounds", type=int, default=100_000, show_default=True, help="The horizon, in samples.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME=BUDGET",
    callback=_named_budgets,
    help="A new device and its memory for models: 64MiB, or 5 for five times the largest model.",
)
@click.option("--revoke", multiple=True, metavar="NAME", help="Have nothing to do with a device any more.")
def keys(
    folder: Path,
    address: str | None,
    models: Path | None,
    hosts: tuple[str, ...],
    interval: int,
    rounds: int,
    devices: dict[str, str],
    revoke: tuple[str, ...],
) -> None:
    """Make a deployment: an authority, the server's certificate, a key for each device; add and revoke devices."""
    from ofms.coordinator.deployment import Deployment, read_config
    from ofms.coordinator.files import APP, SERVER, STATE
    from ofms.coordinator.keys import add_device, make_deployment, revoke_device
    from ofms.core.errors import InvalidInput
    from ofms.flower.app import write_app
    from ofms.storage.locks import is_locked

    if address is not None:
        if models is None:
            raise InvalidInput("models", None, "say which dictionary the server has: --models DIR")
        make_deployment(folder, address, models, hosts=hosts, interval=interval, rounds=rounds)
        write_app(folder / APP)
        click.echo(f"{folder / SERVER}: what the server does; look it over")
    address = read_config(folder).address
    for name, budget in devices.items():
        own = add_device(folder, name, budget, address)
        click.echo(f"{own}: copy it onto {name}, over a channel that you trust")
    for name in revoke:
        revoke_device(folder, name)
        click.echo(f"{name} is revoked; a server that runs shuts it out within seconds")
    if devices:
        try:
            Deployment(folder).coordinator()
        except InvalidInput as error:
            click.echo(f"before the server starts, change {folder / SERVER}: {error}")
        if is_locked(folder / STATE):
            click.echo("restart the server to let new devices in")


@deploy.command()
@_FOLDER
@click.option("--listen", metavar="ADDRESS", help="Where to listen; all addresses by default.")
def server(folder: Path, listen: str | None) -> None:
    """Run the server of a deployment, from its checkpoint on, until its horizon or Ctrl-C."""
    from ofms.flower.supervisor import Supervisor

    _interrupt_when_terminated()
    with Supervisor(folder, listen=listen, echo=click.echo) as supervisor:
        click.echo(f"listening on {supervisor.listen}:{supervisor.port}; Ctrl-C stops, the same command goes on")
        supervisor.run()


@deploy.command()
@_FOLDER
@click.option("--store", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The device's store.")
@click.option("--server", "address", metavar="HOST:PORT", help="Where the server is, if not where device.toml says.")
def device(folder: Path, store: Path, address: str | None) -> None:
    """Carry messages between the server and a device's store; FOLDER is what `ofms deploy keys` made for it."""
    from ofms.coordinator.files import FLOWER, read_device
    from ofms.flower.processes import free_port, keep_node, supernode_command
    from ofms.storage.files import require_writable

    entry = read_device(folder)
    require_writable(store)
    _interrupt_when_terminated()
    command = supernode_command(folder.absolute(), store.absolute(), address or entry.server, free_port())
    keep_node(command, store.absolute() / FLOWER, click.echo)


@deploy.command()
@_FOLDER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(folder: Path, as_json: bool) -> None:
    """Devices, exchanges, bytes and refusals of a deployment."""
    from ofms.coordinator.status import read_status, status_text

    found = read_status(folder)
    click.echo(json.dumps(found) if as_json else status_text(found))


@deploy.command()
@_FOLDER
@click.option("--off", is_flag=True, help="Fine-tune again.")
def freeze(folder: Path, off: bool) -> None:
    """Go on selecting models, but do not fine-tune them."""
    from ofms.coordinator.commands import Command

    _give(folder, Command("thaw" if off else "freeze"))


@deploy.command()
@_FOLDER
@click.option("--to", type=int, metavar="E", help="The exchange before which the dictionary was as it should be.")
def rollback(folder: Path, to: int | None) -> None:
    """Go back to the dictionary as it was before an exchange; without --to, say which there are."""
    from ofms.coordinator.commands import Command
    from ofms.coordinator.status import read_status
    from ofms.core.errors import InvalidInput

    there = read_status(folder)["history"]
    if to is None:
        click.echo(f"--to takes one of {', '.join(map(str, there))}; 0 is the dictionary that the server began with")
        return
    if to not in there:
        raise InvalidInput("to", to, f"there are {', '.join(map(str, there))}")
    _give(folder, Command("rollback", to))


@deploy.command()
@_FOLDER
@click.argument("out", type=click.Path(path_type=Path))
def export(folder: Path, out: Path) -> None:
    """Write the dictionary as it is now to a new folder, for use elsewhere."""
    from ofms.coordinator.deployment import Deployment
    from ofms.coordinator.persistence import PersistentCoordinator

    server = PersistentCoordinator(Deployment(folder), read_only=True)
    server.write_dictionary(out)
    click.echo(f"{out}: the dictionary after {server.coordinator.exchange} exchanges")


@deploy.command()
def demo() -> None:
    """A server and three devices on this machine, with TLS and keys: five exchanges on digits."""
    from ofms.flower.demo import run_demo

    _interrupt_when_terminated()
    sys.exit(run_demo(click.echo))


def _give(folder: Path, command: Any) -> None:
    from ofms.coordinator.commands import give_command
    from ofms.coordinator.deployment import read_config

    read_config(folder)
    give_command(folder, command)
    click.echo("asked for; the server does it before its next exchange")


def _interrupt_when_terminated() -> None:
    """Treat SIGTERM, which service managers send, as Ctrl-C."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
