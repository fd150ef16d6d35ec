"""`ofms report`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="By default report.html in the run's folder, or in the current folder for several runs.",
)
def command(runs: tuple[Path, ...], out: Path | None) -> None:
    """Write one self-contained HTML page of one or several runs."""
    from ofms.cli.options import print_mixed_bounds
    from ofms.report.page import write_report

    click.echo(f"report: {write_report(runs, out)}")
    print_mixed_bounds(runs)
