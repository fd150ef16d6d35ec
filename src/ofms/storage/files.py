"""Atomic writes of files and folders."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ofms.core.errors import InvalidInput


def require_writable(folder: Path) -> None:
    """Create a folder if it is missing; reject one that cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidInput("folder", folder, f"it cannot be written to ({error.strerror}); name another") from None


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `folder` when the block succeeds and removed when it fails."""
    require_writable(folder.parent)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput("folder", folder, "it already exists; name a new one")
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
    """Replace a file atomically: a reader sees the old content or the new one."""
    partial = path.with_name(f".{path.name}.part")
    with open(partial, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
