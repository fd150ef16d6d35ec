"""`ofms pretrain`."""

from __future__ import annotations

from pathlib import Path

import click

from ofms.cli.completion import complete_experiment
from ofms.cli.logs import log_options
from ofms.cli.options import trust_option, workers_option


@click.command("pretrain")
@click.argument("experiment", shell_complete=complete_experiment)
@click.option("--out", type=click.Path(), metavar="DIR", help="The dictionary's folder; in the cache by default.")
@trust_option
@workers_option
@log_options
def command(experiment: str, out: str | None, trust: tuple[str, ...], workers: int | None, quiet: bool) -> None:
    """Pre-train an experiment's dictionary."""
    from ofms.core.errors import InvalidInput
    from ofms.models.dictionary import INDEX, Dictionary
    from ofms.plugins import trust_of
    from ofms.runs.config import load_experiment
    from ofms.runs.dictionaries import dictionary_folder, train_dictionary
    from ofms.runs.folder import require_free

    loaded, trusted = load_experiment(experiment), trust_of(trust)
    folder = Path(out) if out is not None else dictionary_folder(loaded, experiment, trusted)
    if (folder / INDEX).exists():
        Dictionary.read(folder, trust=loaded.trusted() | trusted)
        click.echo(f"{folder} already holds a dictionary; name another --out, or remove it to train again")
        return
    require_free(folder)
    try:
        train_dictionary(loaded, experiment, folder, trust=trusted, workers=workers, progress=not quiet)
    except InvalidInput as error:
        raise InvalidInput("out", out, error.remedy) if error.field == "folder" and out else error from None
    click.echo(f"dictionary in {folder}")
