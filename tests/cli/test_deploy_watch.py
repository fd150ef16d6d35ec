"""`ofms deploy watch`: the page of a running server, or one of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest

from ofms.coordinator.deployment import WatchTable, read_config, write_config
from ofms.coordinator.watch.server import WatchServer
from tests.cli.commands import assert_refused, run
from tests.deployments import make_fleet
from tests.watched_fleet import watched_fleet


def test_the_page_of_a_running_server_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with watched_fleet(tmp_path, exchanges=1) as folder, WatchServer(folder, "127.0.0.1", 0) as server:
        write_config(folder, msgspec.structs.replace(read_config(folder), watch=WatchTable(port=server.port)))
        assert run("deploy", "watch", folder) == 0
        assert capsys.readouterr().out == f"http://127.0.0.1:{server.port}/\n"


def test_without_one_the_command_serves_it(tmp_path: Path) -> None:
    """Also while the server is stopped, and writes nothing."""
    with watched_fleet(tmp_path, exchanges=1) as folder:
        pass
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    command = [sys.executable, "-m", "ofms", "deploy", "watch", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urlopen(f"{url}status.json", timeout=100) as answer:
            assert json.load(answer)["exchange"] == 1
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 130
    assert error == "ofms: interrupted\n"
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before


def test_a_fleet_that_never_ran_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, run("deploy", "watch", make_fleet(tmp_path / "fleet")), "its server has not run yet")
    assert_refused(capsys, run("deploy", "watch", tmp_path / "nothing"), "not a deployment")


def test_a_port_in_use_stops_the_server_before_it_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with watched_fleet(tmp_path, exchanges=1) as folder, WatchServer(folder, "127.0.0.1", 0) as server:
        for command in (["watch", str(folder), "--port", str(server.port)], ["server", str(folder)]):
            write_config(folder, msgspec.structs.replace(read_config(folder), watch=WatchTable(port=server.port)))
            assert_refused(capsys, run("deploy", *command), "another program uses it")
    assert not (folder / "flower" / "superlink.log").exists()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("port = 99999", "watch.port = 99999"),
        ('port = "high"', "watch.port = high"),
        ('host = "somewhere"', "watch.host = somewhere: give the address to listen on"),
        ("colour = 1", "colour"),
    ],
)
def test_a_faulty_table_is_refused(
    table: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = make_fleet(tmp_path / "fleet")
    text = (fleet / "server.toml").read_text().partition("[watch]")
    rest = text[2][text[2].index("\n[") :]
    (fleet / "server.toml").write_text(f"{text[0]}[watch]\n{table}\n{rest}")
    assert_refused(capsys, run("deploy", "server", fleet), message)


def test_the_status_shows_what_devices_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with watched_fleet(tmp_path, exchanges=1) as folder:
        capsys.readouterr()
        assert run("deploy", "status", folder) == 0
        head, _, *rows = capsys.readouterr().out.splitlines()[2:6]
        device = json.loads((folder / "status.json").read_text())["devices"][0]
    assert "squared error" in head
    assert f"{device['last_score'] / device['last_samples']:.3g}" in rows[0]
