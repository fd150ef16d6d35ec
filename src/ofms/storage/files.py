"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ofms.core.errors import InvalidInput


def require_writable(folder: Path) -> None:
    """Make a folder, or refuse one that cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidInput("folder", folder, f"it cannot be written to ({error.strerror}); name another") from None


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name when the block ends well, and is gone when it does not."""
    require_writable(folder.parent)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput("folder", folder, "something is there already; name a new one")
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        yield partial
        if folder.exists():
            folder.rmdir()
        partial.chmod(0o755)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file at once: a reader sees the old one or the new one."""
    partial = path.with_name(f".{path.name}.part")
    with open(partial, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


class FolderLock:
    """A lock on a folder that goes with the process, or with `close`: two of them never write one folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        while True:
            self._file = open(self.path, "wb")  # noqa: SIM115
            try:
                import fcntl
            except ImportError:  # Not on this system.
                return
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._file.close()
                remedy = "another process is writing it; wait for that, or stop it"
                raise InvalidInput("folder", folder, remedy) from None
            # Who held it before may have removed the file since it was opened here: then the lock is on nothing.
            if _is_at(self._file.fileno(), self.path):
                return
            self._file.close()

    def close(self) -> None:
        if not self._file.closed:
            self.path.unlink(missing_ok=True)
            self._file.close()


def is_locked(folder: Path) -> bool:
    """Whether some process has the lock on a folder."""
    try:
        import fcntl

        with open(folder / ".lock", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    return False


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
