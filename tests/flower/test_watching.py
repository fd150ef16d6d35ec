"""A real server: its page, metrics and health check, its logs as JSON lines, and who else may ask it anything."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import msgspec
import pytest

from ofms.coordinator.deployment import WatchTable, read_config, write_config
from ofms.flower.processes import free_port
from ofms.flower.supervisor import Supervisor
from tests.deployments import make_fleet
from tests.other_user import run_as_nobody


@pytest.mark.slow
def test_a_server_is_watched_and_logs_json_lines(tmp_path: Path) -> None:
    fleet, port = make_fleet(tmp_path / "fleet"), free_port()
    address = f"127.0.0.1:{free_port()}"
    write_config(fleet, msgspec.structs.replace(read_config(fleet), watch=WatchTable(port=port), address=address))
    command = [sys.executable, "-m", "ofms", "deploy", "server", str(fleet), "--log-format", "json", "-v"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 280
        while health(port) != 200:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.2)
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert b"ofms_running 1" in answer.read()
        process.send_signal(signal.SIGTERM)
        output, error = process.communicate(timeout=200)
    finally:
        process.kill()
    records = [json.loads(line) for line in error.splitlines()]
    messages = [record["message"] for record in records]
    assert records[-1]["level"] == "error", "how it ended"
    assert any(message.startswith("listening on") for message in messages)
    assert f"watch it on this machine at http://127.0.0.1:{port}/" in messages
    assert "the server starts" in messages
    assert output == ""
    assert health(port) is None


def health(port: int) -> int | None:
    try:
        with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code
    except OSError:
        return None


@pytest.mark.slow
def test_other_users_of_the_machine_cannot_ask_the_superlink_for_anything(tmp_path: Path) -> None:
    """Its control API starts runs, with any code, without authentication."""
    fleet, port = make_fleet(tmp_path / "fleet"), free_port()
    write_config(fleet, msgspec.structs.replace(read_config(fleet), address=f"127.0.0.1:{port}"))
    asked = ["curl", "--silent", "--insecure", "--output", "/dev/null", "--write-out", "%{http_code}", "--data", ""]
    with Supervisor(fleet, echo=lambda line: None):
        for path in ("/v1/control/list-runs", "/v1/control/start-run", "/v1/runtime/acquire-task"):
            url = f"https://127.0.0.1:{port}{path}"
            assert run_as_nobody(*asked, url).stdout == "403"
            own = subprocess.run([*asked, url], capture_output=True, text=True, check=False).stdout
            assert own not in ("403", "000"), "this user is served"
        assert run_as_nobody(*asked, f"https://127.0.0.1:{port}/v1/fleet/activate-node").stdout not in ("403", "000")
    assert "another user of this machine requested a path" in (fleet / "events.log").read_text()
