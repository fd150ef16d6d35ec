"""The exchanges of a few clients, one by one, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ofms.compute.group import ALONE, Group
from ofms.core.typing import AnyArray

# For each client that is recorded: a thousand exchanges with twenty models fit.
_BYTES_OF_A_CLIENT = 2**19
# In the order in which they are kept, so that the file of a resumed run has the same bytes.
_BY_ROUND = ("score", "regret")
_NAMES = (*_BY_ROUND, "round", "probability", "held", "prediction_weights")


class History:
    """Arrays of every exchange; of every second, fourth, … one where more would exceed the memory for them.

    Which exchanges are kept depends on their number alone, so that a resumed run keeps the same ones. With a `group` of
    processes, each keeps those of its own clients, from number `first` on; what is read or stored is of all.
    """

    def __init__(self, clients: int, group: Group = ALONE, first: int = 0) -> None:
        self.clients, self.step = clients, 1
        self._group, self._rows = group, slice(first, first + clients)
        self._kept: dict[str, list[AnyArray]] = {}

    def add(self, index: int, exchange: Mapping[str, AnyArray]) -> None:
        """Keep the arrays of an exchange: [n, N] by round, a number, or [N, K] by client."""
        if not self.clients or index % self.step:
            return
        for name, values in exchange.items():
            some = values[:, : self.clients] if name in _BY_ROUND else values[: self.clients] if values.ndim else values
            self._kept.setdefault(name, []).append(some.copy())
        while self._size() > _BYTES_OF_A_CLIENT and len(self._kept["round"]) > 1:
            self.step *= 2
            self._kept = {name: values[::2] for name, values in self._kept.items()}

    def arrays(self) -> dict[str, AnyArray]:
        """The first clients' history.

        [T', H] `score`, `regret` in the rounds of the U exchanges that are kept; per exchange [U, H, K] `probability`,
        `held` and `prediction_weights`, and its first [U] `round`.
        """
        join = {name: np.concatenate if name in _BY_ROUND else np.stack for name in self._kept}
        own = {name: join[name](values) for name, values in self._kept.items()}
        if self._group.size == 1:
            return own
        parts = self._group.gather(own)
        # The first process has some of the clients, if any are recorded.
        return {
            name: array if array.ndim == 1 else np.concatenate([part[name] for part in parts if name in part], axis=1)
            for name, array in parts[0].items()
        }

    def flatten(self) -> tuple[dict[str, AnyArray], dict[str, Any]]:
        """What is kept, as arrays and values."""
        rows = {"rows": np.array([len(values) for values in self._kept["score"]])} if self._kept else {}
        return {f"kept.{name}": array for name, array in (self.arrays() | rows).items()}, {"history_step": self.step}

    def unflatten(self, arrays: Mapping[str, AnyArray], values: Mapping[str, Any]) -> None:
        """Continue from flattened arrays and values."""
        self.step, self._kept = int(values.get("history_step", 1)), {}
        for name in _NAMES if self.clients else ():
            if f"kept.{name}" in arrays:
                kept = arrays[f"kept.{name}"]
                kept = kept if kept.ndim == 1 else kept[:, self._rows]
                self._kept[name] = np.split(kept, _ends(arrays)) if name in _BY_ROUND else list(kept)

    def _size(self) -> float:
        """Bytes of a client, the same in all processes."""
        # The last exchange of a run may have fewer rounds than the others.
        sizes = [values[0].nbytes * len(values) for values in self._kept.values() if values[0].ndim]
        return sum(sizes) / self.clients


def _ends(arrays: Mapping[str, AnyArray]) -> AnyArray:
    """Where the rounds of an exchange end, except for the last; older checkpoints have all exchanges, and no `rows`."""
    if "kept.rows" in arrays:
        return np.cumsum(arrays["kept.rows"])[:-1]
    return arrays["kept.round"][1:]
