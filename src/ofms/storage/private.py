"""Folders and files that other users of the machine cannot open, whatever the umask is.

A folder is created with mode 0700, and an existing one is closed to others. One that its group may write was meant to
be shared with that group: it stays so, and so do the files in it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ofms.storage.files import require_writable

_OWNER, _GROUP = 0o700, 0o070


def require_private(folder: Path, *, within: Path | None = None) -> None:
    """Create a private folder if it is missing, close it to other users, and reject one that cannot be written to.

    `within` is a private folder: if that is shared with its group, so is this one.
    """
    mode = _OWNER | (_GROUP | stat.S_ISGID if within is not None and is_shared(within) else 0)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mkdir(folder, _OWNER)
        os.chmod(folder, mode)
    except FileExistsError:
        _close(folder)
    except OSError:
        pass  # Said below, in one line.
    require_writable(folder)


def is_shared(folder: Path) -> bool:
    """Whether a folder's group may write to it."""
    return bool(folder.stat().st_mode & stat.S_IWGRP)


def private_mode(folder: Path) -> int:
    """The mode of files in a private folder."""
    return 0o660 if is_shared(folder) else 0o600


def _close(folder: Path) -> None:
    """Take others' access to a folder of this user's away."""
    found = folder.stat()
    kept = stat.S_IMODE(found.st_mode) & ~stat.S_IRWXO
    if not kept & stat.S_IWGRP:
        kept &= ~stat.S_IRWXG
    if found.st_uid == os.geteuid() and kept != stat.S_IMODE(found.st_mode):
        folder.chmod(kept)
