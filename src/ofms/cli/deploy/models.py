"""`ofms deploy models`."""

from __future__ import annotations

from pathlib import Path

import click

from ofms.cli.deploy.common import folder_argument


@click.group("models")
def command() -> None:
    """Add models to a running fleet, retire models, and roll them back."""


@command.command("add")
@folder_argument
@click.argument("models", type=click.Path(path_type=Path))
@click.option("--model", "names", multiple=True, metavar="NAME", help="Only this one of its models; can be repeated.")
def add(folder: Path, models: Path, names: tuple[str, ...]) -> None:
    """Add the models of the dictionary folder MODELS, from the next exchange on."""
    from ofms.coordinator.changes import Requested
    from ofms.coordinator.operation import request_change

    request_change(folder, Requested(), models=models, names=names)
    click.echo("requested; the server adds them before its next exchange")


@command.command("retire")
@folder_argument
@click.argument("names", nargs=-1, required=True)
def retire(folder: Path, names: tuple[str, ...]) -> None:
    """Retire models, from the next exchange on; devices give their weights to the others."""
    from ofms.coordinator.changes import Requested
    from ofms.coordinator.operation import request_change

    request_change(folder, Requested(retire=list(names)))
    click.echo("requested; the server retires them before its next exchange")


@command.command("rollback")
@folder_argument
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--to", type=int, default=0, metavar="E", help="Their versions before exchange E; their first ones by default."
)
def rollback(folder: Path, names: tuple[str, ...], to: int) -> None:
    """Let models go back to earlier versions, from the next exchange on; devices forget what they learnt about them.

    `ofms deploy rollback` lists the exchanges whose versions are kept.
    """
    from ofms.coordinator.changes import Requested
    from ofms.coordinator.operation import request_change

    request_change(folder, Requested(rollback=dict.fromkeys(names, to)))
    click.echo("requested; the server rolls them back before its next exchange")
