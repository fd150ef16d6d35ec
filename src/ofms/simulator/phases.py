"""The phases of a simulated run, between its events: the fleet in each, and which clients stay together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.events import Event, doubled, in_order
from ofms.core.typing import Flags, Integers
from ofms.policies.fleet import Fleet
from ofms.runs.config import RunConfig
from ofms.runs.events import events_of, initial_setup
from ofms.runs.setup import Setup
from ofms.simulator.cohorts import Cohorts, States


@dataclass(frozen=True, eq=False)
class Phases:
    """The fleet at first, and after each event.

    Attributes
    ----------
    first
        The fleet in exchange 0.
    later
        Events in order, each with the fleet after it.
    total
        The clients of the stream, in the fleet or not.
    """

    first: Setup
    later: tuple[tuple[Event, Setup], ...]
    total: int

    @classmethod
    def of(cls, setup: Setup, events: Iterable[Event], doubling: int | None = None) -> Phases:
        """The phases of a run; events that are impossible are rejected."""
        given = in_order(events)
        if doubling is not None:
            setup = replace(setup, horizon=doubled(doubling, 0))
            given = in_order([*given, *_restarts(setup, given, doubling)])
        first, later, _ = setup, [], setup.built
        for event in given:
            if not setup.schedule.includes(event.exchange):
                last = setup.schedule.exchanges - 1
                raise InvalidInput("exchange", event.exchange, f"the last one of the run is {last}; give a smaller one")
            for client in event.join:
                # The stream has no samples of others.
                if client >= first.budgets.size:
                    last = first.budgets.size - 1
                    raise InvalidInput("join", client, f"there is no such client; give a number from 0 to {last}")
            setup = setup.after(event)
            later.append((event, setup))
        return cls(first, tuple(later), first.budgets.size)

    def at(self, exchange: int) -> Iterator[tuple[Event, Setup, Setup]]:
        """The events of an exchange, with the fleets before and after each."""
        before = self.first
        for event, after in self.later:
            if event.exchange == exchange:
                yield event, before, after
            before = after

    @property
    def groups(self) -> list[Integers]:
        """Clients by the events in which they join and leave."""
        key = np.zeros((self.total, 2), dtype=np.int64)
        for number, (event, _) in enumerate(self.later, 1):
            key[list(event.join), 0] = number
            key[list(event.leave), 1] = number
        _, group = np.unique(key, axis=0, return_inverse=True)
        return [np.flatnonzero(group.reshape(-1) == number) for number in range(int(group.max()) + 1)]

    @property
    def first_rounds(self) -> Integers:
        """[N] the round in which each client joined."""
        rounds = np.zeros(self.total, dtype=np.int64)
        for event, setup in self.later:
            rounds[list(event.join)] = setup.schedule.span(event.exchange)[0]
        return rounds

    def lines(self, names: Sequence[str] = ()) -> list[str]:
        """A line for each event, and how models are compared."""
        who = dict(enumerate(names))
        lines = [f"exchange {event.exchange}: {event.describe(who)}" for event, _ in self.later]
        return [*lines, "a client and a model are compared on the rounds in which both were in the fleet"]

    def cohorts(self, setup: Setup, clients: tuple[int, int]) -> Cohorts:
        """The cohorts of a fleet, with the clients from the first number to before the second."""
        inside = set(setup.members)
        numbers = [each for each in self.groups if int(each[0]) in inside]
        return Cohorts.of(setup.client, numbers, clients, len(setup.catalogue))

    def present(self, setup: Setup, among: slice = slice(None)) -> tuple[Flags, Flags]:
        """[N] and [S] the clients, all or `among` some, and the models in the fleet."""
        clients, models = np.zeros(self.total, dtype=np.bool_), np.zeros(len(setup.catalogue), dtype=np.bool_)
        clients[list(setup.members)] = models[list(setup.places)] = True
        return clients[among], models


def phases_of(config: RunConfig, fleet: Fleet, names: Sequence[str] = ()) -> Phases | None:
    """The phases of a configured run; None if its fleet does not change."""
    events = events_of(config, fleet, names)
    if not events and config.doubling is None:
        return None
    return Phases.of(initial_setup(config, fleet, events), events, config.doubling)


def moved(event: Event, before: tuple[Setup, Cohorts, States], after: Setup, cohorts: Cohorts) -> States:
    """The states after an event: those of new clients begin, those that it concerns adapt."""
    setup, old, states = before
    known = {int(each[0]): state for each, state in zip(old.numbers, states, strict=True)}
    all_adapt, made = after.concerns_clients(setup, event), []
    for rows, numbers in zip(cohorts.members, cohorts.numbers, strict=True):
        own = rows + cohorts.first
        budgets, state = after.budgets[own], known.get(int(numbers[0]))
        if state is None:
            state = cohorts.session.join(after.catalogue, budgets, own)
        elif all_adapt or any(client in event.budget for client in numbers.tolist()):
            renewed = after.renewed_since(setup)
            state = cohorts.session.adapt(
                state, old.session, after.catalogue, budgets, anew=event.anew, renewed=renewed
            )
        made.append(state)
    return tuple(made)


def _restarts(setup: Setup, events: tuple[Event, ...], base: int) -> Iterator[Event]:
    """The restarts of the doubling trick, in the first exchange that begins in each stretch."""
    schedule, horizon, exchange = setup.schedule, base, 0
    changes = {event.exchange: event.interval for event in events if event.interval is not None}
    while schedule.includes(exchange):
        if exchange in changes:
            schedule = schedule.with_interval(changes[exchange], exchange)
        now = doubled(base, schedule.span(exchange)[0])
        if now != horizon:
            horizon = now
            yield Event(exchange=exchange, rounds=horizon)
        exchange += 1
