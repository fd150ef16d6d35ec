"""`ofms data`."""

from __future__ import annotations

import click


@click.command("data")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Download and verify a dataset; without a name, verify those that are present."""
    from ofms.core.errors import InvalidInput
    from ofms.data import MODULES, load_dataset

    if name is not None:
        dataset = load_dataset(name)
        dataset.fetch()
        click.echo(dataset.check())
        return
    for each in MODULES:
        try:
            click.echo(load_dataset(each).check())
        except InvalidInput as error:
            click.echo(f"{each}: not usable; {error}")
