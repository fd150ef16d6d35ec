"""Hostile clients of a simulated run: a share of the clients sends updates that make models worse.

They follow the protocol otherwise, so that their updates are what a server cannot refuse: of models that they were
granted, finite, and no larger than allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ofms.core.choices import suggest
from ofms.core.draws import Draws, Purpose
from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray, Flags, Integers

AttackKind = Literal["sign-flip", "random", "largest"]
ATTACKS = "sign-flip, random or largest, with the share of hostile clients, as largest:0.1"


@dataclass(frozen=True)
class Attack:
    """What hostile clients upload.

    Attributes
    ----------
    kind
        `sign-flip`: their own updates, reversed. `random`: updates in a random direction, with the largest norm and
        weight that a server accepts. `largest`: their own updates, reversed, with the largest norm and weight.
    share
        The share of hostile clients.

    Examples
    --------
    >>> Attack.of("largest:0.1")
    Attack(kind='largest', share=0.1)
    >>> Attack.of("largest:0.1").hostile(seed=0, clients=20).sum()
    np.int64(2)
    """

    kind: AttackKind
    share: float

    @classmethod
    def of(cls, text: str) -> Attack:
        """As in a configuration."""
        name, _, share = text.partition(":")
        if name not in get_args(AttackKind):
            raise InvalidInput("attack", text, suggest(name, get_args(AttackKind)))
        try:
            value = float(share)
        except ValueError:
            value = -1.0
        if not 0 < value < 1:
            raise InvalidInput("attack", text, f"give the share of hostile clients, between 0 and 1, as {name}:0.1")
        return cls(name, value)  # type: ignore[arg-type]

    def hostile(self, seed: int, clients: int) -> Flags:
        """[N] the hostile clients of a run; those of a smaller share are among those of a larger one."""
        drawn = Draws(seed, 0).uniform(Purpose.ATTACK, np.arange(clients))
        flags = np.zeros(clients, dtype=np.bool_)
        flags[np.argsort(drawn)[: round(self.share * clients)]] = True
        return flags

    def distorted(
        self, updates: AnyArray, clients: Integers, hostile: Flags, model: int, *, most: float, draws: Draws
    ) -> AnyArray:
        """[m, P] updates with those of hostile clients replaced.

        Parameters
        ----------
        updates
            [m, P] weighted updates of a model, of [m] clients.
        hostile
            [N] as in `hostile`.
        most
            The largest norm of a weighted update that a server accepts.
        """
        places = np.flatnonzero(hostile[clients])
        if not places.size:
            return updates
        made = np.array(updates)
        for place in places.tolist():
            own = made[place].astype(np.float64)
            if self.kind == "random":
                own = draws.normal(Purpose.ATTACK, int(clients[place]), model, own.size)
            norm = float(np.linalg.norm(own))
            if self.kind == "sign-flip":
                made[place] = -own
            elif norm > 0:
                made[place] = (most / norm if self.kind == "random" else -most / norm) * own
        return made
