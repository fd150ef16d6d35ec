"""`ofms deploy keys`."""

from __future__ import annotations

import ipaddress
import re
import shlex
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ofms.cli.deploy.common import folder_argument
from ofms.cli.options import assignments, named_budgets, trust_option
from ofms.policies import DEFAULT

_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
# As certificates have them: a star stands for the first part.
_HOST = re.compile(rf"(?=.{{1,253}}$)(\*\.)?{_LABEL}(\.{_LABEL})*")
# Options of a new deployment, and how one that exists is changed.
_NEW = {
    "policy": "ofms deploy set {folder} --policy NAME",
    "settings": "ofms deploy set {folder} --set KEY=VALUE",
    "interval": "ofms deploy set {folder} --interval N",
    "quorum": "ofms deploy set {folder} --quorum SHARE",
    "models": "ofms deploy models add {folder} DIR",
}


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
    from ofms.coordinator.files import APP, DEVICE_FOLDERS, GRAPHS, SERVER, STATE, split_address
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
        _refuse_options_of_new(folder)
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
        for host in (split_address(address)[0], *hosts):
            _require_host(host)
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


def _refuse_options_of_new(folder: Path) -> None:
    """Reject options that would change nothing, because the deployment exists."""
    from ofms.core.errors import InvalidInput

    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in ("folder", "devices", "edge", "revoke"):
            continue
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            remedy = "it is for a new deployment, with --server; this one has its values in server.toml"
            if name == "hosts":
                remedy = "it is for a new deployment, with --server; the certificate of this one is for its own names"
            if name in _NEW:
                change = _NEW[name].format(folder=shlex.quote(str(folder)))
                remedy = f"it is for a new deployment; change this one with: {change}"
            raise InvalidInput(parameter.opts[0].removeprefix("--"), _shown(context.params[name]), remedy)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _require_host(host: str) -> None:
    """Reject what a certificate cannot name."""
    from ofms.core.errors import InvalidInput

    try:
        ipaddress.ip_address(host)
    except ValueError:
        if _HOST.fullmatch(host) is None:
            remedy = "write it in ASCII, as a name or an address, such as fleet.example.com"
            raise InvalidInput("host", host or "''", remedy) from None
