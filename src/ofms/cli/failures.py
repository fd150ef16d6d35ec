"""Errors that no command expects: of the user's own code, or of this package."""

from __future__ import annotations

import click

from ofms.core.errors import one_line
from ofms.core.failures import describe_failure, last_line, user_line

# Anywhere on the command line.
TRACEBACK = "--traceback"


def report_failure(error: BaseException, *, traceback: bool) -> int:
    """Print one line with file, line and exception, after the whole traceback if wanted; return the status."""
    if traceback:
        print_traceback(error)
    described = describe_failure(error)
    if user_line(error) is None:
        described = f"internal error in {last_line(error)}: {described}"
    parts = [described, *getattr(error, "__notes__", ()), *([] if traceback else [f"{TRACEBACK} shows the rest"])]
    click.echo(f"ofms: {one_line('; '.join(parts))}", err=True)
    return 1


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an error and of those that it came from."""
    import traceback

    click.echo("".join(traceback.format_exception(error)).rstrip(), err=True)
