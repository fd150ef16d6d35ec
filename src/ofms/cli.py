"""The command. It parses and prints; everything else is in the library, imported when it is needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ofms.cli_deploy import deploy
from ofms.core.version import __version__
from ofms.policies import MODULES as POLICIES

if TYPE_CHECKING:
    from pathlib import Path


_NOT_SETTINGS = (
    *("experiment", "policy", "models", "stream", "out", "loopback"),
    *("workers", "progress", "resume", "checkpoint", "tracker", "seed"),
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="ofms")
def cli() -> None:
    """Online federated model selection and fine-tuning: the right model on every device, from a dictionary that is too
    large for any of them."""


cli.add_command(deploy)


def _assignment(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """KEY=VALUE, with the value as TOML where it is valid TOML, else as a string."""
    import tomllib

    settings: dict[str, Any] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{value!r} is not KEY=VALUE")
        if key.strip() in _NOT_SETTINGS:
            raise click.BadParameter(
                f"{key.strip()} is not a setting; use the option --{key.strip()} where there is one"
            )
        try:
            settings[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key.strip()] = text.strip()
    return settings


def _setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """What describes a fleet and a policy's settings."""
    options = [
        click.option("--preset", metavar="NAME", help="Settings by name; see `ofms list`."),
        click.option(
            "--budget",
            metavar="B",
            help="Memory of a client: 5 (times the largest model), 64MiB, 3:60%,5:40%.",
        ),
        click.option("--bandwidth", metavar="E", help="Upload of all clients: 50% of the summed budgets, 1GiB."),
        click.option("--rounds", type=int, help="Samples a client sees."),
        click.option("--clients", type=int),
        click.option("--models", type=click.Path(), metavar="DIR", help="A dictionary of one's own."),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            callback=_assignment,
            help="Any other setting.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _run_options(command: Callable[..., None]) -> Callable[..., None]:
    """What `run` takes besides."""
    options = [
        click.option("--policy", metavar="NAME", help="ofms-ft by default; see `ofms list`; or a module of your own."),
        click.option("--seed", type=int, help="0 by default."),
        click.option(
            "--out",
            type=click.Path(),
            metavar="DIR",
            help="The run's folder; a new one under `runs` by default.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@cli.command()
@click.argument("experiment", required=False)
@_run_options
@_setting_options
@click.option("--workers", type=int, help="Threads; one for each core by default. The result does not depend on it.")
@click.option("--loopback", is_flag=True, help="Client by client through messages: slow, the oracle for the fast way.")
@click.option("--resume", type=click.Path(), metavar="RUN", help="Go on with an interrupted run, as it was.")
@click.option("--tracker", metavar="NAME", help="Log to tensorboard or mlflow too.")
@click.option("--checkpoint", type=float, metavar="S", help="Seconds between two checkpoints; 30 by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
def run(
    experiment: str | None,
    policy: str | None,
    models: str | None,
    out: str | None,
    settings: dict[str, Any],
    workers: int | None,
    loopback: bool,
    resume: str | None,
    tracker: str | None,
    checkpoint: float | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run one policy on an experiment (digits by default, which needs no download)."""
    from ofms.simulator.api import simulate
    from ofms.simulator.formatting import result_table

    _require_workers(workers)
    if resume is not None and experiment is not None:
        raise click.UsageError(f"--resume {resume} goes on with its own experiment; leave out {experiment}")
    result = simulate(
        experiment or "digits",
        policy=policy,
        models=models,
        out=out if out is not None else resume is None,
        loopback=loopback,
        workers=workers,
        progress=True,
        resume=resume,
        checkpoint=checkpoint,
        tracker=tracker,
        **(_given(given) | settings),
    )
    click.echo(result_table(result))
    config = result.config
    click.echo(f"{config.clients} clients, {config.rounds} rounds in {result.seconds:.1f} s; run in {result.folder}")
    if result.folder is not None:
        _report([result.folder], None)
    if as_json:
        _print_json(result.summary())


def _require_workers(workers: int | None) -> None:
    if workers is not None and workers < 1:
        raise click.BadParameter(f"{workers}: give at least 1", param_hint="--workers")


def _print_json(record: dict[str, Any]) -> None:
    """One line of JSON; what is not finite becomes null, which JSON has no number for."""
    import msgspec

    click.echo(msgspec.json.encode(record).decode())


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _report(runs: Sequence[Path], out: Path | None) -> None:
    """Write the page, or say in one line why there is none: the run itself is done."""
    from ofms.core.errors import InvalidInput
    from ofms.report.page import write_report

    try:
        click.echo(f"report: {write_report(runs, out)}")
    except InvalidInput as error:
        click.echo(f"no report: {error.remedy}", err=True)


@cli.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(), metavar="RUN...")
@click.option("--out", type=click.Path(), metavar="FILE", help="report.html in the run's folder; here for several.")
def report(runs: tuple[str, ...], out: str | None) -> None:
    """One self-contained page of a run, or of several side by side."""
    from pathlib import Path

    from ofms.report.page import write_report

    click.echo(f"report: {write_report([Path(run) for run in runs], None if out is None else Path(out))}")


@cli.command()
@click.argument("experiment")
@click.option("--policy", "policies", metavar="NAME", multiple=True, help="All of them by default.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first one.")
@click.option("--seeds", type=click.IntRange(1), help="How many; 5 by default, 1 for mnist and cifar10.")
@_setting_options
@click.option(
    "--out", type=click.Path(), default="results", show_default=True, metavar="DIR", help="Where cells are kept."
)
@click.option("--workers", type=int, help="Threads; one for each core by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
def compare(
    experiment: str,
    policies: tuple[str, ...],
    seed: int,
    seeds: int | None,
    models: str | None,
    settings: dict[str, Any],
    out: str,
    workers: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """All policies side by side on one experiment, over several seeds, beside the paper's figures.

    What is finished is kept in the folder and not run again.
    """
    from pathlib import Path

    from ofms.reproduction.bench import POLICIES as SHOWN
    from ofms.reproduction.bench import Bench, Size
    from ofms.reproduction.cells import CellStore
    from ofms.reproduction.page import write_section
    from ofms.reproduction.published import comparison, first_runs

    _require_workers(workers)
    folder = Path(out) / f"compare-{Path(experiment).stem}"
    store = CellStore(
        folder / "cells", models={} if models is None else {experiment: models}, workers=workers, keep_runs=True
    )
    bench = Bench(store, [experiment], Size(seeds=seeds, first_seed=seed))
    section = comparison(bench, policies or SHOWN, **(_given(given) | settings))
    for table in section.tables:
        click.echo(table.text() + "\n")
    write_section(section, folder)
    click.echo(f"tables and runs in {folder}")
    _report(first_runs(bench, policies or SHOWN, **(_given(given) | settings)), folder / "report.html")
    if as_json:
        _print_json({"experiment": experiment, "runs": section.tables[0].data})


def _models(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """EXPERIMENT=DIR."""
    folders = {}
    for value in values:
        name, equals, folder = value.partition("=")
        if not equals or not name or not folder:
            raise click.BadParameter(f"{value!r} is not EXPERIMENT=DIR")
        folders[name] = folder
    return folders


@cli.command()
@click.argument("target", default="all")
@click.option("--quick", is_flag=True, help="Fewer clients and rounds, hastily pre-trained models: minutes.")
@click.option("--seeds", type=click.IntRange(1), help="How many, from 0 on; 5 by default, 1 for mnist and cifar10.")
@click.option("--column", "columns", multiple=True, metavar="EXPERIMENT", help="Some of the datasets; all by default.")
@click.option("--models", multiple=True, metavar="EXPERIMENT=DIR", callback=_models, help="A dictionary for a dataset.")
@click.option("--out", type=click.Path(), default="results", show_default=True, metavar="DIR")
@click.option("--show", is_flag=True, help="Run nothing: show what is finished.")
@click.option("--workers", type=int, help="Threads; one for each core by default.")
def reproduce(
    target: str,
    quick: bool,
    seeds: int | None,
    columns: tuple[str, ...],
    models: dict[str, str],
    out: str,
    show: bool,
    workers: int | None,
) -> None:
    """The paper's tables and figure: comparison, budgets, mixed-budgets, run-time, regret; what it lacks: digits,
    gain, interval, bandwidth, server, choices; or all.

    Finished cells are kept in the folder: what was interrupted goes on where it stopped.
    """
    from ofms.reproduction.page import reproduce_targets

    _require_workers(workers)
    reproduce_targets(
        target,
        out=out,
        quick=quick,
        seeds=seeds,
        columns=columns,
        models=models,
        run=not show,
        workers=workers,
        echo=click.echo,
    )


@cli.command()
@click.argument("experiment")
@click.option("--out", type=click.Path(), metavar="DIR", help="The dictionary's folder; in the cache by default.")
@click.option("--workers", type=int)
def pretrain(experiment: str, out: str | None, workers: int | None) -> None:
    """Build an experiment's dictionary."""
    from pathlib import Path

    from ofms.core.errors import InvalidInput
    from ofms.models.dictionary import INDEX, Dictionary
    from ofms.runs.config import load_experiment
    from ofms.runs.dictionaries import dictionary_folder, train_dictionary
    from ofms.runs.folder import require_free

    _require_workers(workers)
    loaded = load_experiment(experiment)
    folder = Path(out) if out is not None else dictionary_folder(loaded, experiment)
    if (folder / INDEX).exists():
        Dictionary.read(folder)
        click.echo(f"{folder} holds a dictionary already; name another --out, or remove it to train again")
        return
    require_free(folder)
    try:
        train_dictionary(loaded, experiment, folder, workers=workers, progress=True)
    except InvalidInput as error:
        raise InvalidInput("out", out, error.remedy) if error.field == "folder" and out else error from None
    click.echo(f"dictionary in {folder}")


@cli.command()
@click.argument("name", required=False)
def data(name: str | None) -> None:
    """Fetch a dataset and check that it is whole; without a name, check what is there."""
    from ofms.core.errors import InvalidInput
    from ofms.data import MODULES, load_dataset

    if name is not None:
        dataset = load_dataset(name)
        dataset.fetch()
        click.echo(dataset.check())
        return
    for each in MODULES:
        try:
            click.echo(load_dataset(each).check())
        except InvalidInput as error:
            click.echo(f"{each}: cannot be used; {error}")


@cli.command()
@click.argument("dictionary", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
def check(dictionary: str, as_json: bool) -> None:
    """Check a dictionary: its models, costs, smallest budget, clusters per budget."""
    from ofms.models.dictionary import Dictionary
    from ofms.report.dictionaries import describe_dictionary, dictionary_tables

    facts = describe_dictionary(Dictionary.read(dictionary))
    click.echo(dictionary_tables(facts))
    if as_json:
        _print_json(facts)


@cli.command("list")
def list_names() -> None:
    """Experiments, policies, presets and datasets."""
    from ofms.data import MODULES, load_dataset
    from ofms.policies.registry import policy_summary
    from ofms.runs.config import available, load_experiment, load_preset

    sections = {
        "experiments": {name: load_experiment(name).summary for name in available("experiments")},
        "policies": {name: policy_summary(name) for name in POLICIES},
        "presets": {name: load_preset(name).summary for name in available("presets")},
        "datasets": {name: load_dataset(name).summary for name in MODULES},
    }
    for title, entries in sections.items():
        click.echo(f"{title}:")
        for name, summary in entries.items():
            click.echo(f"  {name:<17}{summary}")


@cli.command()
@click.argument("experiment", default="digits")
@_setting_options
@click.option("--distance", type=float, metavar="D", help="‖θ_1 - θ*‖, for the server's bound.")
@click.option("--gradient", type=float, metavar="G", help="The largest norm of a gradient, for the server's bound.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
def bounds(
    experiment: str,
    distance: float | None,
    gradient: float | None,
    settings: dict[str, Any],
    as_json: bool,
    **given: Any,
) -> None:
    """The theorems' bounds and tuned rates of OFMS-FT for a setting; the preset is `theory` unless named."""
    from ofms.report.bounds import bounds_table, describe_bounds

    facts = describe_bounds(experiment, _given(given) | settings, distance=distance, gradient=gradient)
    click.echo(bounds_table(facts))
    if as_json:
        _print_json(facts)


def main() -> None:
    """The command, with one line for a mistake: status 2 for what makes no sense, 1 for anything else."""
    sys.exit(_main(sys.argv[1:]))


def _main(arguments: list[str]) -> int:
    from ofms.core.errors import InvalidInput, NotFinite
    from ofms.flower.errors import ProcessEnded

    # A user's own factories lie where the user is, as for `python -m`.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        cli.main(arguments, prog_name="ofms", standalone_mode=False)
    except (InvalidInput, NotFinite, ProcessEnded) as error:
        click.echo(f"ofms: {_one_line(str(error))}", err=True)
        return 2 if isinstance(error, InvalidInput) else 1
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        click.echo(f"ofms: {_one_line(error.format_message())}", err=True)
        return 2
    except (click.Abort, KeyboardInterrupt) as error:
        # Click wraps an interruption in an Abort of its own.
        click.echo(f"ofms: {_one_line(str(error.__cause__ or error)) or 'interrupted'}", err=True)
        return 1
    return 0


def _one_line(text: str) -> str:
    return " ".join(text.split())
