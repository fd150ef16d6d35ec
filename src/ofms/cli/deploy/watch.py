"""`ofms deploy watch`."""

from __future__ import annotations

from pathlib import Path

import click

from ofms.cli.deploy.common import folder_argument


@click.command("watch")
@folder_argument
@click.option("--port", type=click.IntRange(0, 65535), help="Serve the page here, at this port; 0 for any free one.")
@click.option("--open", "opened", is_flag=True, help="Open it in this machine's browser.")
def command(folder: Path, port: int | None, opened: bool) -> None:
    """Show a live page of a fleet: devices, exchanges, accuracy, models, bytes, rejected messages.

    A running server serves it to its own machine, at the address in [watch] of server.toml. Where it does not, this
    command does, until Ctrl-C.
    """
    from ofms.coordinator.deployment import read_config
    from ofms.coordinator.status import read_status
    from ofms.coordinator.watch.server import WatchServer, is_served, page_url

    table, deployment = read_config(folder).watch, read_status(folder)["deployment"]
    if port is None and table.port and is_served(table.host, table.port, deployment):
        _show(page_url(table.host, table.port), opened)
        return
    with WatchServer(folder.absolute(), "127.0.0.1", port or 0) as server:
        _show(server.url, opened)
        click.echo("served by this command; Ctrl-C ends it")
        server.wait()


def _show(url: str, opened: bool) -> None:
    click.echo(url)
    if opened:
        import webbrowser

        webbrowser.open(url)
