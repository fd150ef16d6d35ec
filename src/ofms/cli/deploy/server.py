"""`ofms deploy server`."""

from __future__ import annotations

from pathlib import Path

import click

from ofms.cli.deploy.common import folder_argument, log_options, start_logs


@click.command("server")
@folder_argument
@click.option("--listen", metavar="ADDRESS", help="The address to listen on; all by default.")
@log_options
def command(folder: Path, listen: str | None, verbose: bool, log_level: str, log_format: str) -> None:
    """Run the server of a deployment from its last checkpoint, until its horizon (if it has one) or Ctrl-C."""
    from ofms.coordinator.events import relay_event
    from ofms.flower.supervisor import Supervisor

    start_logs(verbose, log_level, log_format)
    with Supervisor(folder, listen=listen, echo=relay_event) as supervisor:
        relay_event(f"listening on {supervisor.listen}:{supervisor.port}; Ctrl-C stops it, the same command resumes it")
        if supervisor.page is not None:
            relay_event(f"watch it on this machine at {supervisor.page}")
        supervisor.run()
