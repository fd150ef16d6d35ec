"""The events of a run's configuration: clients by number, budgets in bytes, and the fleet before the first one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.events import Event
from ofms.core.schedule import Schedule
from ofms.data.stream import Stream
from ofms.policies.fleet import Fleet
from ofms.runs.config import RunConfig
from ofms.runs.schemas import EventTable
from ofms.runs.setup import Setup, named_models
from ofms.runs.units import parse_budgets

_POSITION = re.compile(r"[0-9]+(-[0-9]+)?")
_RANGE = re.compile(r"(?P<first>[0-9]+)-(?P<last>[0-9]+)")
# Changes that a table gives as an event has them.
_PLAIN = ("add", "retire", "rollback", "bandwidth", "interval", "aggregation", "policy", "settings")


def events_of(config: RunConfig, fleet: Fleet, names: Sequence[str] = ()) -> list[Event]:
    """The events of a run besides drift; `names` are the clients'."""
    found, largest, clients = [], int(fleet.catalogue.storage.max()), fleet.budgets.size
    for table in config.events or ():
        budgets = {
            client: int(parse_budgets(str(budget), largest=largest, clients=1)[0])
            for name, budget in table.budget.items()
            for client in clients_of("budget", [name], names, clients)
        }
        event = {
            "join": {each: int(fleet.budgets[each]) for each in clients_of("join", table.join, names, clients)},
            "leave": clients_of("leave", table.leave, names, clients),
            "budget": budgets,
        } | {name: getattr(table, name) for name in _PLAIN}
        if not table.drift or any(value not in (None, (), {}) for value in event.values()):
            found.append(Event(exchange=table.exchange, **event))
    return found


def initial_setup(config: RunConfig, fleet: Fleet, events: Sequence[Event]) -> Setup:
    """The fleet before its events: without the clients and models that come later."""
    catalogue, trust = fleet.catalogue, config.trusted()
    added = {name for event in events for name in event.add}
    joining = {client for event in events for client in event.join}
    return Setup(
        catalogue=catalogue,
        places=tuple(slot for slot, name in enumerate(catalogue.names) if name not in added),
        budgets=fleet.budgets,
        members=tuple(client for client in range(fleet.budgets.size) if client not in joining),
        bandwidth=config.bandwidth,
        schedule=fleet.schedule,
        policy=config.policy,
        settings=named_models(config.policy, config.settings, catalogue, trust),
        trust=trust,
        aggregation=config.aggregation,
    ).with_chosen_model()


def drifted(stream: Stream, tables: Sequence[EventTable], schedule: Schedule) -> Stream:
    """The stream in which clients see the samples of others from an event on."""
    if not any(table.drift for table in tables):
        return stream
    x, y, changes = stream.x, stream.y, set(stream.changes)
    for table in sorted(tables, key=lambda table: table.exchange):
        if table.interval is not None:
            schedule = schedule.with_interval(table.interval, table.exchange)
        if not table.drift:
            continue
        moving = list(clients_of("drift", table.drift, stream.names, stream.clients))
        if len(moving) < 2:
            raise InvalidInput("drift", list(table.drift), "clients see each other's samples; name at least 2")
        if not schedule.includes(table.exchange):
            raise InvalidInput("exchange", table.exchange, "it is after the end of the run; give a smaller one")
        since, sources = schedule.span(table.exchange)[0], np.roll(moving, -1)
        x, y = x.copy(), y.copy()
        x[moving, since:], y[moving, since:] = x[sources, since:], y[sources, since:]
        changes.add(since)
    return replace(stream, x=x, y=y, changes=tuple(sorted(changes - {0})))


def clients_of(field: str, given: Sequence[int | str], names: Sequence[str], count: int) -> tuple[int, ...]:
    """Clients given by number, by name, or as `first-last`; by name alone if some are named by other numbers.

    >>> clients_of("join", [0, "3-5", "pump"], ["a", "pump"], 6)
    (0, 3, 4, 5, 1)
    """
    found: list[int] = []
    numeric = next((name for place, name in enumerate(names) if name.isdecimal() and name != str(place)), None)
    for each in given:
        if numeric is not None and each not in names and _POSITION.fullmatch(str(each)):
            remedy = "clients are named by other numbers here; give each one's name as text"
            raise InvalidInput(field, each, f'{remedy}, such as "{numeric}"')
        span = _RANGE.fullmatch(str(each))
        if each in names:
            found.append(list(names).index(str(each)))
        elif span is not None:
            found += range(int(span["first"]), int(span["last"]) + 1)
        elif str(each).isdecimal():
            found.append(int(each))
        else:
            raise InvalidInput(field, each, f"there is no such client; give a number from 0 to {count - 1}, or a name")
    for client in found:
        if client >= count:
            raise InvalidInput(field, client, f"there is no such client; give a number from 0 to {count - 1}")
    return tuple(dict.fromkeys(found))
