"""`ofms advise`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ofms.cli.completion import complete_experiment, complete_policy
from ofms.cli.logs import log_options
from ofms.cli.options import assignments, given_options, json_option, print_json, trust_option, workers_option


@click.command("advise")
@click.argument("experiment", default="digits", shell_complete=complete_experiment)
@click.option("--models", type=click.Path(), metavar="DIR", help="Your own dictionary.")
@click.option("--budget", metavar="B", help="The memory of a device for models, as 64MiB; by default for all models.")
@click.option("--devices", type=click.IntRange(1), help="Devices of the fleet; by default those of the experiment.")
@click.option(
    "--uplink", metavar="RATE", help="What all devices together can upload, as 10MB/s; by default any amount."
)
@click.option("--every", type=float, default=1.0, show_default=True, metavar="S", help="Seconds between samples.")
@click.option("--tolerance", type=float, default=5.0, show_default=True, help="How much more error is as good, in %.")
@click.option("--clients", type=click.IntRange(1), default=20, show_default=True, help="Clients of a simulation.")
@click.option("--rounds", type=click.IntRange(1), default=200, show_default=True, help="Rounds of a simulation.")
@click.option("--policy", metavar="NAME", shell_complete=complete_policy, help="That of the experiment by default.")
@click.option("--seed", type=int, help="0 by default.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", callback=assignments, help="Any other setting.")
@click.option("--out", type=click.Path(path_type=Path), default="advice.png", show_default=True, metavar="FILE")
@trust_option
@workers_option
@json_option
@log_options
def command(
    experiment: str,
    budget: str | None,
    devices: int | None,
    uplink: str | None,
    every: float,
    tolerance: float,
    clients: int,
    rounds: int,
    policy: str | None,
    settings: dict[str, Any],
    out: Path,
    trust: tuple[str, ...],
    workers: int | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Choose budget, interval and bandwidth for a fleet: short simulations on an experiment's stream.

    Prints the error, memory and traffic of each choice beside OFMS-FT's bound, says which to take, and draws a picture.
    """
    import logging

    from ofms.core.errors import InvalidInput
    from ofms.drawing.charts import require_picture
    from ofms.report.advice import Option, advise
    from ofms.report.advice_text import advice_text, draw_advice
    from ofms.storage.files import require_writable

    log = logging.getLogger(__name__)

    def on_option(option: Option, done: int, total: int) -> None:
        log.info("%d of %d: budget %d B, interval %d", done, total, option.budget, option.interval)

    require_picture(out)
    require_writable(out.parent)
    advice = advise(
        experiment,
        policy=policy,
        given=given_options(given) | settings,
        clients=clients,
        rounds=rounds,
        budget=budget,
        devices=devices,
        uplink=uplink,
        every=every,
        tolerance=tolerance / 100,
        trust=trust,
        workers=workers,
        progress=not quiet,
        on_option=on_option,
    )
    click.echo(advice_text(advice))
    for line in advice.warnings:
        log.warning(line)
    try:
        draw_advice(advice, out)
        if not quiet:
            click.echo(f"picture: {out}")
    except InvalidInput as error:
        log.warning("no picture: %s", error.remedy)
    if as_json:
        print_json(advice.record())
