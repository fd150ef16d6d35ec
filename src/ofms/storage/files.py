"""Files and folders that are written completely or not at all.

A process that is killed leaves at most a `.NAME.part` or a `.NAME.lock` behind, which the next writer of NAME reuses
or removes. All files of this package are written here and in `growing.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ofms.core.errors import InvalidInput
from ofms.storage.locks import LOCK, try_lock, wait_for_lock, waiting_lock

_PARTIAL = ".part"


def require_writable(folder: Path) -> None:
    """Create a folder if it is missing; reject one that cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidInput("folder", folder, f"it cannot be written to ({error.strerror}); name another") from None


def is_vacant(folder: Path) -> bool:
    """Whether a folder is missing or has nothing but what a killed process left; raises OSError."""
    try:
        return all(_is_leftover(path) for path in folder.iterdir())
    except FileNotFoundError:
        return not folder.is_symlink()


@contextmanager
def new_folder(folder: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `folder` when the block succeeds and removed when it fails.

    Other users of the machine cannot open a `private` one.
    """
    if folder.name in ("", ".."):
        raise InvalidInput("folder", folder, "it already exists; name a new one")
    with _parents_of(folder), waiting_lock(folder):
        if folder.exists() and (not folder.is_dir() or not is_vacant(folder)):
            raise InvalidInput("folder", folder, "it already exists; name a new one")
        partial = _partial_path(folder)
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(mode=0o700 if private else 0o777)
            yield partial
            if folder.exists():
                shutil.rmtree(folder)
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextmanager
def _parents_of(folder: Path) -> Iterator[None]:
    """The folders above one exist; those that were missing are removed when the block fails, if they are empty."""
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        require_writable(folder.parent)
        yield
    except BaseException:
        for parent in missing:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


@contextmanager
def adding_to(folder: Path, *, last: str, private: bool = False) -> Iterator[Path]:
    """Yield a temporary folder whose content is moved into `folder` when the block succeeds and removed when it fails.

    Nothing is replaced. The file `last` is moved last, so that a folder that has it has all of it.
    """
    if is_vacant(folder):
        with new_folder(folder, private=private) as partial:
            yield partial
        return
    with new_folder(folder / ".new", private=private) as partial:
        yield partial
        taken = [path.name for path in partial.iterdir() if (folder / path.name).exists()]
        if taken:
            raise InvalidInput("folder", folder, f"it already has {taken[0]}; name a new folder")
    for path in sorted((folder / ".new").iterdir(), key=lambda path: path.name == last):
        path.rename(folder / path.name)
    (folder / ".new").rmdir()


def write_whole(path: Path, content: bytes | memoryview, *, mode: int = 0o666) -> None:
    """Replace a file atomically: a reader sees the old content or the new one."""
    with replacing(path, mode=mode) as descriptor:
        write_all(descriptor, content)


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[int]:
    """Yield the descriptor of a file that replaces `path` when the block succeeds and is removed when it fails.

    Links are followed; a folder, a device or a pipe is rejected. Of two writers, the second waits for the first.
    """
    target, mode = _target(path, mode)
    partial = _partial_path(target)
    descriptor = None
    try:
        descriptor = _open_locked(partial, mode)
        yield descriptor
        os.fsync(descriptor)
        os.replace(partial, target)
    except BaseException as error:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.unlink(partial)
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)
        raise
    finally:
        if descriptor is not None:
            os.close(descriptor)


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Write all of the content; `os.write` may write a part of it."""
    left = memoryview(content).cast("B")
    while len(left):
        left = left[os.write(descriptor, left) :]


def mark_time(path: Path) -> None:
    """Let the time of a file's last change be now; the file is empty, and its owner's alone."""
    path.touch(mode=0o600)


def remove_leftovers(folder: Path) -> None:
    """Remove the partial files of killed processes from a folder; those that a process is writing stay."""
    for path in folder.glob(f".*{_PARTIAL}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR)
            try:
                if try_lock(descriptor):
                    path.unlink()
            finally:
                os.close(descriptor)


def sync(path: Path) -> None:
    """Write what the system still holds of a file to its disk."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _partial_path(path: Path) -> Path:
    return path.with_name(f".{path.name}{_PARTIAL}")


def _is_leftover(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith((_PARTIAL, LOCK))


def _target(path: Path, mode: int) -> tuple[Path, int]:
    """The file behind a path and the mode to write it with: its own, or the given one for a new file."""
    target = path.resolve() if path.is_symlink() else path
    try:
        found = target.stat().st_mode
    except OSError:
        return target, mode
    if stat.S_ISDIR(found):
        raise InvalidInput("file", path, "it is a folder; name a file")
    if not stat.S_ISREG(found):
        raise InvalidInput("file", path, "it is not a regular file; name another")
    return target, mode if mode != 0o666 else stat.S_IMODE(found)


def _open_locked(partial: Path, mode: int) -> int:
    """Open an empty partial file that no other process or thread writes."""
    while True:
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            wait_for_lock(descriptor)
            # The writer before may have renamed or removed it meanwhile.
            if _is_same_file(descriptor, partial):
                os.ftruncate(descriptor, 0)
                if mode != 0o666:
                    os.fchmod(descriptor, mode)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
