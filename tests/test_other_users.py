"""Stores, keys and deployments are closed to other users of the machine from their creation on, whatever the umask."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.device.device import Device
from ofms.device.mailbox import Mailbox
from ofms.flower.local_users import is_own_connection, owner_of
from ofms.flower.node_file import NodeFile
from ofms.flower.processes import environment
from ofms.storage.locks import LOCK
from ofms.storage.private import require_private
from tests.cli.commands import run
from tests.devices import budgets_for, coordinator_of_one, problem
from tests.other_user import NOBODY, public_folder, run_as_nobody


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(scope="module")
def machine() -> Iterator[Path]:
    """A deployment and a device with messages, made without umask in a folder that all users can enter."""
    with public_folder() as folder:
        (folder / "public").write_text("for all")
        problem()[0].write(folder / "models")
        budget = int(budgets_for(problem()[0])[0])
        made: list[str | Path] = [
            "--server",
            "127.0.0.1:1",
            "--models",
            folder / "models",
            "--device",
            f"pump={budget}B",
        ]
        assert run("deploy", "keys", folder / "fleet", *made) == 0
        persistence = PersistentCoordinator(Deployment(folder / "fleet"))
        persistence.save()
        persistence.log_event("an event")
        persistence.close()
        environment(folder / "fleet" / "flower")
        _fill_store(folder / "store")
        yield folder


def _fill_store(store: Path) -> None:
    coordinator, budget, x, y = coordinator_of_one()
    mailbox = Mailbox(store)
    mailbox.deliver(b"not for this device")
    mailbox.refuse("0", "it is not a message")
    with Device(store, budget=budget, mail=False) as device:
        NodeFile(store).keep(node=7)
        # Kept for the tests: the lock itself is removed when the store is closed.
        os.link(store / LOCK, store / "lock")
        device.receive(coordinator.welcome(0))
        device.receive(coordinator.run_exchange({0: device.collect() or b""})[0])
        device.feedback(device.predict(x[0]).id, float(y[0]))
        mailbox.send(1, device.collect(now=True) or b"")
        device.predict(x[1])


def test_another_user_reads_nothing(machine: Path) -> None:
    assert run_as_nobody("cat", machine / "public").stdout == "for all", "that user can enter the folder"
    for private in ("store", "fleet"):
        paths = [machine / private, *(machine / private).rglob("*")]
        assert len(paths) > 8
        readable = run_as_nobody("find", *paths, "-maxdepth", "0", "-readable").stdout
        assert readable == ""
        assert run_as_nobody("ls", machine / private).returncode != 0


def test_modes_are_those_of_the_owner_alone(machine: Path) -> None:
    for private in ("store", "fleet", "fleet/state", "fleet/state/models", "fleet/flower", "fleet/devices/pump"):
        assert mode(machine / private) == 0o700, private
    found = set((machine / "store").rglob("*"))
    expected = {"inbox", "outbox", "models", "snapshot.safetensors", "node.msgpack", "lock"}
    assert {path.name for path in found} >= expected
    assert any(path.name.startswith("journal-") for path in found)
    for path in found:
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path
    for key in ("fleet/ca.key", "fleet/server.key", "fleet/devices/pump/device.key"):
        assert mode(machine / key) == 0o600


def test_nothing_is_open_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders are private when they are made, not later; so whatever is in them is."""
    made: list[tuple[str, int]] = []
    mkdir = os.mkdir

    def watched(path: Any, *rest: Any, **more: Any) -> None:
        mkdir(path, *rest, **more)
        made.append((str(path), mode(Path(path))))

    with public_folder() as folder:
        monkeypatch.setattr(os, "mkdir", watched)
        _fill_store(folder / "store")
        assert run("deploy", "units", folder / "other") == 0
        monkeypatch.undo()
        own = [found for path, found in made if path.startswith(str(folder / "store"))]
        assert len(own) >= 4
        assert set(own) == {0o700}
        assert mode(folder / "other") == 0o777, "others are as the umask says"


def test_a_store_made_beforehand_is_closed() -> None:
    with public_folder() as folder:
        (folder / "store").mkdir(mode=0o755)
        Device(folder / "store", budget=10**6, mail=False).close()
        assert mode(folder / "store") == 0o700


def test_a_store_that_is_shared_with_a_group_stays_so() -> None:
    """So that the program and the carrier can be two users; all others are kept out."""
    with public_folder() as folder:
        (folder / "store").mkdir()
        (folder / "store").chmod(0o2777)
        os.umask(0o077)
        _fill_store(folder / "store")
        assert mode(folder / "store") == 0o2770
        for path in (folder / "store").rglob("*"):
            assert mode(path) == (0o2770 if path.is_dir() else 0o660), path


def test_a_folder_of_another_user_is_not_changed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder of another user")
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o755)
    os.chown(folder, NOBODY, NOBODY)
    require_private(folder)
    assert mode(folder) == 0o755


def test_the_kernel_says_whose_connection_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client, server.accept()[0]:
            assert owner_of(client.getsockname(), address) == os.geteuid()
            assert is_own_connection(client.getsockname(), address)
            mapped = (f"::ffff:{address[0]}", address[1])
            assert owner_of(client.getsockname(), mapped) == os.geteuid()
        assert owner_of(("127.0.0.1", 1), address) is None
        assert not is_own_connection(("127.0.0.1", 1), address), "a connection that nobody has"


@pytest.mark.parametrize("closed", [False, True])
def test_the_connection_of_another_user_is_told_apart(closed: bool) -> None:
    """Also after that user closed it, whereupon the kernel says that root has it."""
    script = "import socket, sys; a = socket.create_connection(('127.0.0.1', int(sys.argv[1])))"
    script += "; a.close(); input()" if closed else "; input()"
    if os.geteuid() != 0:
        pytest.skip("only root can connect as another user")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        command = [*drop, "/usr/bin/env", "python3", "-c", script, str(address[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, cwd="/") as other:
            try:
                server.settimeout(100)
                connection, client = server.accept()
                with connection:
                    if closed:
                        assert connection.recv(1) == b"", "it is closed now"
                    assert owner_of(client, address) == (None if closed else NOBODY)
                    assert not is_own_connection(client, address)
            finally:
                other.kill()
