"""Locks on folders, held by at most one process."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from ofms.core.errors import InvalidInput

_NAME = ".lock"
# Long enough to outlast an `is_locked` of another process, which holds the file for an instant.
_PATIENCE_SECONDS = 0.1


class FolderLock:
    """An exclusive lock on a folder, released by `close` or when the process ends.

    Raises `InvalidInput` where another process, or another lock of this one, holds it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / _NAME
        # Not local to a thread: `close` may be called by another one.
        self._lock = FileLock(self.path, thread_local=False)
        try:
            self._lock.acquire(timeout=_PATIENCE_SECONDS)
        except Timeout:
            remedy = "another process is writing it; wait for that, or stop it"
            raise InvalidInput("folder", folder, remedy) from None

    def close(self) -> None:
        if self._lock.is_locked:
            # While it is held: a process that opened the file before finds it without a name, and opens a new one.
            self.path.unlink(missing_ok=True)
            self._lock.release()


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock on a folder; reads only, so it also works where nothing can be written.

    Not by filelock: taking its lock creates the file, and `lock_descriptor` is exclusive, so that two processes asking
    at the same time would each take the other one for the holder. A shared lock does neither.
    """
    try:
        import fcntl

        with open(folder / _NAME, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    return False
