"""`ofms compare`."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ofms.cli.completion import complete_experiment, complete_policy
from ofms.cli.logs import log_options
from ofms.cli.options import (
    cache_option,
    drift_option,
    given_options,
    json_option,
    print_json,
    print_report,
    setting_options,
    trust_option,
    workers_option,
)
from ofms.cli.processes import own_rank, own_workers, processes_option, start_if_asked

_log = logging.getLogger(__name__)


@click.command("compare")
@click.argument("experiment", shell_complete=complete_experiment)
@click.option(
    *("--policy", "policies"),
    metavar="NAME",
    multiple=True,
    shell_complete=complete_policy,
    help="All policies by default; can be repeated.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--seeds", type=click.IntRange(1), help="Number of seeds; 5 by default, 1 for mnist and cifar10.")
@setting_options
@drift_option
@click.option(
    "--out", type=click.Path(), default="results", show_default=True, metavar="DIR", help="Folder for the cells."
)
@trust_option
@workers_option
@cache_option(default=True)
@processes_option("Number of processes on this machine that run the cells, each by itself; see docs/cluster.md.")
@json_option
@log_options
def command(
    experiment: str,
    policies: tuple[str, ...],
    seed: int,
    seeds: int | None,
    models: str | None,
    settings: dict[str, Any],
    out: str,
    trust: tuple[str, ...],
    workers: int | None,
    cache: bool,
    processes: int | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Compare policies on one experiment over several seeds, next to the paper's figures.

    Finished cells are stored in the folder and not run again.
    """
    start_if_asked(processes, "ofms.reproduction.page", remedy="the same command resumes it")
    from ofms.plugins import trust_of
    from ofms.reproduction.bench import ROWS, Bench, Size
    from ofms.reproduction.cells import CellStore
    from ofms.reproduction.comparison import comparison, first_runs
    from ofms.reproduction.page import write_section
    from ofms.reproduction.spreading import spread

    folder = Path(out) / f"compare-{Path(experiment).stem}"
    store = CellStore(
        folder / "cells",
        models={} if models is None else {experiment: models},
        trust=trust_of(trust),
        workers=own_workers(workers),
        keep_runs=True,
        progress=not quiet and not own_rank(),
    )
    bench = Bench(store, [experiment], Size(seeds=seeds, first_seed=seed), cached=cache)
    names, values = policies or tuple(ROWS), given_options(given) | settings
    if own_rank() is not None:
        spread(store, [lambda each: comparison(replace(bench, store=each), names, details=True, **values)])
        if own_rank():
            return
    section = comparison(bench, names, details=True, **values)
    for table in section.tables:
        click.echo(table.text() + "\n")
    for line in (*section.warnings, *store.version_warning()):
        _log.warning(line)
    write_section(section, folder)
    if not quiet:
        click.echo(f"tables and runs in {folder}")
    runs = first_runs(bench, names, **values)
    print_report(
        [*runs.values()],
        folder / "report.html",
        names=[*runs],
        tables=section.tables,
        warnings=section.warnings,
        quiet=quiet,
    )
    if as_json:
        print_json({"experiment": experiment, "runs": section.tables[0].data})
