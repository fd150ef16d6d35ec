"""A fleet at one time: its models, members, budgets and policy; and the fleet after an event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.events import Event
from ofms.core.messages import Catalogue
from ofms.core.robust import Aggregation
from ofms.core.schedule import Schedule
from ofms.core.typing import Integers
from ofms.plugins import NO_TRUST, Trust
from ofms.policies.changes import Slots
from ofms.policies.fleet import Fleet
from ofms.policies.protocol import ModelChoice, Policy
from ofms.policies.registry import build_policy, setting_names, settings_type
from ofms.policies.session import ClientSession, ServerSession
from ofms.runs.units import parse_bandwidth
from ofms.storage.schema import convert

_CHANGES = "the fleet changes during the run"


@dataclass(frozen=True, eq=False)
class Setup:
    """What a policy is built for.

    Attributes
    ----------
    catalogue
        All slots of models, also empty ones.
    places
        The slots in use, in the order in which their models came.
    budgets
        By client number, in bytes; 0 for numbers of clients that never joined.
    members
        The numbers of the clients in the fleet.
    bandwidth
        E, as in the configuration; a share is one of the members' summed budgets.
    horizon
        T for rates, if it is not that of the schedule.
    aggregation
        How updates are aggregated, as in the configuration; None for their sum.
    changed
        How many events there were.
    left, retired
        Clients and slots that were in the fleet, and do not come back.
    renewed
        By slot, the number of the last event in which its model went back to an earlier version.
    """

    catalogue: Catalogue
    places: tuple[int, ...]
    budgets: Integers
    members: tuple[int, ...]
    bandwidth: str
    schedule: Schedule
    policy: str
    settings: Mapping[str, Any]
    trust: Trust = NO_TRUST
    horizon: int | None = None
    aggregation: str | None = None
    changed: int = 0
    left: tuple[int, ...] = ()
    retired: tuple[int, ...] = ()
    renewed: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def slots(self) -> Slots:
        return Slots.of(len(self.catalogue), np.array(self.places))

    @cached_property
    def fleet(self) -> Fleet:
        """The fleet by slot and client number."""
        largest, own = int(self.catalogue.storage.max()), self.budgets[list(self.members)]
        bandwidth = parse_bandwidth(self.bandwidth, largest=largest, budgets=own)
        return Fleet(self.catalogue, self.budgets, bandwidth, self.schedule)

    @cached_property
    def built(self) -> Policy:
        """The policy, for the models in use and the members; its own models are named by slot."""
        used, schedule = self.slots.catalogue(self.catalogue), self.schedule
        if self.horizon is not None:
            schedule = replace(schedule, rounds=self.horizon)
        fleet = Fleet(used, self.budgets[list(self.members)], self.fleet.bandwidth, schedule)
        settings = convert(dict(self.settings), settings_type(self.policy, self.trust))
        built = build_policy(self.policy, settings, fleet, self.trust)
        own, uploaded = built.own_model, built.uploaded
        return replace(
            built,
            own_model=None if own is None else self.places[own],
            uploaded=None if uploaded is None else tuple(self.places[model] for model in uploaded),
            aggregation=Aggregation.of(self.aggregation),
        )

    @property
    def client(self) -> ClientSession:
        return ClientSession(self.built, self.schedule, self.slots)

    @property
    def server(self) -> ServerSession:
        return ServerSession(self.built, self.fleet, self.slots)

    def after(self, event: Event, *, catalogue: Catalogue | None = None) -> Setup:
        """The fleet after an event, with its policy; rejected if it is impossible, by field.

        `catalogue` has further slots, for models that the event adds.
        """
        made = replace(self, catalogue=catalogue or self.catalogue, changed=self.changed + 1)
        made = _with_members(made, event)
        made = _with_rollbacks(_with_models(made, event), event)
        if event.bandwidth is not None:
            made = replace(made, bandwidth=event.bandwidth)
        if event.interval is not None:
            if event.interval < 1:
                raise InvalidInput("interval", event.interval, "give at least 1")
            made = replace(made, schedule=made.schedule.with_interval(event.interval, event.exchange))
        if event.aggregation is not None:
            made = replace(made, aggregation=event.aggregation)
        if event.policy is not None or event.settings is not None:
            made = _with_policy(made, event)
        if event.rounds is not None:
            made = replace(made, horizon=event.rounds)
        made = made.with_chosen_model()
        # Built now, so that what is impossible is rejected before anything changes.
        _ = made.built
        return made

    def with_chosen_model(self) -> Setup:
        """With the model named that the policy's settings choose, if they do: it stays while it is in use."""
        kind = settings_type(self.policy, self.trust)
        settings: Any = convert(dict(self.settings), kind)
        used = self.slots.catalogue(self.catalogue)
        if not isinstance(settings, ModelChoice):
            return self
        unnamed: ModelChoice = convert({**self.settings, "model": None}, kind)
        chosen = unnamed.chosen_model(used)
        retired = settings.model in {self.catalogue.names[slot] for slot in self.retired}
        unneeded = chosen is None and self.changed > 0
        if settings.model is not None and not retired and not unneeded:
            return self
        return replace(self, settings={**self.settings, "model": None if chosen is None else used.names[chosen]})

    def renewed_since(self, before: Setup) -> tuple[int, ...]:
        """The slots whose models went back to earlier versions since another setup of the fleet."""
        return tuple(slot for slot, number in self.renewed.items() if number > before.changed)

    def concerns_clients(self, before: Setup, event: Event) -> bool:
        """Whether all clients must adapt to the event, not only those whose own budgets changed."""
        if event.anew or event.rollback or self.places != before.places or self.schedule != before.schedule:
            return True
        ours, theirs = self.built, before.built
        known = ("local", "loss_bound", "observes", "remembers", "pooling", "own_model", "uploaded", "offset_memories")
        if any(getattr(ours, name) != getattr(theirs, name) for name in known):
            return True
        staying = sorted(set(self.members) & set(before.members))
        budgets = {int(before.budgets[client]) for client in staying if client not in event.budget}
        return not _same_for(budgets, ours.client, theirs.client)


