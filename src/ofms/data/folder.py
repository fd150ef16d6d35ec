"""The folder that datasets live in."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ofms.core.errors import InvalidInput


def cache_folder() -> Path:
    """Where what can be fetched or made again is kept: $XDG_CACHE_HOME/ofms, else ~/.cache/ofms."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ofms"


def data_folder() -> Path:
    """$OFMS_DATA, else `data` in the cache."""
    return Path(os.environ.get("OFMS_DATA") or cache_folder() / "data").expanduser()


def require_checksum(path: Path, md5: str) -> None:
    """Refuse a file that is missing or not the published one."""
    try:
        found = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    except OSError as error:
        raise InvalidInput("file", path, f"{error.strerror}; fetch it again") from None
    if found != md5:
        raise InvalidInput("file", path, f"its MD5 is {found}, not {md5}; fetch it again")
