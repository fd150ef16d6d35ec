"""A dictionary and a fleet that change while they are used: slots of models, and what a policy is told of a change.

A model's number, its slot, never changes; messages, versions and files use it. A policy sees only the models in use, in
the order in which they came.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from ofms.core.messages import Catalogue, Grants, Plan, Reports
from ofms.core.typing import AnyArray, Integers
from ofms.policies.observations import Recent

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class Change:
    """What changed for the clients whose states a half adapts.

    Attributes
    ----------
    catalogue
        The models in use now.
    budgets
        [N] the clients' budgets now; empty for a server half.
    kept
        [K'] the place of each model among those in use before; -1 for a new one.
    same_models
        Whether the models are those before, in the same order.
    """

    catalogue: Catalogue
    budgets: Integers
    kept: Integers
    same_models: bool

    def carried(self, values: AnyArray, fill: float = 0) -> AnyArray:
        """[..., K'] values by model, of [..., K] those before; new models have `fill`."""
        return np.where(self.kept >= 0, values[..., np.maximum(self.kept, 0)], np.asarray(fill, dtype=values.dtype))


@runtime_checkable
class Adapting(Protocol):
    """A half that keeps what it learnt when models come and go, and budgets change; any other half starts anew."""

    def adapt(self, state: Any, change: Change) -> Any:
        """The state after a change, from the one before. The half is the one of the changed fleet."""
        ...


@dataclass(frozen=True, eq=False)
class Slots:
    """Which of `count` slots hold the models in use, in the order of `places`; None if all do, in their own order."""

    count: int = 0
    places: Integers | None = None

    @classmethod
    def of(cls, count: int, places: Integers) -> Slots:
        """Slots in the order of arrival of their models."""
        return cls(count, None if np.array_equal(places, np.arange(count)) else places)

    def within(self, count: int) -> Slots:
        """The same of so many slots."""
        return Slots(count, self.places)

    @property
    def used(self) -> Integers:
        """[K] the slots in use."""
        return np.arange(self.count) if self.places is None else self.places

    def catalogue(self, whole: Catalogue) -> Catalogue:
        """The models in use."""
        if self.places is None:
            return whole
        names = tuple(whole.names[slot] for slot in self.places.tolist())
        storage, upload, version = (self.narrow(each) for each in (whole.storage, whole.upload, whole.version))
        return Catalogue(names, storage, upload, version, whole.revision)

    def narrow(self, whole: AnyArray) -> AnyArray:
        """[..., K] of [..., S] values by slot."""
        return whole if self.places is None else whole[..., self.places]

    def widen(self, values: AnyArray, fill: float = 0) -> AnyArray:
        """[..., S] values by slot; `fill` for empty ones."""
        if self.places is None:
            return values
        whole = np.full((*values.shape[:-1], self.count), fill, dtype=values.dtype)
        whole[..., self.places] = values
        return whole

    def narrow_grants(self, grants: Grants) -> Grants:
        if self.places is None:
            return grants
        weights = grants.prediction_weights
        return replace(
            grants,
            held=self.narrow(grants.held),
            sent=self.narrow(grants.sent),
            prediction_weights=None if weights is None else self.narrow(weights),
            version=self.narrow(grants.version),
        )

    def narrow_reports(self, reports: Reports) -> Reports:
        if self.places is None:
            return reports
        losses, left_out = (None if each is None else self.narrow(each) for each in (reports.losses, reports.left_out))
        return replace(reports, losses=losses, updated=self.narrow(reports.updated), left_out=left_out)

    def narrow_recent(self, recent: Recent) -> Recent:
        return recent if self.places is None else replace(recent, outputs=recent.outputs[:, :, self.places])

    def narrow_plan(self, plan: Plan) -> Plan:
        return plan if self.places is None else plan.for_models(self.narrow)

    def widen_plan(self, plan: Plan) -> Plan:
        return plan if self.places is None else plan.for_models(self.widen)


ALL_MODELS = Slots()


def change_between(
    before: Slots, after: Slots, catalogue: Catalogue, budgets: Integers, renewed: Collection[int] = ()
) -> Change:
    """The change between the models in use before and after; `catalogue` has all slots.

    Those in `renewed` slots went back to earlier versions: to a policy, they are new.
    """
    after = after.within(len(catalogue))
    place = {slot: index for index, slot in enumerate(before.used.tolist()) if slot not in renewed}
    kept = np.array([place.get(slot, -1) for slot in after.used.tolist()])
    same = np.array_equal(before.used, after.used) and bool((kept >= 0).all())
    return Change(after.catalogue(catalogue), budgets, kept, same)


def padded(values: AnyArray, count: int, axis: int, fill: float) -> AnyArray:
    """An array by slot with further slots at the end of an axis."""
    missing = count - values.shape[axis]
    if missing <= 0:
        return values
    shape = list(values.shape)
    shape[axis] = missing
    return np.concatenate([values, np.full(shape, fill, dtype=values.dtype)], axis=axis)
