"""The command `ofms`: one file per command; each parses and prints, and imports the library when it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ofms.cli import bounds, check, compare, data, deploy, listing, pretrain, report, reproduce, run
from ofms.cli.failures import TRACEBACK, print_traceback, report_failure
from ofms.core.version import __version__

__all__ = ["cli", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="ofms")
@click.option(TRACEBACK, is_flag=True, expose_value=False, help="Print where an error comes from, not only its line.")
def cli() -> None:
    """Online federated model selection and fine-tuning: the best model for every device, from a dictionary that is
    larger than any device's memory."""


for _module in (bounds, check, compare, data, deploy, listing, pretrain, report, reproduce, run):
    cli.add_command(_module.command)


def main() -> None:
    """Run the command line; errors print one line: status 2 for invalid input, 1 for any other failure."""
    sys.exit(_main(sys.argv[1:]))


def _main(arguments: list[str]) -> int:
    from ofms.core.errors import InvalidInput, NotFinite
    from ofms.flower.errors import ProcessEnded

    # Plug-ins may be in the current folder. It is searched last: no file in it replaces an installed module.
    sys.path[:] = [folder for folder in sys.path if folder not in ("", str(Path.cwd()))] + [""]
    shown = TRACEBACK in arguments
    arguments = [argument for argument in arguments if argument != TRACEBACK]
    try:
        cli.main(arguments, prog_name="ofms", standalone_mode=False)
    except (InvalidInput, NotFinite, ProcessEnded) as error:
        if shown:
            print_traceback(error)
        click.echo(f"ofms: {_one_line(str(error))}", err=True)
        return 2 if isinstance(error, InvalidInput) else 1
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        click.echo(f"ofms: {_one_line(error.format_message())}", err=True)
        return 2
    except (click.Abort, KeyboardInterrupt) as error:
        # Click wraps an interruption in its own Abort.
        click.echo(f"ofms: {_one_line(str(error.__cause__ or error)) or 'interrupted'}", err=True)
        return 1
    except Exception as error:
        return report_failure(error, traceback=shown)
    return 0


def _one_line(text: str) -> str:
    return " ".join(text.split())
