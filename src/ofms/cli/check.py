"""`ofms check`."""

from __future__ import annotations

import click

from ofms.cli.options import json_option, print_json, trust_option


@click.command("check")
@click.argument("dictionary", type=click.Path())
@click.option("--edge", is_flag=True, help="Also whether each network can run on devices without PyTorch.")
@trust_option
@json_option
def command(dictionary: str, edge: bool, trust: tuple[str, ...], as_json: bool) -> None:
    """Check a dictionary: models, costs, smallest budget, clusters per budget, deployability."""
    from ofms.models.dictionary import Dictionary
    from ofms.report.dictionaries import describe_dictionary, dictionary_tables

    facts = describe_dictionary(Dictionary.read(dictionary, trust=trust), edge=edge)
    click.echo(dictionary_tables(facts))
    if as_json:
        print_json(facts)
