"""A command as one of several processes that share its run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ofms.runs.interrupt import RunInterrupted

if TYPE_CHECKING:
    from ofms.compute.group import Group


@contextmanager
def shared_group() -> Iterator[Group]:
    """The processes of this command: those of `torchrun` or `--processes`, or this one alone."""
    from ofms.compute.process_group import join_group, leave_group

    group = join_group()
    try:
        yield group
    except RunInterrupted as interruption:
        leave_group()
        if group.rank:
            raise SystemExit(128 + interruption.number) from None  # The first process says so.
        raise
    leave_group()