def _same_for(budgets: set[int], half: Any, other: Any) -> bool:
    """Whether two client halves are the same for clients with these budgets: rates may be given by budget."""
    if type(half) is not type(other):
        return False
    for each in fields(half):
        mine, theirs = getattr(half, each.name), getattr(other, each.name)
        if isinstance(mine, dict) and budgets <= mine.keys() & theirs.keys():
            mine, theirs = ({budget: rates[budget] for budget in budgets} for rates in (mine, theirs))
        if mine != theirs:
            return False
    return True


def _with_members(setup: Setup, event: Event) -> Setup:
    members, budgets = set(setup.members), setup.budgets.tolist()
    for client in event.leave:
        if client not in members:
            raise InvalidInput("leave", client, f"it is not in the fleet; its clients are {_some(setup.members)}")
        members.discard(client)
    for client, budget in event.join.items():
        if client in members or client in setup.left:
            where = "it is already in the fleet" if client in members else "it left before"
            raise InvalidInput("join", client, f"{where}; name another client")
        if client < 0:
            raise InvalidInput("join", client, "give the number of a client, from 0 on")
        # Clients before it may not be able to join, or have left before they joined.
        budgets += [0] * (client - len(budgets))
        budgets[client : client + 1] = [budget]
        members.add(client)
    for client, budget in event.budget.items():
        if client not in members:
            raise InvalidInput("budget", client, f"it is not in the fleet; its clients are {_some(setup.members)}")
        budgets[client] = budget
    if not members:
        raise InvalidInput("leave", _some(event.leave), "no client would be left; keep at least one")
    left, whole = (*setup.left, *event.leave), np.array(budgets, dtype=np.int64)
    return replace(setup, members=tuple(sorted(members)), budgets=whole, left=left)


def _with_models(setup: Setup, event: Event) -> Setup:
    names, places = list(setup.catalogue.names), list(setup.places)
    for name in event.retire:
        if name not in names or names.index(name) not in places:
            used = ", ".join(names[slot] for slot in places)
            raise InvalidInput("retire", name, f"no such model is in use; name one of {used}")
        places.remove(names.index(name))
    for name in event.add:
        if name not in names:
            raise InvalidInput("add", name, f"the dictionary has no such model; name one of {', '.join(names)}")
        if names.index(name) in (*setup.places, *setup.retired):
            where = "it is already in use" if names.index(name) in setup.places else "it was retired"
            raise InvalidInput("add", name, f"{where}; add a model under another name")
        places.append(names.index(name))
    if len(places) < 2:
        raise InvalidInput(
            "retire", ", ".join(event.retire), "selection needs at least 2 models; add another one first"
        )
    retired = (*setup.retired, *(names.index(name) for name in event.retire))
    return replace(setup, places=tuple(places), retired=retired)


def _with_rollbacks(setup: Setup, event: Event) -> Setup:
    names, renewed = list(setup.catalogue.names), dict(setup.renewed)
    for name, to in event.rollback.items():
        if name not in names or names.index(name) not in setup.places:
            used = ", ".join(names[slot] for slot in setup.places)
            raise InvalidInput("rollback", name, f"no such model is in use; name one of {used}")
        if not 0 <= to <= event.exchange:
            raise InvalidInput("rollback", f"{name} to {to}", f"give an exchange from 0 to {event.exchange}")
        renewed[names.index(name)] = setup.changed
    return replace(setup, renewed=renewed)


def _with_policy(setup: Setup, event: Event) -> Setup:
    """Another policy has its default settings, besides those given; the same one keeps the others."""
    policy = setup.policy if event.policy is None else event.policy
    settings = {} if policy != setup.policy else dict(setup.settings)
    known = setting_names(policy, setup.trust)
    for name, value in (event.settings or {}).items():
        if name not in known:
            raise InvalidInput("set", name, f"{policy} has {', '.join(sorted(known))}")
        settings[name] = value
    return replace(setup, policy=policy, settings=settings)


def named_models(policy: str, settings: Mapping[str, Any], catalogue: Catalogue, trust: Trust) -> dict[str, Any]:
    """Settings in which models are named, not numbered: numbers change with the dictionary."""
    whole = asdict(convert(dict(settings), settings_type(policy, trust)))
    named = dict(settings)
    for name in ("model", "local_model"):
        if isinstance(whole.get(name), int) and 0 <= whole[name] < len(catalogue):
            named[name] = catalogue.names[whole[name]]
    if isinstance(whole.get("subset"), list | tuple):
        named["subset"] = [catalogue.names[each] if isinstance(each, int) else each for each in whole["subset"]]
    return named


def without_bound(policy: Policy) -> Policy:
    """The policy of a run whose fleet changes: no theorem bounds its regret before the run."""
    return replace(policy, bound=None, not_covered=policy.not_covered if policy.bound is None else _CHANGES)


def _some(clients: Sequence[int]) -> str:
    return ", ".join(map(str, clients[:12])) + (", …" if len(clients) > 12 else "")
