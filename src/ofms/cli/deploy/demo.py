"""`ofms deploy demo`."""

from __future__ import annotations

import sys

import click

from ofms.cli.deploy.common import interrupt_on_sigterm


@click.command("demo")
def command() -> None:
    """Run a server and three devices on this machine, with TLS and keys: five exchanges of late hedging on digits."""
    from ofms.flower.demo import run_demo

    interrupt_on_sigterm()
    sys.exit(run_demo(click.echo))
