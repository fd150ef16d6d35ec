"""`ofms bounds`."""

from __future__ import annotations

from typing import Any

import click

from ofms.cli.options import given_options, json_option, print_json, setting_options, trust_option


@click.command("bounds")
@click.argument("experiment", default="digits")
@setting_options
@click.option("--distance", type=float, metavar="D", help="‖θ_1 - θ*‖, for the server's bound.")
@click.option("--gradient", type=float, metavar="G", help="The largest norm of a gradient, for the server's bound.")
@trust_option
@json_option
def command(
    experiment: str,
    distance: float | None,
    gradient: float | None,
    settings: dict[str, Any],
    trust: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> None:
    """Show the regret bounds and tuned rates of OFMS-FT; the preset is `theory` by default."""
    from ofms.report.bounds import bounds_table, describe_bounds

    values = given_options(given) | settings
    facts = describe_bounds(experiment, values, distance=distance, gradient=gradient, trust=trust)
    click.echo(bounds_table(facts))
    if as_json:
        print_json(facts)
