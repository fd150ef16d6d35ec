"""Changes of a fleet while it runs: clients and models that come and go, budgets, and the server's configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ofms.core.errors import InvalidInput
from ofms.core.words import counted


@dataclass(frozen=True, kw_only=True)
class Event:
    """What changes from the beginning of an exchange on; several changes of an event take effect together.

    Attributes
    ----------
    exchange
        The first exchange under the changed fleet.
    leave, join
        Clients that leave for good, and that join, with their budgets in bytes.
    budget
        New budgets of clients, in bytes.
    retire, add
        Models by name.
    rollback
        Models by name that go back to their versions before an exchange, 0 for the first ones. What was learnt about
        them is forgotten, as if they were new.
    bandwidth, interval
        E as in the configuration, and n.
    aggregation
        How updates of clients are aggregated, as in the configuration.
    policy, settings
        Another policy, or other settings of the same one; both halves start anew.
    rounds
        Both halves start anew with rates for this horizon; the doubling trick.
    deadline, quorum, staleness
        Of a deployment alone: seconds in which devices answer, the share of answers after which an exchange is closed,
        and how many exchanges later an answer may arrive.
    """

    exchange: int
    leave: tuple[int, ...] = ()
    join: Mapping[int, int] = field(default_factory=dict)
    budget: Mapping[int, int] = field(default_factory=dict)
    retire: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    rollback: Mapping[str, int] = field(default_factory=dict)
    bandwidth: str | None = None
    interval: int | None = None
    aggregation: str | None = None
    policy: str | None = None
    settings: Mapping[str, Any] | None = None
    rounds: int | None = None
    deadline: float | None = None
    quorum: float | None = None
    staleness: int | None = None

    def __post_init__(self) -> None:
        if self.exchange < 0:
            raise InvalidInput("exchange", self.exchange, "give the number of an exchange, from 0 on")
        changes = [getattr(self, each.name) for each in fields(self) if each.name != "exchange"]
        if all(value in (None, (), {}) for value in changes):
            raise InvalidInput("event", f"exchange {self.exchange}", "it changes nothing; name a change")

    @property
    def anew(self) -> bool:
        """Whether both halves of the policy forget what they learnt."""
        return self.policy is not None or self.settings is not None or self.rounds is not None

    def describe(self, names: Mapping[int, str] | None = None) -> str:
        """One line for people; `names` are those of the clients.

        >>> Event(exchange=3, retire=("net1",), join={4: 100}).describe({4: "pump-4"})
        'pump-4 joins; model net1 is retired'
        """
        who = names or {}
        parts = [f"{who.get(client, f'client {client}')} leaves" for client in self.leave]
        parts += [f"{who.get(client, f'client {client}')} joins" for client in self.join]
        parts += [f"{who.get(client, f'client {client}')} has {to} bytes" for client, to in self.budget.items()]
        parts += [f"model {name} is retired" for name in self.retire]
        parts += [f"model {name} is added" for name in self.add]
        for name, to in self.rollback.items():
            version = f"its version before exchange {to}" if to else "its first version"
            parts.append(f"model {name} goes back to {version}")
        for each in ("policy", "bandwidth", "interval", "aggregation", "deadline", "quorum", "staleness"):
            if getattr(self, each) is not None:
                parts.append(f"{each} = {getattr(self, each)}")
        parts += [f"{name} = {value}" for name, value in (self.settings or {}).items()]
        if self.rounds is not None:
            parts.append(f"the policy starts anew with rates for {counted(self.rounds, 'round')}")
        return "; ".join(parts)


def in_order(events: Iterable[Event]) -> tuple[Event, ...]:
    """Events by exchange; those of the same exchange in the order given."""
    return tuple(sorted(events, key=lambda event: event.exchange))


def doubled(base: int, first: int) -> int:
    """T of the stretch to which round `first` belongs under the doubling trick: base, 2 base, 4 base, ... rounds.

    >>> [doubled(10, first) for first in (0, 9, 10, 29, 30, 70)]
    [10, 10, 20, 20, 40, 80]
    """
    if base < 1:
        raise InvalidInput("doubling", base, "give the rounds of the first stretch, at least 1")
    stretch, stop = base, base
    while stop <= first:
        stretch, stop = 2 * stretch, stop + 2 * stretch
    return stretch
