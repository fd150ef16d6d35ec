"""The folder that datasets live in."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from ofms.core.errors import InvalidInput


def cache_folder() -> Path:
    """Where what can be fetched or made again is kept: $XDG_CACHE_HOME/ofms, else ~/.cache/ofms."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ofms"


def data_folder() -> Path:
    """$OFMS_DATA, else `data` in the cache."""
    return Path(os.environ.get("OFMS_DATA") or cache_folder() / "data").expanduser()


def md5_of(content: bytes) -> str:
    """The MD5 under which datasets publish their files."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def read_file(path: Path, dataset: str) -> bytes:
    """A dataset's file, or one line that says how to get it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput("file", path, f"{error.strerror}; fetch it with 'ofms data {dataset}'") from None


def require_file(path: Path, md5: str | None, content: bytes) -> None:
    """Refuse content that is not the published one."""
    found = md5_of(content)
    if md5 is not None and found != md5:
        raise InvalidInput("file", path, f"its MD5 is {found}, not the published {md5}; remove it and fetch it again")


def require_files(folder: Path, files: Mapping[str, str | None], dataset: str) -> None:
    """Refuse files that are missing or not the published ones."""
    for name, md5 in files.items():
        require_file(folder / name, md5, read_file(folder / name, dataset))
