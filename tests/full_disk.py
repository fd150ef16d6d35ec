"""A disk that becomes full at a chosen write.

All files of the package are written through `os`: `test_writes_have_one_place` checks that.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Disk:
    """Counts writes; from number `room` on, they fail with an error, and the first of them after half of its content.

    Truncating and removing files works on a full disk, as it does on real ones.
    """

    def __init__(self, room: int | None, error: int = errno.ENOSPC) -> None:
        self.room, self.error, self.writes = room, error, 0
        self._write, self._open, self._mkdir, self._fsync = os.write, os.open, os.mkdir, os.fsync

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(os, "write", self.write)
        patch.setattr(os, "open", self._counted(self._open, self._creates))
        patch.setattr(os, "mkdir", self._counted(self._mkdir))
        patch.setattr(os, "fsync", self._counted(self._fsync))

    def write(self, descriptor: int, content: Any) -> int:
        if self._is_full():
            if self.writes == (self.room or 0) + 1:
                self._write(descriptor, memoryview(content)[: len(content) // 2])
            raise self._failure()
        return self._write(descriptor, content)

    def _is_full(self) -> bool:
        self.writes += 1
        return self.room is not None and self.writes > self.room

    def _failure(self, *path: object) -> OSError:
        return OSError(self.error, os.strerror(self.error), *map(str, path[:1]))

    def _counted(
        self, call: Callable[..., Any], counts: Callable[..., bool] = lambda *rest, **more: True
    ) -> Callable[..., Any]:
        def counted(*rest: Any, **more: Any) -> Any:
            if counts(*rest, **more) and self._is_full():
                raise self._failure(*rest)
            return call(*rest, **more)

        return counted

    @staticmethod
    def _creates(path: object, flags: int, *rest: Any, **more: Any) -> bool:
        return bool(flags & os.O_CREAT) and str(path) != os.devnull and not os.path.exists(str(path))


@contextmanager
def full_after(room: int | None, error: int = errno.ENOSPC) -> Iterator[Disk]:
    """Within the block, the disk is full after some writes; with None it only counts them."""
    disk = Disk(room, error)
    with pytest.MonkeyPatch.context() as patch:
        disk.install(patch)
        yield disk
