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
from tests.deployments import make_fleet


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
    *lines, last = error.splitlines()
    assert "ofms: " in last, "how it ended"
    records = [json.loads(line) for line in lines]
    messages = [record["message"] for record in records]
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
