"""`ofms reproduce`."""

from __future__ import annotations

import click

from ofms.cli.logs import log_options
from ofms.cli.options import cache_option, named_folders, trust_option, workers_option
from ofms.cli.processes import own_rank, own_workers, processes_option, start_if_asked


@click.command("reproduce")
@click.argument("target", default="all")
@click.option("--quick", is_flag=True, help="Fewer clients and rounds, models pre-trained for one epoch: minutes.")
@click.option("--seeds", type=click.IntRange(1), help="Number of seeds; 5 by default, 1 for mnist and cifar10.")
@click.option("--column", "columns", multiple=True, metavar="EXPERIMENT", help="All datasets by default.")
@click.option(
    "--models", multiple=True, metavar="EXPERIMENT=DIR", callback=named_folders, help="The dictionary of a dataset."
)
@click.option("--out", type=click.Path(), default="results", show_default=True, metavar="DIR")
@click.option(
    "--page", type=click.Path(), metavar="FILE", help="The page of `all`; by default results.md in the folder."
)
@click.option("--show", is_flag=True, help="Show finished cells; run nothing and write nothing.")
@click.option("--no-run", is_flag=True, help="Write tables, figures and the page from finished cells; run nothing.")
@trust_option
@workers_option
@cache_option(default=True)
@processes_option("Number of processes on this machine that run the cells, each by itself; see docs/cluster.md.")
@log_options
def command(
    target: str,
    quick: bool,
    seeds: int | None,
    columns: tuple[str, ...],
    models: dict[str, str],
    out: str,
    page: str | None,
    show: bool,
    no_run: bool,
    trust: tuple[str, ...],
    workers: int | None,
    cache: bool,
    processes: int | None,
    quiet: bool,
) -> None:
    """Reproduce the paper's tables and figure: comparison, budgets, mixed-budgets, run-time, regret; or further
    measurements: digits, gain, interval, bandwidth, server, choices, method, drift, attacks; or all.

    Finished cells are stored in the folder; the same command resumes an interrupted reproduction.
    """
    start_if_asked(processes, "ofms.reproduction.page", remedy="the same command resumes it")
    from ofms.plugins import trust_of
    from ofms.reproduction.page import reproduce_targets

    reproduce_targets(
        target,
        out=out,
        quick=quick,
        seeds=seeds,
        columns=columns,
        models=models,
        run=not (show or no_run),
        write=not show,
        page=page,
        trust=trust_of(trust),
        workers=own_workers(workers),
        cache=cache,
        quiet=quiet,
        echo=click.echo,
        rank=own_rank(),
    )
