"""Where datasets are stored, and files that are verified before they are used."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from ofms.core.errors import InvalidInput


def cache_folder() -> Path:
    """The user's cache for files that can be downloaded or computed again.

    On Linux `$XDG_CACHE_HOME/ofms`, or `~/.cache/ofms` if that is unset.
    """
    return platformdirs.user_cache_path("ofms", appauthor=False)


def data_folder() -> Path:
    """$OFMS_DATA, or `data` in the cache."""
    return Path(os.environ.get("OFMS_DATA") or cache_folder() / "data").expanduser()


def md5_of(content: bytes) -> str:
    """MD5 as hexadecimal digits, the checksum that dataset hosts publish."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def read_file(path: Path, dataset: str) -> bytes:
    """Read a dataset's file; the error says how to download it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput("file", path, f"{error.strerror}; download it with 'ofms data {dataset}'") from None


@dataclass(frozen=True)
class VerifiedFiles:
    """Files with a known MD5, by path in the dataset's folder; `read` returns only verified content."""

    dataset: str
    md5: Mapping[str, str]

    @property
    def folder(self) -> Path:
        return data_folder() / self.dataset

    def read(self, name: str) -> bytes:
        """A file's content; rejects a file that is missing or differs from the published one."""
        content = read_file(self.folder / name, self.dataset)
        self.require(name, content)
        return content

    def require(self, name: str, content: bytes) -> None:
        """Reject content that differs from the published file."""
        found = md5_of(content)
        if found != self.md5[name]:
            reason = f"its MD5 is {found}, not the published {self.md5[name]}"
            raise InvalidInput("file", self.folder / name, f"{reason}; 'ofms data {self.dataset}' downloads it again")

    def check(self) -> None:
        """Reject files that are missing or differ from the published ones."""
        for name in self.md5:
            self.read(name)
