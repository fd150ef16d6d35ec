"""Fleets of the small problems that change while they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ofms.core.events import Event
from ofms.core.schedule import Schedule
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.plugins import NO_TRUST
from ofms.runs.setup import Setup, named_models
from tests.policy_settings import SETTINGS
from tests.problems import PROBLEMS, fleet_for

# A client that joins, another that leaves; a model that is added, another that is retired; a budget that falls.
EVENTS = (
    Event(exchange=4, join={5: 4 * 452}, add=("net5",)),
    Event(exchange=7, retire=("net0",), budget={2: 2 * 452}),
    Event(exchange=8, budget={1: 3 * 452}),
    Event(exchange=9, leave=(0,)),
)


def changing_setup(problem: str, name: str, events: Sequence[Event], interval: int, **settings: Any) -> Setup:
    """The fleet of a problem before its events: without the clients and models that come later."""
    dictionary, stream = PROBLEMS[problem]()
    fleet = fleet_for(dictionary, stream, interval)
    later = {client for event in events for client in event.join}
    added = {model for event in events for model in event.add}
    catalogue = fleet.catalogue
    # The federated model of Fed-POE must not be retired.
    given = SETTINGS[name] | ({"model": "net2"} if name == "fed-poe" else {}) | settings
    return Setup(
        catalogue=catalogue,
        places=tuple(slot for slot, model in enumerate(catalogue.names) if model not in added),
        budgets=fleet.budgets,
        members=tuple(client for client in range(stream.clients) if client not in later),
        bandwidth="100%",
        schedule=fleet.schedule,
        policy=name,
        settings=named_models(name, given, catalogue, NO_TRUST),
    )


def deployed_setup(
    name: str,
    dictionary: Dictionary,
    stream: Stream,
    budgets: Sequence[int],
    events: Sequence[Event],
    settings: Mapping[str, Any],
    *,
    interval: int,
) -> Setup:
    """The simulated fleet that is equivalent to a deployment with these events."""
    catalogue = dictionary.catalogue()
    later = {client for event in events for client in event.join}
    added = {model for event in events for model in event.add}
    return Setup(
        catalogue=catalogue,
        places=tuple(slot for slot, model in enumerate(catalogue.names) if model not in added),
        budgets=np.array(budgets, dtype=np.int64),
        members=tuple(client for client in range(stream.clients) if client not in later),
        bandwidth="100%",
        schedule=Schedule(stream.rounds, interval),
        policy=name,
        settings=named_models(name, settings, catalogue, NO_TRUST),
    )
