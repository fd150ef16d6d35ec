"""`ofms models`."""

from __future__ import annotations

from pathlib import Path

import click


@click.group("models")
def command() -> None:
    """Models of a run."""


@command.command("export")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
def export(run: Path, folder: Path) -> None:
    """Write the fine-tuned models of a RUN to a new folder, for `--models DIR`.

    Of a finished run with --save-models, or at the last checkpoint of one that still runs or was interrupted.
    """
    from ofms.runs.exporting import export_models

    rounds = export_models(run, folder)
    click.echo(f"{folder}: the models of {run} after {rounds} rounds")
