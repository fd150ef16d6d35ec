"""The folder that datasets live in."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class VerifiedFiles:
    """Files whose MD5 is known, by their path in the dataset's folder; none is ever read that is not whole."""

    dataset: str
    md5: Mapping[str, str]

    @property
    def folder(self) -> Path:
        return data_folder() / self.dataset

    def read(self, name: str) -> bytes:
        """A file's content, or a refusal where it is missing or not the published one."""
        content = read_file(self.folder / name, self.dataset)
        self.require(name, content)
        return content

    def require(self, name: str, content: bytes) -> None:
        """Refuse content that is not the published one."""
        found = md5_of(content)
        if found != self.md5[name]:
            reason = f"its MD5 is {found}, not the published {self.md5[name]}"
            raise InvalidInput("file", self.folder / name, f"{reason}; 'ofms data {self.dataset}' fetches it again")

    def check(self) -> None:
        """Refuse files that are missing or not the published ones."""
        for name in self.md5:
            self.read(name)
