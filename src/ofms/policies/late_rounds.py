"""The recent exchanges of late hedging: their weights and draws, and what is known of their losses.

There are two hedges: over models, and over the two ways to predict where not all models fit, `ways`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ofms.core.layers import Layers
from ofms.core.typing import AnyArray, Flags, Floats, Integers
from ofms.policies.late_adahedge import OpenRounds, Weights
from ofms.policies.observations import Recent
from ofms.policies.pool_memory import Held
from ofms.policies.relative_losses import Draw, relative_losses

# Pairs of client and round that are worked on at once.
_AT_ONCE = 16000
_OUTPUTS_AT_ONCE = 40000
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Rounds:
    """R exchanges, oldest first. What was decided in each does not change any more: its layers are shared.

    Attributes
    ----------
    members, mixture, rates, mixture_rate
        [N, R, ...] as in `Weights`.
    certain, filling, outside
        [N, R, K], [N, R, K], [N, R] the draw, as in `Held`.
    ways, ways_rate
        [N, R, 2], [N, R] the weights of drawing and of omitting models that do not fit, and their rate.
    losses, final
        [N, R, K], [N, R] as in `OpenRounds`.
    ways_losses
        [N, R, 2] the relative losses of the two ways.
    samples
        [N, R] the number of labelled samples in the losses.
    number
        [1, R] the exchanges' numbers.
    """

    members: Layers
    mixture: Layers
    rates: Layers
    mixture_rate: Layers
    certain: Layers
    filling: Layers
    outside: Layers
    ways: Layers
    ways_rate: Layers
    losses: Floats
    ways_losses: Floats
    final: Flags
    samples: Integers
    number: Integers

    @classmethod
    def none(cls, clients: int, models: int, members: int) -> Rounds:
        """No exchanges."""

        def nothing(*shape: int, dtype: type = np.float64) -> AnyArray:
            return np.zeros((clients, 0, *shape), dtype=dtype)

        def layers(*shape: int, dtype: type = np.float64) -> Layers:
            return Layers.of(nothing(*shape, dtype=dtype))

        return cls(
            members=layers(members, models, dtype=np.float32),
            mixture=layers(members),
            rates=layers(members),
            mixture_rate=layers(),
            certain=layers(models, dtype=np.bool_),
            filling=layers(models, dtype=np.bool_),
            outside=layers(),
            ways=layers(2),
            ways_rate=layers(),
            losses=nothing(models),
            ways_losses=nothing(2),
            final=nothing(dtype=np.bool_),
            samples=nothing(dtype=np.int64),
            number=np.zeros((1, 0), dtype=np.int64),
        )

    def __len__(self) -> int:
        return int(self.number.shape[1])

    @property
    def open(self) -> OpenRounds:
        """The rounds as arrays."""
        members, mixture, rates, rate = (
            layers.whole for layers in (self.members, self.mixture, self.rates, self.mixture_rate)
        )
        return OpenRounds(members, mixture, rates, rate, self.losses, self.final)

    @property
    def open_ways(self) -> OpenRounds:
        """The rounds as those of a hedge over the two ways to predict, with one member."""
        ways, rate = self.ways.whole[:, :, None], self.ways_rate.whole
        alone = np.ones((*rate.shape, 1))
        return OpenRounds(ways, alone, rate[..., None], rate, self.ways_losses, self.final)

    @property
    def block(self) -> int:
        """Of how many clients the rounds fit the cache."""
        return max(2000, _AT_ONCE // (1 + len(self)))

    def mark(self, final: Flags) -> Rounds:
        """Mark rounds as final."""
        return replace(self, final=final)

    def without_final(self) -> Rounds:
        """Drop the oldest rounds as far as they are final for all clients."""
        count = int(np.logical_and.accumulate(self.final.all(axis=0)).sum())
        return self._only(slice(count, None)) if count else self

    def add(self, weights: Weights, ways: Weights, drawn: Held, number: int) -> Rounds:
        """Append an exchange; drop those that a server which went back to it has forgotten."""
        earlier = int((self.number[0] < number).sum())
        if earlier < len(self):
            return self._only(slice(earlier)).add(weights, ways, drawn, number)
        clients = drawn.outside.size
        return Rounds(
            self.members.append(weights.members.astype(np.float32)),
            self.mixture.append(weights.mixture),
            self.rates.append(weights.rates),
            self.mixture_rate.append(weights.mixture_rate),
            self.certain.append(drawn.certain),
            self.filling.append(drawn.filling),
            self.outside.append(drawn.outside),
            self.ways.append(ways.members[:, 0]),
            self.ways_rate.append(ways.rates[:, 0]),
            self.losses,
            self.ways_losses,
            np.concatenate([self.final, np.zeros((clients, 1), dtype=np.bool_)], axis=1),
            np.concatenate([self.samples, np.zeros((clients, 1), dtype=np.int64)], axis=1),
            np.concatenate([self.number, np.full((self.number.shape[0], 1), number)], axis=1),
        )

    def granted(self, number: int) -> Rounds:
        """The last exchange is the one that is granted, which may be a later one than was requested."""
        if self.number[0, -1] == number:
            return self
        return replace(self, number=np.concatenate([self.number[:, :-1], [[number]]], axis=1))

    def with_models(self, kept: Integers) -> Rounds:
        """The exchanges with a changed dictionary: [K'] the place of each model before, -1 for a new one.

        In them, new models had no weight and retired ones are left out.
        """
        (clients, _, models), new, place = self.losses.shape, kept < 0, np.maximum(kept, 0)
        layers = (self.members, self.mixture, self.certain, self.outside)
        changed = []
        for weights, mixture, certain, outside in zip(*(each.parts for each in layers), strict=True):
            own, sure = np.where(new, np.float32(0), weights[..., place]), ~new & certain[..., place]
            if np.count_nonzero(~new) < models:
                # Running sums: the order of additions does not depend on the layout in memory.
                total = np.cumsum(own, axis=-1, dtype=np.float64)[..., -1:]
                own = np.where(total > 0, own / np.where(total > 0, total, 1.0), ~new / np.count_nonzero(~new))
                pooled = np.cumsum(mixture[..., None] * own, axis=1)[:, -1]
                outside = np.maximum(0.0, 1 - np.cumsum(pooled * sure, axis=1)[:, -1])
            # Clients last in memory, as everywhere: bits depend on the order of additions.
            own = np.ascontiguousarray(own.transpose(1, 2, 0), dtype=np.float32).transpose(2, 0, 1)
            changed.append((own, np.asfortranarray(sure), np.where(outside < _ROUNDING, 0.0, outside)))
        empty = Rounds.none(clients, kept.size, self.members.none.shape[2])
        filling = [np.asfortranarray(~new & part[..., place]) for part in self.filling.parts]
        members, certain_parts, outside_parts = zip(*changed, strict=True) if changed else ((),) * 3
        return replace(
            self,
            members=Layers(members, empty.members.none),
            certain=Layers(certain_parts, empty.certain.none),
            outside=Layers(outside_parts, empty.outside.none),
            filling=Layers(tuple(filling), empty.filling.none),
            losses=np.asfortranarray(np.where(new, np.nan, self.losses[..., place])),
        )

    def observe(self, recent: Recent, *, late: bool, plain: bool) -> Rounds:
        """Compute the relative losses of the exchanges for which outputs or samples are new."""
        (clients, learnt, models), rounds = self.losses.shape, len(self)
        # Clients come last, here and below: NumPy is fastest along the last axis.
        losses, ways = np.full((models, rounds, clients), np.nan), np.full((2, rounds, clients), np.nan)
        losses[:, :learnt], ways[:, :learnt] = self.losses.T, self.ways_losses.T
        before = np.ascontiguousarray(self.samples.T).reshape(-1)
        place, ours = self._places(recent.exchange)
        counts = np.bincount(place[ours], minlength=before.size)
        # Fewer samples than before were dropped from memory: what was learnt from them stays.
        changed = counts > before
        targets = np.ascontiguousarray(recent.targets.T).reshape(-1)
        outputs = np.ascontiguousarray(recent.outputs.T).reshape(*recent.outputs.shape[:1:-1], place.size)
        more = ~np.isnan(outputs[:1]).all(axis=0) & np.isnan(losses).reshape(models, -1)[:, _range(place)]
        changed[place[ours & more.any(axis=0)]] = True
        changed &= ~np.ascontiguousarray(self.final.T).reshape(-1)
        if not late:
            changed.reshape(rounds, clients)[:-1] = False
        losses, ways = np.where(changed, 0.0, losses.reshape(models, -1)), np.where(changed, 0.0, ways.reshape(2, -1))
        chosen = np.flatnonzero(ours & changed.take(place))
        draws = self._draws() if chosen.size else ()
        for some in _one_of_each(place.take(chosen), max(1, _OUTPUTS_AT_ONCE // max(1, recent.width))):
            samples, at = _range(chosen[some]), _range(place.take(chosen[some]))
            draw = Draw(*(_columns(part, at).T for part in draws))
            given = (_columns(outputs, samples).T, targets[samples])
            found = relative_losses(*given, draw, plain=plain)
            losses[:, at] = _columns(losses, at) + found.models.T
            ways[:, at] = _columns(ways, at) + found.ways.T
        samples = np.where(changed, counts, before).reshape(rounds, clients)
        losses, ways = (part.reshape(len(part), rounds, clients).T for part in (losses, ways))
        return replace(self, losses=losses, ways_losses=ways, samples=samples.T)

    def _places(self, exchange: Integers) -> tuple[Integers, Flags]:
        """Which of the R · N rounds the S · N samples belong to, and whether they belong to any."""
        exchange = np.ascontiguousarray(exchange.T)
        column = np.minimum(np.searchsorted(self.number[0], exchange), len(self) - 1)
        ours: Flags = self.number[0].take(column) == exchange
        return (column * exchange.shape[1] + np.arange(exchange.shape[1])).reshape(-1), ours.reshape(-1)

    def _draws(self) -> tuple[AnyArray, ...]:
        """[K, R · N] or [R · N]: the parts of the rounds' `Draw`."""
        clients, _, _, models = self.members.none.shape
        weights = np.empty((models, len(self), clients))
        for pooled, own, mixture in zip(weights.swapaxes(0, 1), self.members.parts, self.mixture.parts, strict=True):
            np.einsum("jn,jkn->kn", mixture.T, own.transpose(1, 2, 0).astype(np.float64), out=pooled)
        certain, filling = (
            np.stack([part.T for part in flags.parts], axis=1) for flags in (self.certain, self.filling)
        )
        flat = (weights, certain, self.outside.stacked(np.float64), filling)
        return tuple(part.reshape(*part.shape[:-2], -1) for part in flat)

    def _only(self, places: slice) -> Rounds:
        """Some of the exchanges."""
        parts = {each.name: getattr(self, each.name) for each in fields(self)}
        changes: Any = {
            name: part.only(places) if isinstance(part, Layers) else part[:, places] for name, part in parts.items()
        }
        return replace(self, **changes)


def _range(places: Integers) -> slice | Integers:
    """Successive places as a slice: then NumPy copies nothing."""
    if places.size == 0 or places[-1] - places[0] + 1 != places.size or (places[1:] <= places[:-1]).any():
        return places
    return slice(int(places[0]), int(places[-1]) + 1)


def _columns(array: AnyArray, places: slice | Integers) -> AnyArray:
    """Along the last axis; for places in any order faster than an index."""
    return array[..., places] if isinstance(places, slice) else array.take(places, axis=-1)


def _one_of_each(keys: Integers, most: int) -> Iterator[Integers]:
    """Parts of at most so many places, in each of which all keys differ; equal keys stay in their order."""
    earlier = np.zeros(keys.size, dtype=np.int64)
    if (keys[1:] <= keys[:-1]).any():
        order = np.argsort(keys, kind="stable")
        earlier[order] = np.arange(keys.size) - np.searchsorted(keys[order], keys[order])
    for count in range(int(earlier.max(initial=-1)) + 1):
        places = np.flatnonzero(earlier == count)
        for first in range(0, places.size, most):
            yield places[first : first + most]
