"""Locks on folders and files, held by at most one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ofms.core.errors import InvalidInput

LOCK = ".lock"
# Longer than another process's `is_locked`, which holds the lock for an instant.
_TIMEOUT_SECONDS = 0.1


class FolderLock:
    """An exclusive lock on a folder, released by `close` or when the process ends.

    Raises `InvalidInput` if another process, or another lock of this one, holds it. `mode` is that of its file, by
    default as the umask says.
    """

    def __init__(self, folder: Path, *, mode: int = -1) -> None:
        self.path = folder / LOCK
        # Not thread-local: another thread may call `close`.
        self._lock = FileLock(self.path, mode=mode, thread_local=False)
        try:
            self._lock.acquire(timeout=_TIMEOUT_SECONDS)
        except Timeout:
            remedy = "another process is using it; wait until it ends, or stop it"
            raise InvalidInput("folder", folder, remedy) from None

    def close(self) -> None:
        if self._lock.is_locked:
            # Removed while locked: a process that has opened the file already finds it unlinked, and opens a new one.
            self.path.unlink(missing_ok=True)
            self._lock.release()


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Within the block, no other process is in the block of the same file; waits until that is so."""
    lock_path = path.with_name(f".{path.name}{LOCK}")
    lock = FileLock(lock_path)
    lock.acquire()
    try:
        yield
    finally:
        # Removed while locked, as in `FolderLock.close`.
        lock_path.unlink(missing_ok=True)
        lock.release()


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Within the block, whether this process has claimed a file, which need not exist; False if another one has."""
    lock_path = path.with_name(f".{path.name}{LOCK}")
    lock = FileLock(lock_path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        # Removed while locked, as in `FolderLock.close`.
        lock_path.unlink(missing_ok=True)
        lock.release()


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock on a folder; reads only, so it also works on a read-only folder.

    Not by filelock: acquiring its lock creates the file and is exclusive, so that of two processes that ask at the same
    time, each would mistake the other for the holder. A shared lock avoids both.
    """
    try:
        import fcntl

        with open(folder / LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    return False


def wait_for_lock(descriptor: int) -> None:
    """Lock an open file, as soon as no other process or thread has it locked, until it is closed."""
    with contextlib.suppress(ImportError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; return False if another process or thread has it locked."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except ImportError:
        return True
    return True
