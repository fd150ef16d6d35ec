"""Counter-based random numbers: every draw is a function of (seed, purpose, exchange, client).

A device that knows its own index and a simulation of a million clients get the same number for the same
client; adding a client does not change the draws of the others; a resumed run continues with the same draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ofms.core.typing import Floats, Integers


class Purpose(IntEnum):
    """What a draw is for; each purpose has its own stream."""

    MODEL = 1
    CLUSTER = 2
    GROUP = 3
    SUBSET = 4
    ATTACK = 5


@dataclass(frozen=True)
class Draws:
    """The uniform numbers of one exchange.

    A Philox step yields four 64-bit words and `random` takes one, so client i's number is the (i mod 4)-th
    of the generator that starts at block i // 4.

    Examples
    --------
    >>> draws = Draws(seed=7, exchange=3)
    >>> row = draws.uniform(Purpose.MODEL, np.arange(1000))
    >>> alone = draws.uniform(Purpose.MODEL, np.array([998]))
    >>> bool(alone[0] == row[998])
    True
    """

    seed: int
    exchange: int

    def uniform(self, purpose: Purpose, clients: Integers, column: int = 0) -> Floats:
        """One number in [0, 1) for each of `clients`; columns are independent."""
        clients = np.asarray(clients, dtype=np.int64)
        if clients.size == 0:
            return np.zeros(0)
        first, largest = int(clients[0]), int(clients.max())
        if _is_range(clients):
            some: Floats = self._generator(purpose, first // 4, column).random(first % 4 + clients.size)
            return some[first % 4 :]
        if largest < 4 * clients.size:
            row: Floats = self._generator(purpose, 0, column).random(largest + 1)
            return row[clients]
        blocks = [(self._generator(purpose, client // 4, column), client % 4) for client in clients.tolist()]
        return np.array([generator.random(place + 1)[-1] for generator, place in blocks])

    def table(self, purpose: Purpose, clients: Integers, columns: int) -> Floats:
        """[N, columns] numbers in [0, 1); the first column equals `uniform`."""
        numbers = np.empty((columns, len(clients)))
        for column in range(columns):
            numbers[column] = self.uniform(purpose, clients, column)
        return numbers.T

    def of(self, clients: Integers) -> ClientDraws:
        """The draws of some clients."""
        return ClientDraws(self, clients)

    def single(self, purpose: Purpose) -> float:
        """The server's number for the exchange."""
        return float(self._generator(purpose, 0, 0).random())

    def normal(self, purpose: Purpose, client: int, column: int, count: int) -> Floats:
        """[count] standard normal numbers of one client; columns are independent."""
        key = np.array([self.seed, purpose], dtype=np.uint64)
        # The last word is 0 for all other draws.
        counter = np.array([0, column, self.exchange, client + 1], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter)).standard_normal(count)

    def _generator(self, purpose: Purpose, block: int, column: int) -> np.random.Generator:
        key = np.array([self.seed, purpose], dtype=np.uint64)
        counter = np.array([block, column, self.exchange, 0], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


@dataclass(frozen=True, eq=False)
class ClientDraws:
    """The uniform numbers of one exchange for [N] clients."""

    draws: Draws
    clients: Integers

    @property
    def exchange(self) -> int:
        return self.draws.exchange

    def uniform(self, purpose: Purpose) -> Floats:
        """[N] numbers in [0, 1)."""
        return self.draws.uniform(purpose, self.clients)

    def table(self, purpose: Purpose, columns: int) -> Floats:
        """[N, columns] numbers in [0, 1)."""
        return self.draws.table(purpose, self.clients, columns)

    def of_the_run(self) -> ClientDraws:
        """Draws that are the same in every exchange."""
        return ClientDraws(Draws(self.draws.seed, 0), self.clients)


def _is_range(clients: Integers) -> bool:
    """Whether client numbers follow each other."""
    first, last = int(clients[0]), int(clients[-1])
    return last - first + 1 == clients.size and bool((clients == np.arange(first, last + 1)).all())
