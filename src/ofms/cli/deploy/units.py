"""`ofms deploy units`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("units")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--program",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The command `ofms` on the machine that will use the units; the one that runs now by default.",
)
def command(out: Path, program: Path | None) -> None:
    """Write systemd units for servers and devices, and a Containerfile, to a new folder."""
    import sys

    from ofms.flower.units import write_units

    for path in write_units(out, program or Path(sys.executable).parent / "ofms"):
        click.echo(path)
