"""What a client observes in an exchange: losses, and for policies that ask for it, outputs on its last samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.pooling import Pool, pool_loss, poolable
from ofms.core.selection_loss import MOST_LOSS
from ofms.core.typing import AnyArray, Flags, Floats, Integers
from ofms.policies.blocks import for_each_block

# Clients that are worked on at once.
_AT_ONCE = 1000


@dataclass(frozen=True, eq=False)
class Recent:
    """The last R labelled samples of clients, oldest first.

    Attributes
    ----------
    outputs
        [N, R, K, C] values or log-probabilities; NaN for models that were not evaluated on the sample yet.
    targets
        [N, R] values or classes.
    exchange
        [N, R] the exchange in which the sample was predicted.
    """

    outputs: AnyArray
    targets: Floats
    exchange: Integers

    @classmethod
    def none(cls, clients: int, models: int) -> Recent:
        """No samples."""
        nothing = np.zeros((clients, 0, models, 0), dtype=np.float32)
        return cls(nothing, np.zeros((clients, 0)), np.zeros((clients, 0), dtype=np.int64))

    def of(self, clients: slice | Integers) -> Recent:
        """The samples of some clients."""
        return Recent(self.outputs[clients], self.targets[clients], self.exchange[clients])

    @property
    def known(self) -> Flags:
        """[N, R, K] whether a model was evaluated on a sample."""
        if self.outputs.shape[-1] == 0:
            return np.zeros(self.outputs.shape[:-1], dtype=np.bool_)
        return ~np.isnan(self.outputs[..., 0])

    @property
    def width(self) -> int:
        """K · C, the numbers of a sample."""
        return int(np.prod(self.outputs.shape[2:]))

    def unseen(self) -> Integers:
        """[N, K] the number of newest samples on which a model was not evaluated yet."""
        clients, samples, models, _ = self.outputs.shape
        # Clients come last: NumPy is fastest along the last axis.
        counts, unknown = np.zeros((models, clients), dtype=np.int64), np.ones((models, clients), dtype=np.bool_)
        for sample in reversed(range(samples)):
            unknown &= np.isnan(self.outputs[:, sample, :, 0].T)
            if not unknown.any():
                break
            counts += unknown
        return counts.T

    def pools(self, last: int, weights: Floats) -> Floats:
        """[N, n, C] the pools of the last n samples with [N, K] prediction weights."""
        clients, (samples, _, width) = weights.shape[0], self.outputs[0, -last:].shape
        pools = np.empty((width, samples, clients)).T

        def work(some: slice) -> None:
            share, everybody = np.asfortranarray(weights[some]), slice(None)
            pool = Pool((share.shape[0], samples, width))
            for model in np.flatnonzero(share.any(axis=0)).tolist():
                predicts = share[:, model] > 0
                outputs = np.where(predicts[:, None, None], self.outputs[some, -last:, model], 0.0)
                pool.add(everybody, share[:, model], outputs)
            pools[some] = pool.value()

        for_each_block(clients, _AT_ONCE, work)
        return pools

    def mean_losses(self) -> Floats:
        """[N, K] the mean loss of each model by itself on the samples that it was evaluated on; 0 if there are none."""
        known = self.known
        if self.outputs.shape[-1] == 0:
            return np.zeros((known.shape[0], known.shape[2]))
        outputs = np.where(known[..., None], self.outputs, 0.0).astype(np.float64)
        losses = pool_loss(outputs, np.broadcast_to(self.targets[..., None], known.shape))
        means: Floats = np.where(known, losses, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        return means

    def losses_by_use(self, weights: Floats) -> Floats:
        """[N, K] weights times mean losses; NaN where the weight is 0."""
        some = np.flatnonzero(weights.any(axis=1))
        if not some.size:
            return np.broadcast_to(np.nan, weights.shape)
        used, reported = weights[some], np.full(weights.shape, np.nan)
        reported[some] = np.where(used > 0, np.minimum(used * self.of(some).mean_losses(), MOST_LOSS), np.nan)
        return reported

    def add(self, samples: Samples, most: int) -> Recent:
        """Append samples, and record outputs on past ones; keep the last `most` samples."""
        targets, (clients, added), old = samples.targets, samples.targets.shape, self.outputs.shape[1]
        dropped = max(0, old + added - most)
        # Without those on samples that were dropped since they were evaluated.
        outputs = samples.outputs[:, max(0, samples.outputs.shape[1] - (old + added - dropped)) :]
        # Clients come last in memory: NumPy is fastest along the last axis.
        whole = np.empty((*outputs.shape[:1:-1], old + added - dropped, clients), dtype=np.float32).T
        late = whole[:, whole.shape[1] - outputs.shape[1] :]

        def work(some: slice) -> None:
            whole[some, max(0, old - dropped) :] = np.nan
            if old > dropped:
                whole[some, : old - dropped] = self.outputs[some, dropped:]
            _put_new(late[some], outputs[some])

        for_each_block(clients, _AT_ONCE, work)
        return Recent(
            whole,
            np.concatenate([self.targets, targets.astype(np.float64)], axis=1)[:, dropped:],
            np.concatenate([self.exchange, samples.exchange], axis=1)[:, dropped:],
        )


def _put_new(known: AnyArray, outputs: AnyArray) -> None:
    """Record outputs where none is known yet."""
    if outputs.shape[-1] == 1:
        given = np.array(outputs.T, order="C").T
        known[...] = np.where(np.isnan(known), given, known)
        return
    fresh = ~np.isnan(outputs[..., 0]) & np.isnan(known[..., 0])
    known[fresh] = poolable(outputs[fresh])


@dataclass(frozen=True, eq=False)
class Samples:
    """New samples of clients, and new outputs on past ones.

    Attributes
    ----------
    outputs
        [N, L, K, C] outputs of networks on the last L samples, the new ones included; NaN where there are none.
    targets, exchange
        [N, n] targets of the new samples, and the exchanges in which they were predicted.
    """

    outputs: AnyArray
    targets: AnyArray
    exchange: Integers

    @classmethod
    def of(cls, exchange: int, outputs: AnyArray, targets: AnyArray) -> Samples:
        """Samples of one exchange."""
        return cls(outputs, targets, np.full(targets.shape, exchange, dtype=np.int64))

    def rows(self, clients: slice | Integers) -> Samples:
        """Those of some clients."""
        return Samples(self.outputs[clients], self.targets[clients], self.exchange[clients])


@dataclass(frozen=True, eq=False)
class Observations:
    """What clients observe in an exchange.

    Attributes
    ----------
    losses
        [N, K] selection losses, summed over the exchange's rounds; NaN for models that the policy does not observe.
    recent
        The last samples, for a policy that `remembers` some.
    """

    losses: Floats
    recent: Recent
