"""`ofms deploy device`."""

from __future__ import annotations

from pathlib import Path

import click

from ofms.cli.deploy.common import folder_argument, log_options, start_logs


@click.command("device")
@folder_argument
@click.option("--store", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The device's store.")
@click.option("--server", "address", metavar="HOST:PORT", help="The server's address, if not the one in device.toml.")
@log_options
def command(folder: Path, store: Path, address: str | None, verbose: bool, log_level: str, log_format: str) -> None:
    """Run a SuperNode that transfers messages between the server and a device's store.

    FOLDER is created by `ofms deploy keys`. A program that opens its device with `connect=FOLDER` needs no SuperNode.
    """
    from ofms.coordinator.files import FLOWER, read_device
    from ofms.flower.processes import free_port, keep_node, relay_line, supernode_command
    from ofms.storage.private import require_private

    start_logs(verbose, log_level, log_format)
    entry = read_device(folder)
    require_private(store)
    arguments = supernode_command(folder.absolute(), store.absolute(), address or entry.server, free_port())
    keep_node(arguments, store.absolute() / FLOWER, relay_line)
