"""Versions of models that events of a simulated run go back to: kept from the exchange on that they name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from ofms.compute.protocol import Tensors
from ofms.core.events import Event
from ofms.core.typing import AnyArray
from ofms.runs.setup import Setup
from ofms.simulator.phases import Phases


class EarlierVersions:
    """The versions before some exchanges that later events need; `first` are the first ones of all models."""

    def __init__(self, phases: Phases | None, first: Sequence[Tensors]) -> None:
        self._first = first
        self._wanted = {
            (to, setup.catalogue.names.index(name))
            for event, setup in ([] if phases is None else phases.later)
            for name, to in event.rollback.items()
        }
        self._kept: dict[tuple[int, int], Tensors] = {}

    def keep(self, exchange: int, state: Callable[[int], Tensors]) -> None:
        """Keep what is needed of the models before an exchange."""
        for each in self._wanted:
            if each[0] == exchange > 0:
                self._kept[each] = state(each[1])

    def of(self, event: Event, setup: Setup) -> Iterator[tuple[int, Tensors]]:
        """The models that go back in an event, and the parameters that they go back to."""
        for name, to in event.rollback.items():
            model = setup.catalogue.names.index(name)
            yield model, self._kept[to, model] if to else self._first[model]

    def to_arrays(self, prefix: str) -> dict[str, AnyArray]:
        """All state, as arrays."""
        return {
            f"{prefix}{to}.{model}.{name}": tensor.numpy()
            for (to, model), tensors in self._kept.items()
            for name, tensor in tensors.items()
        }

    def load_arrays(self, arrays: Mapping[str, AnyArray], prefix: str) -> None:
        """The inverse of `to_arrays`."""
        self._kept = {}
        for key, array in arrays.items():
            if key.startswith(prefix):
                to, model, name = key.removeprefix(prefix).split(".", 2)
                self._kept.setdefault((int(to), int(model)), {})[name] = torch.from_numpy(array.copy())
