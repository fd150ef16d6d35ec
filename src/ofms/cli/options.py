"""Options and output that several commands share."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ofms.cli.completion import complete_assignment, complete_preset

if TYPE_CHECKING:
    from pathlib import Path

    from ofms.drawing.tables import Table

_log = logging.getLogger(__name__)
# Python converts no number of more than 4,300 digits.
_WHOLE = re.compile(r"[+-]?[1-9][0-9]{0,999}")
Command = TypeVar("Command", bound=Callable[..., Any])

# Arguments of `simulate` that are not settings of a policy or a run.
_NOT_SETTINGS = (
    *("experiment", "policy", "models", "stream", "out", "loopback"),
    *("workers", "progress", "resume", "checkpoint", "tracker", "cache", "save_models", "report", "trust", "seed"),
)


def assignments(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Parse KEY=VALUE; the value is parsed as TOML if it is valid TOML, otherwise it is a string."""
    from ofms.storage.parsing import parse_toml

    settings: dict[str, Any] = {}
    for key, text in _pairs(values, "KEY=VALUE"):
        if key in _NOT_SETTINGS:
            raise click.BadParameter(f"{key} is not a setting; use the option --{key} if there is one")
        try:
            settings[key] = parse_toml(f"value = {text}".encode())["value"]
        except ValueError:
            settings[key] = text.strip()
            if _WHOLE.fullmatch(settings[key]):
                # TOML has none of more than 64 bits; it is refused as a number.
                settings[key] = int(settings[key])
    return settings


def named_folders(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse EXPERIMENT=DIR."""
    return dict(_pairs(values, "EXPERIMENT=DIR"))


def named_budgets(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=BUDGET, each name once."""
    pairs = _pairs(values, "NAME=BUDGET")
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"{name!r} occurs twice; name it once")
    return dict(pairs)


def _pairs(values: tuple[str, ...], form: str) -> list[tuple[str, str]]:
    pairs = []
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip() or not text.strip():
            raise click.BadParameter(f"{value!r} is not {form}")
        pairs.append((key.strip(), text))
    return pairs


def setting_options(command: Command) -> Command:
    """Options that describe a fleet and a policy's settings."""
    options = [
        click.option(
            "--preset", metavar="NAME", shell_complete=complete_preset, help="Named settings; see `ofms list`."
        ),
        click.option(
            "--budget", metavar="B", help="Memory per client: 5 (times the largest model), 64MiB, 3:60%,5:40%."
        ),
        click.option("--bandwidth", metavar="E", help="Upload of all clients: 50% of the summed budgets, 1GiB."),
        click.option("--rounds", type=int, help="Samples per client."),
        click.option("--clients", type=int, help="Number of clients."),
        click.option("--models", type=click.Path(), metavar="DIR", help="Your own dictionary."),
        click.option(
            *("--set", "settings"),
            multiple=True,
            metavar="KEY=VALUE",
            callback=assignments,
            shell_complete=complete_assignment,
            help="Any other setting; see `ofms list --settings POLICY`.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def trust_option(command: Command) -> Command:
    """`--trust PACKAGE`: packages whose code may be imported by name."""
    return click.option(
        "--trust",
        multiple=True,
        metavar="PACKAGE",
        help="A package whose policies, architectures and datasets may be imported; can be repeated.",
    )(command)


def drift_option(command: Command) -> Command:
    return click.option(
        "--drift", metavar="KIND", help="Streams that change during the run: switch, gradual, recurring, or rotate."
    )(command)


def workers_option(command: Command) -> Command:
    return click.option(
        "--workers",
        type=click.IntRange(1),
        help="Number of threads; one per core by default. The result does not depend on it.",
    )(command)


def device_option(command: Command) -> Command:
    return click.option(
        "--device", metavar="NAME", help="Where models compute: cpu by default; cuda or mps are experimental."
    )(command)


def cache_option(default: bool) -> Callable[[Command], Command]:
    """`--cache` or `--no-cache`: whether runs that do not fine-tune look up their models' outputs."""
    return click.option(
        "--cache/--no-cache",
        default=default,
        show_default=True,
        help="Without fine-tuning, compute each model's outputs once and keep them in the user's cache.",
    )


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")(command)


def given_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def print_json(record: dict[str, Any]) -> None:
    """Print one line of JSON; numbers that are not finite become null."""
    import msgspec

    click.echo(msgspec.json.encode(record).decode())


def print_report(
    runs: Sequence[Path],
    out: Path,
    *,
    names: Sequence[str],
    tables: Sequence[Table],
    warnings: Sequence[str],
    quiet: bool,
) -> None:
    """Write the report and print its path; if that fails, only print why, since the run itself is complete."""
    from ofms.core.errors import InvalidInput
    from ofms.report.page import write_report

    try:
        path = write_report(runs, out, names, tables, warnings)
        if not quiet:
            click.echo(f"report: {path}")
        print_mixed_bounds(runs, names)
    except InvalidInput as error:
        _log.warning("no report: %s", error.remedy)
    except OSError as error:
        _log.warning("no report: %s: %s", error.filename, error.strerror)


def print_mixed_bounds(runs: Sequence[Path], names: Sequence[str] = ()) -> None:
    """Warn about runs on one page whose regrets are not comparable."""
    from dataclasses import replace

    from ofms.runs.result import Result
    from ofms.runs.warning_lines import mixed_bounds

    loaded = [Result.load(run) for run in runs]
    named = [replace(run, name=name) for run, name in zip(loaded, names, strict=True)] if names else loaded
    for line in mixed_bounds(named):
        _log.warning(line)
