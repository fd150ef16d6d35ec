"""`ofms deploy demo`."""

from __future__ import annotations

import click


@click.command("demo")
def command() -> None:
    """Run a server and devices on this machine, with TLS and keys: seven exchanges of late hedging on digits.

    While it runs, a device joins, a model is added, and another one is retired.
    """
    from ofms.flower.demo import run_demo

    raise click.exceptions.Exit(run_demo(click.echo))
