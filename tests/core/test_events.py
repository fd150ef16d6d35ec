"""Changes of a fleet: their order, and how people read them."""

from __future__ import annotations

import pytest

from ofms.core.errors import InvalidInput
from ofms.core.events import Event, doubled, in_order


def test_events_are_sorted_by_exchange_and_keep_their_order_within_one() -> None:
    late, first, second = Event(exchange=7, rounds=3), Event(exchange=2, leave=(1,)), Event(exchange=2, leave=(0,))
    assert in_order([late, first, second]) == (first, second, late)
    assert in_order([late, second, first]) == (second, first, late)


def test_every_change_is_described() -> None:
    event = Event(
        exchange=0,
        leave=(1, 2),
        join={3: 100},
        budget={0: 50, 3: 60},
        retire=("old",),
        add=("new", "newer"),
        bandwidth="10 MB",
        interval=4,
        policy="mab",
        settings={"exploration": 0.1},
        rounds=80,
        deadline=2.5,
    )
    assert event.describe({2: "pump", 3: "fan"}).split("; ") == [
        "client 1 leaves",
        "pump leaves",
        "fan joins",
        "client 0 has 50 bytes",
        "fan has 60 bytes",
        "model old is retired",
        "model new is added",
        "model newer is added",
        "policy = mab",
        "bandwidth = 10 MB",
        "interval = 4",
        "deadline = 2.5",
        "exploration = 0.1",
        "the policy starts anew with rates for 80 rounds",
    ]
    assert Event(exchange=0, join={3: 100}).describe() == "client 3 joins"


@pytest.mark.parametrize(("change", "anew"), [("policy", "mab"), ("settings", {}), ("rounds", 1)])
def test_another_policy_setting_or_horizon_starts_anew(change: str, anew: object) -> None:
    # `settings = {}` alone changes nothing, so another change stands beside it.
    assert Event(exchange=0, leave=(1,), **{change: anew}).anew  # type: ignore[arg-type]
    assert not Event(exchange=0, leave=(1,)).anew


@pytest.mark.parametrize("nothing", [{}, {"leave": ()}, {"join": {}}, {"settings": {}}])
def test_an_event_that_changes_nothing_is_rejected(nothing: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=r"^event = exchange 3: it changes nothing"):
        Event(exchange=3, **nothing)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"leave": (0,)}, {"interval": 0}, {"rounds": 1}, {"deadline": 0.0}])
def test_one_change_is_enough_from_the_first_exchange_on(change: dict[str, object]) -> None:
    assert Event(exchange=0, **change).exchange == 0  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^exchange = -1"):
        Event(exchange=-1, **change)  # type: ignore[arg-type]


def test_stretches_double() -> None:
    """Rounds 0 to 2, 3 to 8, 9 to 20, ... have 3, 6, 12, ... rounds."""
    assert [doubled(3, first) for first in range(10)] == [3] * 3 + [6] * 6 + [12]
    assert doubled(1, 0) == 1
    with pytest.raises(InvalidInput, match="doubling = 0"):
        doubled(0, 0)


def test_models_that_go_back_are_described() -> None:
    event = Event(exchange=3, rollback={"large": 60, "small": 0})
    assert "model large goes back to its version before exchange 60" in event.describe()
    assert "model small goes back to its first version" in event.describe()
