"""What the processes of a run agree on: that they run the same, when they stop, and what the first of them has read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import torch

from ofms.compute.group import Group
from ofms.core.errors import InvalidInput
from ofms.core.version import __version__
from ofms.runs.checkpoint import Inputs
from ofms.runs.config import RunConfig
from ofms.simulator.metrics import Line

_REMEDIES = {
    "version": "install the same version of ofms everywhere",
    "torch": "install the same version of PyTorch everywhere",
    "dictionary": "give all processes the same dictionary",
    "data": "give all processes the same data",
}


def require_same(group: Group, config: RunConfig, inputs: Inputs, *, resumed: bool) -> None:
    """Reject a process with another version, configuration, dictionary or data than the first one."""
    if group.size == 1:
        return
    own = {
        "version": __version__,
        "torch": str(torch.__version__),
        "resume": resumed,
        # Before what depends on it: other rounds are other samples.
        **{f"configuration.{key}": value for key, value in config.identity().items()},
        "dictionary": inputs.dictionary,
        "data": inputs.stream,
    }
    parts = group.gather({"own": np.frombuffer(msgspec.json.encode(own), np.uint8)})
    found: list[dict[str, Any]] = [msgspec.json.decode(part["own"].tobytes()) for part in parts]
    for rank, other in enumerate(found):
        for key in found[0] | other:
            if found[0].get(key) == other.get(key):
                continue
            if group.rank:
                raise SystemExit(2)  # The first process says so.
            remedy = _REMEDIES.get(key, "give all processes the same arguments")
            ours, theirs = (each.get(key) for each in (found[0], other))
            which = f"process {rank + 1} of {group.size}"
            raise InvalidInput(key, theirs, f"{which} differs from the first one, which has {ours}; {remedy}")


def agreed(group: Group, stop: bool, due: bool) -> tuple[bool, bool]:
    """Stop if a signal reached any process; write a checkpoint when it is due in the first one."""
    if group.size == 1:
        return stop, due
    flags = [part["flags"] for part in group.gather({"flags": np.array([stop, due])})]
    return any(bool(each[0]) for each in flags), bool(flags[0][1])


def from_first(group: Group, read: Callable[[], bytes]) -> bytes:
    """What the first process reads."""
    return group.share(read() if group.rank == 0 else b"")


def lines_of(group: Group, lines: list[Line]) -> list[Line]:
    """The lines of the first process."""
    if group.size == 1:
        return lines
    found: list[Line] = msgspec.json.decode(group.share(msgspec.json.encode(lines)))
    return found
