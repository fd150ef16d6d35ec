"""What a client observes in an exchange: losses, and for policies that ask for it, outputs on its last samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.pooling import pool_loss, poolable
from ofms.core.typing import AnyArray, Flags, Floats, Integers


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

    def unseen(self) -> Integers:
        """[N, K] the number of newest samples on which a model was not evaluated yet."""
        unknown = np.logical_and.accumulate(~self.known[:, ::-1], axis=1)
        counts: Integers = unknown.sum(axis=1)
        return counts

    def mean_losses(self) -> Floats:
        """[N, K] the mean loss of each model by itself on the samples that it was evaluated on; 0 if there are none."""
        known = self.known
        if self.outputs.shape[-1] == 0:
            return np.zeros((known.shape[0], known.shape[2]))
        outputs = np.where(known[..., None], self.outputs, 0.0).astype(np.float64)
        losses = pool_loss(outputs, np.broadcast_to(self.targets[..., None], known.shape))
        means: Floats = np.where(known, losses, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        return means

    def add(self, samples: Samples, most: int) -> Recent:
        """Append samples, and record outputs on past ones; keep the last `most` samples."""
        targets, (clients, added), old = samples.targets, samples.targets.shape, self.outputs.shape[1]
        # Without those on samples that were dropped since they were evaluated.
        outputs = samples.outputs[:, max(0, samples.outputs.shape[1] - old - added) :]
        whole = np.full((clients, old + added, *outputs.shape[2:]), np.nan, dtype=np.float32)
        if old:
            whole[:, :old] = self.outputs
        late = whole[:, old + added - outputs.shape[1] :]
        fresh = ~np.isnan(outputs[..., 0]) & np.isnan(late[..., 0])
        late[fresh] = poolable(outputs[fresh])
        kept = slice(max(0, old + added - most), None)
        return Recent(
            whole[:, kept],
            np.concatenate([self.targets, targets.astype(np.float64)], axis=1)[:, kept],
            np.concatenate([self.exchange, samples.exchange], axis=1)[:, kept],
        )


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
