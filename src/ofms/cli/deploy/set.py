"""`ofms deploy set`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ofms.cli.deploy.common import folder_argument
from ofms.cli.options import assignments, named_budgets


@click.command("set")
@folder_argument
@click.option("--budget", multiple=True, metavar="NAME=BUDGET", callback=named_budgets, help="A device's memory.")
@click.option("--bandwidth", metavar="E", help="Upload per exchange: a share of the summed budgets, or bytes.")
@click.option("--interval", type=int, metavar="N", help="Samples between exchanges.")
@click.option("--deadline", type=float, metavar="S", help="Seconds for a device to process those samples.")
@click.option("--quorum", type=float, metavar="SHARE", help="The share of answers that closes an exchange.")
@click.option("--staleness", type=int, metavar="N", help="How many exchanges later an answer may arrive.")
@click.option(
    "--aggregation", metavar="NAME", help="How updates become one: sum, or robustly clipped, trimmed-mean, median."
)
@click.option("--policy", metavar="NAME", help="Another policy, with its default settings; it starts anew.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    callback=assignments,
    help="A setting of the policy, which starts anew; can be repeated.",
)
def command(
    folder: Path,
    budget: dict[str, str],
    bandwidth: str | None,
    interval: int | None,
    deadline: float | None,
    quorum: float | None,
    staleness: int | None,
    aggregation: str | None,
    policy: str | None,
    settings: dict[str, Any],
) -> None:
    """Change a running fleet, from its next exchange on."""
    from ofms.coordinator.changes import Requested
    from ofms.coordinator.operation import request_change

    given: dict[str, Any] = {"bandwidth": bandwidth, "interval": interval, "deadline": deadline, "policy": policy}
    given |= {"quorum": quorum, "staleness": staleness, "aggregation": aggregation}
    if not (budget or settings or any(value is not None for value in given.values())):
        raise click.UsageError("nothing to change: give an option, such as --quorum 0.8; --help lists them")
    request_change(folder, Requested(budget=budget, settings=settings or None, **given))
    click.echo("requested; the server applies it before its next exchange")
