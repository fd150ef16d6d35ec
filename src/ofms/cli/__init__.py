"""The command `ofms`: one file per command; each parses and prints, and imports the library when it runs."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from ofms.cli import (
    advise,
    bounds,
    check,
    compare,
    completion,
    data,
    deploy,
    listing,
    models,
    pretrain,
    report,
    reproduce,
    run,
)
from ofms.cli.failures import TRACEBACK, print_traceback, report_failure
from ofms.cli.logs import log_last_line, printed_log
from ofms.cli.output import Output
from ofms.cli.processes import LAUNCHED, is_connected, peer_ended
from ofms.core.errors import InvalidInput, NotFinite, PeerEnded, ProcessEnded, one_line
from ofms.core.failures import user_line
from ofms.core.version import __version__
from ofms.exports import NO_TORCH
from ofms.runs.interrupt import Interrupted, Interruptible, end_on_signals, ignore_signals

__all__ = ["cli", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="ofms")
@click.option(TRACEBACK, is_flag=True, expose_value=False, help="Print where an error comes from, not only its line.")
def cli() -> None:
    """Online federated model selection and fine-tuning: the best model for every device, from a dictionary that is
    larger than any device's memory."""


for _module in (
    advise,
    bounds,
    check,
    compare,
    completion,
    data,
    deploy,
    listing,
    models,
    pretrain,
    report,
    reproduce,
    run,
):
    cli.add_command(_module.command)


def main() -> None:
    """Run the command line; errors print one line.

    The status is 2 for invalid input, 128 + its number for a signal, 1 for any other failure.
    """
    end_on_signals()
    output = Output()
    with Interruptible() as signals:
        try:
            status = _main(sys.argv[1:], signals)
        except KeyboardInterrupt as error:
            status = _interrupted(error)
        end_on_signals()
        status = output.finish(status)
    # All is done: while Python ends, a signal would kill the process without a word, or change the status.
    ignore_signals()
    if is_connected():
        # An error has ended the run: PyTorch would abort if another process closes its connections at the same time.
        os._exit(status)
    sys.exit(status)


def _main(arguments: list[str], signals: Interruptible | None = None) -> int:
    shown = TRACEBACK in arguments
    arguments = [argument for argument in arguments if argument != TRACEBACK]
    try:
        _search_current_folder_last()
        _require_text(arguments)
        with printed_log(), _failures_of_interrupted(signals):
            _invoke(arguments)
    except (InvalidInput, NotFinite, ProcessEnded) as error:
        if shown:
            print_traceback(error)
        notes = getattr(error, "__notes__", [])
        if isinstance(error, PeerEnded) and LAUNCHED in os.environ:
            return peer_ended(notes)
        return _failed("; ".join([str(error), *notes]), 2 if isinstance(error, InvalidInput) else 1)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        return _failed(_with_remedy(error), 2)
    except KeyboardInterrupt as error:
        return _interrupted(error)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            return _failed(NO_TORCH, 2)
        if not isinstance(error, OSError) or user_line(error) is not None:
            return report_failure(error, traceback=shown)
        if error.errno == errno.ENAMETOOLONG:
            return _failed(str(InvalidInput("path", error.filename, "its name is too long; give a shorter one")), 2)
        place = [str(error.filename)] if error.filename is not None else []
        reason = [error.strerror or str(error) or type(error).__name__]
        return _failed("; ".join([": ".join(place + reason), *getattr(error, "__notes__", [])]), 1)
    except BaseException as error:
        if isinstance(error, SystemExit) and user_line(error) is None:
            raise
        return report_failure(error, traceback=shown)
    return 0


@contextmanager
def _failures_of_interrupted(signals: Interruptible | None) -> Iterator[None]:
    """Raise `Interrupted` instead of an error after a signal: some modules replace an interruption of their import."""
    try:
        yield
    except Exception as error:
        if signals is None or signals.number is None:
            raise
        raise Interrupted(number=signals.number) from error


def _with_remedy(error: click.ClickException) -> str:
    """The line of click's error; that an unknown command does not exist, with those that do."""
    line, context = error.format_message(), getattr(error, "ctx", None)
    unknown = re.match(r"No such command '(.*)'\.", line)
    if unknown is None or context is None or not isinstance(context.command, click.Group):
        return line
    from ofms.core.choices import suggest

    return f"no command {unknown[1]!r}: {suggest(unknown[1], context.command.list_commands(context))}"


def _search_current_folder_last() -> None:
    """Plug-ins may be in the current folder; no file in it replaces an installed module."""
    try:
        current = os.getcwd()
    except OSError as error:
        raise InvalidInput("current folder", error.strerror, "it was removed; change to another one") from None
    sys.path[:] = [folder for folder in sys.path if folder not in ("", current)] + [""]


def _require_text(arguments: list[str]) -> None:
    """Reject names in another encoding than UTF-8, which no configuration, table or page could hold."""
    for argument in arguments:
        if any("\ud800" <= each <= "\udfff" for each in argument):
            raise InvalidInput("argument", ascii(argument), "it is not valid UTF-8; rename the file or folder")


def _invoke(arguments: list[str]) -> None:
    """Run a command; unlike `cli.main`, without click's own handling of interruptions and ended pipes."""
    if "_OFMS_COMPLETE" in os.environ:
        cli.main(arguments, prog_name="ofms", standalone_mode=False)
    with cli.make_context("ofms", list(arguments)) as context:
        cli.invoke(context)


def _interrupted(error: KeyboardInterrupt) -> int:
    number = error.number if isinstance(error, Interrupted) else signal.SIGINT
    return _failed(str(error) or "interrupted", 128 + number)


def _failed(reason: str, status: int) -> int:
    if not log_last_line(one_line(reason)):
        click.echo(f"ofms: {one_line(reason)}", err=True)
    return status
