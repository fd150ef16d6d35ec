"""Runs the blocks of a page of the documentation as they are written: `python -m tests.page_runner PAGE`.

Blocks are run in the order of the page and in the current folder; what they print is kept beside it. With `--isolated`
the program must be in namespaces of its own (users, mounts, network, processes): there is no network but the loopback
interface, all ports are free, the host names of the documentation are this machine, `/etc/ofms` and `/var/lib/ofms` are
the page's, and no process survives it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.documented import Block, blocks

HOSTS = ("fleet.example.com", "node0")
# A program that is stopped before it has started stops otherwise than one that runs.
SHORTEST_LIFE = 20
TIME_LIMIT = 1500
# Names that programs of the documentation leave to the reader.
READER = """\
import numpy as np

_samples = np.load("samples.npz")
x, y = _samples["x"][0], int(_samples["y"][0])


def readings():
    # Samples of four exchanges, of twenty each; waits for the models of each, so that all of them take place.
    first = device.exchange
    for exchange in range(4):
        assert device.wait_for(lambda: device.exchange >= first + exchange, timeout=300)
        yield from _samples["x"][20 * exchange : 20 * exchange + 20]
    assert device.wait_for(lambda: device.exchange >= first + 4, timeout=300)


def label_of(sample):
    return int(_samples["y"][(_samples["x"] == sample).all(axis=1)][0])


def act_on(value):
    assert 0 <= value < 10
"""


class Failed(Exception):
    """A block did not do what it should."""


def isolate() -> None:
    """Give the page its own network and system folders; nothing of it is seen outside."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    here, etc = Path.cwd(), Path(tempfile.mkdtemp(prefix="etc-", dir=".."))
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", etc], check=True)
    subprocess.run(["cp", "-a", "/etc/.", etc], stderr=subprocess.DEVNULL)  # without what only root may read
    with (etc / "hosts").open("a") as hosts:
        hosts.write(f"127.0.0.1 {' '.join(HOSTS)}\n")
    (etc / "ofms").symlink_to(here / "fleet/devices")
    subprocess.run(["mount", "--bind", etc, "/etc"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/var/lib"], check=True)
    Path("/var/lib/ofms").mkdir()
    Path("/var/lib/ofms/fleet").symlink_to(here / "fleet")
    # "Copy `fleet/devices/pump-1` onto that device."
    Path("pump-1").symlink_to(here / "fleet/devices/pump-1")


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server listens, as its reader does; not if it ended, which shows later."""
    until = time.monotonic() + TIME_LIMIT
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=20):
            return
        time.sleep(0.2)


class PageRunner:
    """Runs blocks, some of them in the background."""

    def __init__(self) -> None:
        self.background: dict[str, tuple[Block, subprocess.Popen[bytes], Path, float]] = {}

    def run(self, block: Block) -> None:
        if command := block.comments.get("stop"):
            self.stop(command)
        if path := block.comments.get("file"):
            file = Path(path).expanduser()
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif block.language not in ("bash", "python") or block.not_run:
            return
        elif "runs until stopped" in block.comments:
            process, log = self.start(block, {})
            self.background[block.text.splitlines()[-1]] = (block, process, log, time.monotonic())
            if port := block.comments.get("listens on"):
                _wait_for(int(port), process)
        else:
            machines = int(block.comments.get("machines", 1))
            started = [self.start(block, {"NODE": str(number)}) for number in range(machines)]
            for process, log in started:
                if status := process.wait(TIME_LIMIT):
                    raise Failed(f"{block}: status {status}\n{_end(log)}\n{self.logs()}")
            print(f"{block}: {_end(started[0][1], 500)}", flush=True)

    def start(self, block: Block, environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a block in a process group of its own, as a terminal does."""
        if block.language == "bash":
            command = ["bash", "-euo", "pipefail", "-c", block.text]
        else:
            command = ["python", "-c", f"{READER if re.search('readings|, y', block.text) else ''}\n{block.text}"]
        log = Path(tempfile.mkstemp(prefix="log-", dir="..")[1])
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=os.environ | environment, stdout=output, stderr=output, start_new_session=True
            )
        return process, log

    def stop(self, command: str) -> None:
        """Stop a background block by Ctrl-C; it must still have been running."""
        block, process, log, since = self.background.pop(command)
        time.sleep(max(0, since + SHORTEST_LIFE - time.monotonic()))
        if process.poll() is not None:
            raise Failed(f"{block}: ended by itself with status {process.returncode}\n{_end(log)}")
        os.killpg(process.pid, signal.SIGINT)
        status = process.wait(120)
        if status not in (0, 130, -signal.SIGINT):
            raise Failed(f"{block}: status {status} after Ctrl-C\n{_end(log)}")
        print(f"{block}: stopped, status {status}, {_end(log, 500)}", flush=True)

    def stop_all(self) -> None:
        for command in reversed(list(self.background)):
            self.stop(command)

    def logs(self) -> str:
        """What the programs in the background have said."""
        return "\n".join(f"{block}: {_end(log)}" for block, _, log, _ in self.background.values())


def _end(log: Path, length: int = 3000) -> str:
    return log.read_text(errors="replace")[-length:]


def main(page: Path, isolated: bool) -> int:
    # Programs that a shell started in the background, and what they start, ignore Ctrl-C otherwise.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if isolated:
        isolate()
    runner = PageRunner()
    try:
        for block in blocks(page):
            runner.run(block)
        runner.stop_all()
    except (Failed, subprocess.TimeoutExpired) as error:
        print(f"FAILED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "--isolated" in sys.argv))
