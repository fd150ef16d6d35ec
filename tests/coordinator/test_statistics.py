"""What devices report about their predictions: validated, counted and shown; nothing is learnt from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.coordinator.statistics import MOST_RECENT, read_statistics
from ofms.coordinator.status import read_status
from ofms.core.errors import InvalidInput
from ofms.device.device import Device
from ofms.device.state import Reveals
from ofms.storage.envelope import Envelope, decode
from tests.deployments import DirectFleet, make_fleet, parameters
from tests.devices import budgets_for, granted_device, label_samples, problem


def open_fleet(folder: Path, **changes: Any) -> tuple[PersistentCoordinator, DirectFleet]:
    persistence = PersistentCoordinator(Deployment(make_fleet(folder / "fleet", **changes)))
    fleet = DirectFleet(folder / "devices")
    return persistence, fleet


@pytest.mark.parametrize(
    ("policy", "settings"), [("ofms-ft", {}), ("late-hedge", {}), ("late-hedge", {"fine_tuned": "used"})]
)
def test_a_report_has_the_squared_errors_of_predictions(policy: str, settings: dict[str, Any], tmp_path: Path) -> None:
    device, _ = granted_device(tmp_path, policy, **settings)
    _, stream = problem()
    with device:
        answers = [device.predict(x) for x in stream.x[0][:4]]
        weights = device._state.memory.plans[0].prediction_weights[0]
        for answer, y in zip(answers, stream.y[0], strict=False):
            device.feedback(answer.id, float(y))
        found = decode(device.collect() or b"").values["statistics"]
    errors = [(float(answer.value) - float(y)) ** 2 for answer, y in zip(answers, stream.y[0], strict=False)]
    assert found["samples"] == 4
    assert found["score"] == pytest.approx(sum(errors), rel=1e-12)
    if settings:
        assert found["use"] == pytest.approx(weights.tolist()), "its updates' weights reveal as much"
    else:
        assert "use" not in found, "the device does not reveal which model it chose"


def test_the_score_survives_a_kill(tmp_path: Path) -> None:
    """Labels are replayed from the journal, and scored again."""
    device, _ = granted_device(tmp_path, "late-hedge")
    _, stream = problem()
    label_samples(device, stream.x[0], stream.y[0], range(3))
    before = (device._state.memory.scored, device._state.memory.score)
    device.close()
    with Device(tmp_path / "0", budget=int(budgets_for(problem()[0])[0]), mail=False) as again:
        assert again._state.memory.scored == before[0] == 3
        assert again._state.memory.score == pytest.approx(before[1], rel=1e-12)


@pytest.mark.parametrize(("reveals", "expected"), [("nothing", set()), ("score", {"samples", "score"}), ("use", set())])
def test_a_device_decides_what_it_reveals(reveals: Any, expected: set[str], tmp_path: Path) -> None:
    device, _ = granted_device(tmp_path, "ofms-ft")
    device.close()
    _, stream = problem()
    with Device(tmp_path / "0", budget=device.budget, mail=False, reveals=reveals) as again:
        label_samples(again, stream.x[0], stream.y[0], range(4))
        found: dict[str, Any] = decode(again.collect() or b"").values.get("statistics", {})
    if reveals == "use":
        assert sum(found["use"]) == pytest.approx(1.0)
    else:
        assert set(found) == expected


def test_another_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="reveals = all: use one of nothing, score, use"):
        Device(tmp_path / "store", budget=10, reveals="all")  # type: ignore[arg-type]


def test_the_status_shows_scores_and_use(tmp_path: Path) -> None:
    persistence, fleet = open_fleet(tmp_path)
    fleet.join(persistence)
    for device in fleet.devices[:2]:
        device._state.reveals = "use"
    for _ in range(2):
        fleet.exchange(persistence)
    persistence.close()
    status = read_status(persistence.folder)
    assert [each["exchange"] for each in status["recent"]] == [0, 1]
    last = status["recent"][-1]
    assert (last["granted"], last["answered"], last["samples"]) == (3, 3, 6)
    devices = status["devices"]
    assert last["score"] == pytest.approx(sum(device["last_score"] for device in devices) / 6)
    assert [device["samples"] for device in devices] == [4, 4, 4]
    assert status["use"]["reporting"] == 2
    assert sum(status["use"]["used"].values()) == pytest.approx(1.0)
    held = np.mean([[model in device.holding for model in range(6)] for device in fleet.devices], axis=0)
    assert list(status["use"]["held"].values()) == pytest.approx(held.tolist())
    assert list(status["use"]["held"]) == status["models"]
    again = PersistentCoordinator(Deployment(persistence.folder))
    assert again.records.recent == persistence.records.recent, "kept over a restart"
    assert again.records.use == persistence.records.use
    again.close()
    fleet.close()


def test_nothing_is_learnt_from_statistics(tmp_path: Path) -> None:
    """The same dictionary, whatever devices reveal."""
    results = []
    choices: tuple[Reveals, ...] = ("nothing", "use")
    for reveals in choices:
        persistence, fleet = open_fleet(tmp_path / reveals)
        for device in fleet.devices:
            device._state.reveals = reveals
        fleet.join(persistence)
        fleet.exchange(persistence)
        fleet.exchange(persistence)
        results.append(parameters(persistence))
        persistence.close()
        fleet.close()
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "values",
    [
        "many",
        {"samples": -1, "score": 0.0},
        {"samples": 10**12, "score": 0.0},
        {"samples": 1, "score": float("inf")},
        {"samples": 1, "score": -0.5},
        {"samples": 1, "score": 2.0},
        {"samples": 1, "score": "1"},
        {"samples": 1, "score": 0.5, "note": "<script>"},
        {"samples": 1, "score": 0.5, "use": [1.0]},
        {"samples": 1, "score": 0.5, "use": [2.0, -1.0, 0.0]},
        {"samples": 1, "score": 0.5, "use": [float("nan"), 1.0, 0.0]},
        {"samples": 1, "score": 0.5, "use": ["1", 0, 0]},
        {"score": 0.5},
    ],
)
def test_faulty_statistics_are_refused(values: Any) -> None:
    with pytest.raises(InvalidInput, match="statistics"):
        read_statistics(Envelope("request", {"statistics": values}), 3, "classification")


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text() | st.integers(), st.lists, max_leaves=5))
def test_any_statistics_are_numbers_or_refused(value: Any) -> None:
    for values in (value, {"samples": value, "score": value}, {"samples": 1, "score": 1.0, "use": value}):
        refusal = ""
        try:
            found = read_statistics(Envelope("request", {"statistics": values}), 2, "regression")
        except InvalidInput as error:
            found, refusal = None, str(error)
        assert len(refusal.splitlines()) <= 1
        if found is not None:
            assert np.isfinite([found.samples, found.score, *(found.use or [])]).all()


def test_a_faulty_report_of_statistics_counts_otherwise(tmp_path: Path) -> None:
    persistence, fleet = open_fleet(tmp_path)
    fleet.join(persistence)
    for client, content in persistence.coordinator.open().items():
        fleet.devices[client].receive(content)
        fleet.label(client, range(2))
        envelope = fleet.envelope(client)
        if client == 1:
            envelope = Envelope(envelope.kind, {**envelope.values, "statistics": {"samples": 9}}, envelope.arrays)
        persistence.receive(client, envelope)
    persistence.close_exchange()
    assert [counts.refused for counts in persistence.records.counts] == [0, 1, 0]
    assert [counts.exchanges - counts.missed for counts in persistence.records.counts] == [1, 1, 1]
    assert persistence.records.recent[-1].samples == 4
    persistence.close()
    fleet.close()


def test_the_records_stay_bounded(tmp_path: Path) -> None:
    persistence, fleet = open_fleet(tmp_path)
    fleet.join(persistence)
    fleet.exchange(persistence)
    persistence.records.recent *= 2 * MOST_RECENT
    fleet.exchange(persistence)
    assert len(persistence.records.recent) == MOST_RECENT
    assert persistence.records.recent[-1].exchange == 1
    persistence.close()
    fleet.close()
