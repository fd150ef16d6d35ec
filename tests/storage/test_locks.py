"""Locks on folders, between processes and within one."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ofms.core.errors import InvalidInput
from ofms.storage.locks import FolderLock, is_locked

HOLD = """
import sys
from pathlib import Path
from ofms.storage.locks import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_one_lock_at_a_time(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    assert is_locked(tmp_path)
    with pytest.raises(InvalidInput, match="another process is using it") as refusal:
        FolderLock(tmp_path)
    assert len(str(refusal.value).splitlines()) == 1
    assert is_locked(tmp_path), "the refused lock leaves the first one"
    lock.close()
    lock.close()
    assert not is_locked(tmp_path)
    assert list(tmp_path.iterdir()) == []
    FolderLock(tmp_path).close()


def test_another_thread_may_release_it(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    thread = threading.Thread(target=lock.close)
    thread.start()
    thread.join()
    assert not is_locked(tmp_path)


def test_a_killed_process_releases_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert is_locked(tmp_path)
        with pytest.raises(InvalidInput, match="another process is using it"):
            FolderLock(tmp_path)
        holder.kill()
    assert not is_locked(tmp_path)
    FolderLock(tmp_path).close()


def test_a_lock_on_a_removed_file_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last holder removes the file after another process opened it and before that one locked it."""
    first, flock = FolderLock(tmp_path), fcntl.flock

    def released_meanwhile(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        first.close()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", released_meanwhile)
    second = FolderLock(tmp_path)
    assert is_locked(tmp_path)
    with pytest.raises(InvalidInput, match="another process"):
        FolderLock(tmp_path)
    second.close()


@pytest.mark.parametrize("left", [True, False])
def test_reading_the_state_of_a_lock_writes_nothing(tmp_path: Path, left: bool) -> None:
    """Also with the lock file of a killed process, and in a folder that is not writable."""
    path = tmp_path / ".lock"
    if left:
        path.write_bytes(b"left")
        path.chmod(0o444)
        os.utime(path, (1, 1))
    os.utime(tmp_path, (2, 2))
    tmp_path.chmod(0o555)
    try:
        assert not is_locked(tmp_path)
        assert tmp_path.stat().st_mtime == 2
        if left:
            assert (path.read_bytes(), path.stat().st_mtime) == (b"left", 1)
    finally:
        tmp_path.chmod(0o755)
    assert not is_locked(tmp_path / "absent")
