"""The recent exchanges of late hedging: their weights and draws, and what is known of their losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from ofms.core.typing import AnyArray, Flags, Floats, Integers
from ofms.policies.late_adahedge import OpenRounds, Weights
from ofms.policies.observations import Recent
from ofms.policies.pool_memory import Held
from ofms.policies.relative_losses import Draw, relative_losses

T = TypeVar("T")

# Pairs of client and round that are worked on at once.
_AT_ONCE = 4096
_OUTPUTS_AT_ONCE = 80_000


@dataclass(frozen=True, eq=False)
class Rounds:
    """R exchanges, oldest first.

    Attributes
    ----------
    certain, outside, thinning
        [N, R, K], [N, R], [N, R] the draw, as in `Held`.
    samples
        [N, R] the number of labelled samples in the losses.
    number
        [1, R] the exchanges' numbers.
    """

    open: OpenRounds
    certain: Flags
    outside: Floats
    thinning: Floats
    samples: Integers
    number: Integers

    @classmethod
    def none(cls, clients: int, models: int, members: int) -> Rounds:
        """No exchanges."""
        shape = (clients, 0)
        none = np.zeros(shape)
        members_weights = np.zeros((*shape, members, models), dtype=np.float32)
        rates = np.zeros((*shape, members))
        losses, flags = np.zeros((*shape, models)), np.zeros(shape, dtype=np.bool_)
        return cls(
            OpenRounds(members_weights, rates, rates, none, losses, flags),
            np.zeros((*shape, models), dtype=np.bool_),
            none,
            none,
            np.zeros(shape, dtype=np.int64),
            np.zeros((1, 0), dtype=np.int64),
        )

    def __len__(self) -> int:
        return int(self.number.shape[1])

    @property
    def block(self) -> int:
        """Of how many clients the rounds fit the cache."""
        return max(256, _AT_ONCE // (1 + len(self)))

    def mark(self, final: Flags) -> Rounds:
        """Mark rounds as final."""
        return replace(self, open=replace(self.open, final=final))

    def without_final(self) -> Rounds:
        """Drop the oldest rounds as far as they are final for all clients."""
        count = int(np.logical_and.accumulate(self.open.final.all(axis=0)).sum())
        return self._only(slice(count, None)) if count else self

    def add(self, weights: Weights, drawn: Held, number: int) -> Rounds:
        """Append an exchange; drop those that a server which went back to it has forgotten."""
        earlier = self.number[0] < number
        if not earlier.all():
            return self._only(earlier).add(weights, drawn, number)
        clients, _, models = weights.members.shape
        unknown = np.full((clients, models), np.nan)
        new = OpenRounds(
            weights.members.astype(np.float32),
            weights.mixture,
            weights.rates,
            weights.mixture_rate,
            unknown,
            np.zeros(clients, dtype=np.bool_),
        )
        names = [each.name for each in fields(new)]
        opened = OpenRounds(*(_appended(getattr(self.open, name), getattr(new, name)) for name in names))
        return Rounds(
            opened,
            _appended(self.certain, drawn.certain),
            _appended(self.outside, drawn.outside),
            _appended(self.thinning, drawn.thinning),
            _appended(self.samples, np.zeros(clients, dtype=np.int64)),
            _appended(self.number, np.full(self.number.shape[0], number)),
        )

    def observe(self, recent: Recent, *, late: bool = True, plain: bool = False) -> Rounds:
        """Compute the relative losses of the exchanges for which outputs or samples are new."""
        column = np.searchsorted(self.number[0], recent.exchange)
        column = np.minimum(column, len(self) - 1)
        ours = self.number[0][column] == recent.exchange
        rows = np.broadcast_to(np.arange(ours.shape[0])[:, None], ours.shape)
        samples = np.zeros(self.samples.shape, dtype=np.int64)
        np.add.at(samples, (rows[ours], column[ours]), 1)
        # Fewer samples than before were dropped from memory: what was learnt from them stays.
        changed = samples > self.samples
        more = recent.known & np.isnan(self.open.losses)[rows, column]
        np.logical_or.at(changed, (rows[ours], column[ours]), more.any(axis=-1)[ours])
        changed &= ~self.open.final
        if not late:
            changed[:, :-1] = False
        clients, places = np.nonzero(ours & changed[rows, column])
        losses = np.where(changed[..., None], np.where(samples[..., None] > 0, 0.0, np.nan), self.open.losses)
        most = max(1, _OUTPUTS_AT_ONCE // recent.outputs[0, 0].size) if clients.size else 1
        for first in range(0, clients.size, most):
            some = (clients[first : first + most], places[first : first + most])
            at = (some[0], column[some])
            draw = Draw(self._weights(at), self.certain[at], self.outside[at], self.thinning[at])
            np.add.at(losses, at, relative_losses(recent.outputs[some], recent.targets[some], draw, plain=plain))
        return replace(self, open=replace(self.open, losses=losses), samples=np.where(changed, samples, self.samples))

    def _only(self, places: slice | Flags) -> Rounds:
        """Some of the exchanges."""
        opened = _each(self.open, lambda array: array[:, places])
        return _each(replace(self, open=opened), lambda array: array[:, places])

    def _weights(self, at: tuple[Integers, Integers]) -> Floats:
        """[M, K] the pooled weights of M pairs of client and round."""
        weights: Floats = np.einsum("mj,mjk->mk", self.open.mixture[at], self.open.members[at].astype(np.float64))
        return weights


def _appended(before: AnyArray, new: AnyArray) -> AnyArray:
    return np.concatenate([before, new[:, None]], axis=1)


def _each(record: T, change: Callable[[AnyArray], AnyArray]) -> T:
    """The record with all of its arrays changed."""
    arrays = {each.name: getattr(record, each.name) for each in fields(record)}  # type: ignore[arg-type]
    changed = {name: change(array) for name, array in arrays.items() if isinstance(array, np.ndarray)}
    made: T = replace(record, **changed)  # type: ignore[type-var]
    return made
