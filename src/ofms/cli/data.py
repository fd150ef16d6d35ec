"""`ofms data`."""

from __future__ import annotations

import click

from ofms.cli.options import trust_option


@click.command("data")
@click.argument("name", required=False)
@trust_option
def command(name: str | None, trust: tuple[str, ...]) -> None:
    """Download and verify a dataset; without a name, verify those that are present."""
    from ofms.core.errors import InvalidInput
    from ofms.data import MODULES, load_dataset
    from ofms.plugins import trust_of

    if name is not None:
        dataset = load_dataset(name, trust_of(trust))
        dataset.fetch()
        click.echo(dataset.check())
        return
    for each in MODULES:
        try:
            click.echo(load_dataset(each).check())
        except InvalidInput as error:
            click.echo(f"{each}: unusable; {error}")
