"""`ofms deploy server`."""

from __future__ import annotations

from pathlib import Path

import click

from ofms.cli.deploy.common import folder_argument


@click.command("server")
@folder_argument
@click.option("--listen", metavar="ADDRESS", help="The address to listen on; all by default.")
def command(folder: Path, listen: str | None) -> None:
    """Run the server of a deployment from its last checkpoint, until its horizon (if it has one) or Ctrl-C."""
    from ofms.flower.supervisor import Supervisor

    with Supervisor(folder, listen=listen, echo=click.echo) as supervisor:
        click.echo(f"listening on {supervisor.listen}:{supervisor.port}; Ctrl-C stops it, the same command resumes it")
        if supervisor.page is not None:
            click.echo(f"watch it on this machine at {supervisor.page}")
        supervisor.run()
