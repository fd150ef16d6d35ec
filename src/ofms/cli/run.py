"""`ofms run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ofms.cli.completion import complete_experiment, complete_policy
from ofms.cli.logs import log_options
from ofms.cli.options import (
    cache_option,
    device_option,
    drift_option,
    given_options,
    json_option,
    print_json,
    setting_options,
    trust_option,
    workers_option,
)
from ofms.cli.processes import own_workers, processes_option, start_if_asked
from ofms.policies import DEFAULT

if TYPE_CHECKING:
    from pathlib import Path


@click.command("run")
@click.argument("experiment", required=False, shell_complete=complete_experiment)
@click.option(
    "--policy",
    metavar="NAME",
    shell_complete=complete_policy,
    help=f"{DEFAULT} by default; see `ofms list`; or your own, as package.module:name.",
)
@click.option("--seed", type=int, help="0 by default.")
@click.option("--out", type=click.Path(), metavar="DIR", help="The run's folder; a new one under `runs` by default.")
@setting_options
@drift_option
@trust_option
@workers_option
@device_option
@cache_option(default=False)
@click.option("--loopback", is_flag=True, help="Client by client through messages: slow, the reference for tests.")
@click.option("--resume", type=click.Path(), metavar="RUN", help="Resume an interrupted run, with its configuration.")
@click.option("--tracker", metavar="NAME", help="Also log to tensorboard or mlflow.")
@click.option("--checkpoint", type=float, metavar="S", help="Seconds between checkpoints; 30 by default.")
@click.option("--save-models", is_flag=True, help="Leave the fine-tuned models in the run's folder, for --models.")
@processes_option("Number of processes on this machine that share the run, with the same result; see docs/cluster.md.")
@json_option
@log_options
def command(
    experiment: str | None,
    policy: str | None,
    models: str | None,
    out: str | None,
    settings: dict[str, Any],
    trust: tuple[str, ...],
    workers: int | None,
    cache: bool,
    loopback: bool,
    resume: str | None,
    tracker: str | None,
    checkpoint: float | None,
    save_models: bool,
    processes: int | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Run one policy on an experiment (digits by default, which needs no download)."""
    if resume is not None and experiment is not None:
        raise click.UsageError(f"--resume {resume} has its own experiment; leave out {experiment}")
    start_if_asked(processes, "ofms.cli.ranks", "ofms.compute.process_group", "ofms.simulator.api")
    from ofms.cli.ranks import shared_group
    from ofms.simulator.api import simulate

    with shared_group() as group:
        result = simulate(
            experiment or "digits",
            policy=policy,
            models=models,
            out=out if out is not None else resume is None,
            loopback=loopback,
            workers=own_workers(workers),
            cache=cache,
            progress=not quiet,
            resume=resume,
            checkpoint=checkpoint,
            tracker=tracker,
            save_models=save_models,
            trust=trust,
            group=group,
            **(given_options(given) | settings),
        )
    if group.rank:
        return
    click.echo(result.table())
    if not quiet:
        from ofms.core.words import counted

        config, seconds = result.config, result.figures["seconds"]
        size = f"{counted(config.clients, 'client')}, {counted(config.rounds, 'round')}"
        click.echo(f"{size} in {seconds:.1f} s; run in {result.folder}")
        for name, path in _run_files(result.folder):
            click.echo(f"{name}: {path}")
    if as_json:
        print_json(result.figures)


def _run_files(folder: Path | None) -> list[tuple[str, Path]]:
    """What a user opens next of a run: its page, its saved models."""
    from ofms.report.page import NAME
    from ofms.runs.folder import MODELS

    files = [] if folder is None else [("report", folder / NAME), ("models", folder / MODELS)]
    return [(name, path) for name, path in files if path.exists()]
