"""`ofms deploy dashboard`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("dashboard")
@click.argument("out", type=click.Path(path_type=Path), default=Path("ofms-fleet.json"))
def command(out: Path) -> None:
    """Write a Grafana dashboard of the server's metrics, for import; OUT is a file, ofms-fleet.json by default."""
    from importlib import resources

    from ofms.core.errors import InvalidInput
    from ofms.storage.files import require_writable, write_whole

    content = resources.files("ofms.coordinator.watch").joinpath("grafana.json").read_bytes()
    if out.exists() and (not out.is_file() or b'"uid": "ofms-fleet"' not in out.read_bytes()):
        raise InvalidInput("out", out, "it exists and is not a dashboard of ofms; name another file")
    require_writable(out.absolute().parent)
    write_whole(out, content)
    click.echo(f"{out}: import it into Grafana, whose data source is the Prometheus that reads the server's /metrics")
