"""Runs in which clients and models come and go: the fused simulator against the loopback, and what events must be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ofms.core.errors import InvalidInput
from ofms.core.events import Event
from ofms.data.stream import Stream
from ofms.report.page import headline
from ofms.runs.cell_file import write_cell
from ofms.runs.events import clients_of
from ofms.runs.result import load
from ofms.simulator.api import simulate
from ofms.simulator.exchange import Exchange
from ofms.simulator.phases import Phases, phases_of
from ofms.simulator.simulation import Simulation, make_simulation
from tests.changing import EVENTS, changing_setup
from tests.policy_settings import SETTINGS
from tests.problems import PROBLEMS


def run(
    problem: str, phases: Phases, *, loopback: bool, dtype: torch.dtype = torch.float64
) -> tuple[list[Exchange], list[dict[str, torch.Tensor]]]:
    dictionary, stream = PROBLEMS[problem]()
    first = phases.first
    simulation = make_simulation(
        first.built, first.fleet, dictionary, stream, seed=5, dtype=dtype, loopback=loopback, phases=phases
    )
    return list(simulation.exchanges()), simulation.parameters()


def both(
    problem: str, name: str, events: Sequence[Event], interval: int, **settings: Any
) -> tuple[list[Exchange], list[Exchange]]:
    phases = Phases.of(changing_setup(problem, name, events, interval, **settings), events)
    (fused, mine), (loopback, theirs) = (run(problem, phases, loopback=each) for each in (False, True))
    for one, other in zip(mine, theirs, strict=True):
        for key, tensor in one.items():
            assert tensor == pytest.approx(other[key], rel=1e-4, abs=1e-6)
    return fused, loopback


@pytest.mark.parametrize(
    ("name", "interval"),
    [*((name, 2) for name in SETTINGS), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in SETTINGS)],
)
def test_simulator_and_loopback_agree_on_a_fleet_that_changes(name: str, interval: int) -> None:
    fused, loopback = both("regression", name, EVENTS, interval)
    assert len(fused) == len(loopback)
    for one, other in zip(fused, loopback, strict=True):
        assert one.span == other.span
        assert one.plan.held.tolist() == other.plan.held.tolist()
        assert one.plan.prediction_weights == pytest.approx(other.plan.prediction_weights, abs=1e-6)
        assert one.grants.uploads.tolist() == other.grants.uploads.tolist()
        assert one.scores == pytest.approx(other.scores, rel=1e-6, abs=1e-6)
        for direction in ("down", "up", "held"):
            assert getattr(one.traffic, direction).tolist() == getattr(other.traffic, direction).tolist()


@pytest.mark.parametrize("name", SETTINGS)
def test_only_clients_and_models_of_the_fleet_take_part(name: str) -> None:
    phases = Phases.of(changing_setup("regression", name, EVENTS, 1), EVENTS)
    held = np.zeros(6, dtype=np.bool_)
    for exchange in run("regression", phases, loopback=False)[0]:
        assert exchange.present is not None
        clients, models = exchange.present
        number = exchange.index
        assert clients.tolist() == [number < 9, True, True, True, True, number >= 4]
        assert models.tolist() == [number < 7, True, True, True, True, number >= 4]
        assert not exchange.plan.held[:, ~models].any()
        assert not exchange.plan.held[~clients].any()
        assert exchange.expected_weights[clients].sum(axis=1) == pytest.approx(1)
        held |= exchange.plan.held[clients].any(axis=0)
    if name not in ("fed-omd", "perfedavg", "mab", "fed-poe", "explore-then-commit"):
        assert held[5], "a new model is visited"


@pytest.mark.parametrize("name", ["ofms-ft", "late-hedge"])
def test_the_policy_changes_during_a_run(name: str) -> None:
    other = "late-hedge" if name == "ofms-ft" else "ofms-ft"
    settings = (
        {"learning_rate": 0.5, "fine_tuning_rate": 0.05} if other == "ofms-ft" else {"window": 6, "outside": "drawn"}
    )
    events = [Event(exchange=8, policy=other, settings=settings), Event(exchange=12, bandwidth="300%")]
    fused, loopback = both("regression", name, events, 1)
    for one, onto in zip(fused, loopback, strict=True):
        assert one.plan.held.tolist() == onto.plan.held.tolist()
    assert (fused[8].expected_weights.std(axis=1) < 1e-9).all(), "nothing is known to the new policy"


def test_an_interval_changes_during_a_run() -> None:
    events = [Event(exchange=4, interval=3)]
    fused, loopback = both("regression", "late-hedge", events, 1)
    spans = [each.span for each in fused]
    assert spans == [each.span for each in loopback]
    assert spans == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 7), (7, 10), (10, 13), (13, 16), (16, 19), (19, 20)]
    for one, other in zip(fused, loopback, strict=True):
        assert one.plan.held.tolist() == other.plan.held.tolist()


def test_the_doubling_trick_begins_anew_with_another_horizon() -> None:
    setup = changing_setup("regression", "ofms-ft", [], 1, learning_rate="tuned", fine_tuning_rate="1/sqrt(T)")
    phases = Phases.of(setup, [], doubling=3)
    assert [(event.exchange, event.rounds) for event, _ in phases.later] == [(3, 6), (9, 12)]
    rates = [each.built.local.rate for each in (phases.first, *(after for _, after in phases.later))]  # type: ignore[union-attr]
    assert rates == pytest.approx([1 / np.sqrt(3), 1 / np.sqrt(6), 1 / np.sqrt(12)])
    fused, loopback = (run("regression", phases, loopback=each)[0] for each in (False, True))
    for one, other in zip(fused, loopback, strict=True):
        assert one.plan.held.tolist() == other.plan.held.tolist()
    for exchange in (0, 3, 9):
        assert (fused[exchange].expected_weights.std(axis=1) < 1e-9).all()
    assert (fused[5].expected_weights.std(axis=1) > 0).any()


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"retire": ("netX",)}, "retire = netX: no such model is in use; name one of net0"),
        ({"retire": ("net0", "net1", "net2", "net3", "net4")}, "at least 2 models; add another one first"),
        ({"add": ("net1",)}, "add = net1: it is already in use"),
        ({"add": ("netX",)}, "add = netX: the dictionary has no such model"),
        ({"join": {1: 10**6}}, "join = 1: it is already in the fleet"),
        ({"join": {9: 10**6}}, "join = 9: there is no such client"),
        ({"leave": (9,)}, "leave = 9: it is not in the fleet; its clients are 0, 1"),
        ({"leave": (0, 1, 2, 3, 4, 5)}, "no client would be left"),
        ({"budget": {0: 10}}, "budget = 10 bytes: it must hold the two largest models"),
        ({"interval": 0}, "interval = 0: give at least 1"),
        ({"policy": "unknown"}, "policy = unknown: use one of"),
        ({"settings": {"speed": 1}}, "set = speed: late-hedge has"),
        ({"bandwidth": "1B"}, "bandwidth = 1 bytes: a client may have to upload"),
    ],
)
def test_an_impossible_event_is_refused_before_the_run(event: dict[str, Any], message: str) -> None:
    setup = changing_setup("regression", "late-hedge", [], 1)
    with pytest.raises(InvalidInput) as caught:
        Phases.of(setup, [Event(exchange=3, **event)])
    assert message in str(caught.value)


def test_what_left_does_not_come_back() -> None:
    setup = changing_setup("regression", "late-hedge", [], 1)
    for first, second, message in (
        ({"leave": (1,)}, {"join": {1: 10**6}}, "join = 1: it left before; name another client"),
        ({"retire": ("net1",)}, {"add": ("net1",)}, "add = net1: it was retired; add a model under another name"),
    ):
        with pytest.raises(InvalidInput, match=message):
            Phases.of(setup, [Event(exchange=2, **first), Event(exchange=3, **second)])


def test_an_event_after_the_last_exchange_is_refused() -> None:
    setup = changing_setup("regression", "late-hedge", [], 1)
    with pytest.raises(InvalidInput, match="exchange = 20: the last one of the run is 19"):
        Phases.of(setup, [Event(exchange=20, retire=("net0",))])


def test_an_event_that_changes_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="event = exchange 3: it changes nothing"):
        Event(exchange=3)


@pytest.mark.parametrize("loopback", [False, True])
@pytest.mark.parametrize("stop", [4, 5, 8])
def test_a_run_with_events_resumes_with_the_same_bits(stop: int, loopback: bool) -> None:
    phases = Phases.of(changing_setup("regression", "late-hedge", EVENTS, 2), EVENTS)
    dictionary, stream = PROBLEMS["regression"]()
    first = phases.first

    def make() -> Simulation:
        given: dict[str, Any] = {"seed": 5, "loopback": loopback, "phases": phases}
        return make_simulation(first.built, first.fleet, dictionary, stream, **given)

    whole, begun, resumed = make(), make(), make()
    expected = list(whole.exchanges())
    for exchange, _ in zip(begun.exchanges(), range(stop), strict=False):
        assert exchange.index < stop
        if exchange.index == stop - 1:
            break
    arrays, values = begun.flatten()
    resumed.unflatten({name: np.array(array) for name, array in arrays.items()}, dict(values))
    for one, other in zip(resumed.exchanges(), expected[stop:], strict=True):
        assert one.scores.tobytes() == other.scores.tobytes()
        assert one.plan.held.tolist() == other.plan.held.tolist()


def test_a_model_is_compared_on_the_rounds_in_which_it_and_the_client_are_there() -> None:
    dictionary, stream = PROBLEMS["regression"]()
    largest = int(dictionary.catalogue().storage.max())
    events = [
        {"exchange": 3, "join": [5], "add": ["net5"]},
        {"exchange": 8, "retire": ["net0"], "leave": [1], "budget": {"2": f"{2 * largest}B"}},
    ]
    result = simulate(models=dictionary, stream=stream, budget="3", bandwidth="100%", interval=2, events=events, seed=3)
    assert result.clients["rounds"].tolist() == [20, 16, 20, 20, 20, 14]
    phases = phases_of(result.config, result.config.fleet(dictionary.catalogue()))
    assert phases is not None
    incurred, hindsight = np.zeros((6, 6)), np.zeros((6, 6))
    built, fleet = phases.first.built, phases.first.fleet
    for exchange in make_simulation(built, fleet, dictionary, stream, seed=3, phases=phases).exchanges():
        assert exchange.present is not None
        both = exchange.present[0][:, None] & exchange.present[1]
        assert exchange.prediction_losses is not None
        incurred += both * exchange.prediction_losses.sum(axis=1)[:, None]
        hindsight += np.where(both, exchange.losses.sum(axis=1), 0)
    assert result.clients["regret"] == pytest.approx((incurred - hindsight).max(axis=1))
    assert result.figures["events"][0] == "exchange 3: client 5 joins; model net5 is added"
    assert "rounds in which both were in the fleet" in str(result)
    assert result.bound is None


@pytest.mark.parametrize(
    ("name", "events", "never"),
    [
        ("ofms-ft", [{"exchange": 0, "leave": ["0-2"]}], [0, 1, 2]),
        ("late-hedge", [{"exchange": 3, "join": [4]}, {"exchange": 9, "leave": [4, 1]}], []),
        ("late-hedge", [{"exchange": 0, "leave": [4]}, {"exchange": 4, "join": [0], "add": ["net3"]}], [4]),
        ("fed-poe", [{"exchange": 4, "join": [2]}, {"exchange": 4, "leave": [2, 3]}], [2]),
    ],
)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_means_of_a_run_are_those_of_its_last_round(
    problem: str, name: str, events: list[dict[str, Any]], never: list[int], tmp_path: Path
) -> None:
    """A client that was never in the fleet has no figures: it is not one with a score of 0."""
    dictionary, stream = PROBLEMS[problem]()
    given: dict[str, Any] = {"budget": "3", "bandwidth": "100%", "policy": name} | SETTINGS[name]
    result = simulate(models=dictionary, stream=stream, events=events, seed=3, out=tmp_path / "run", **given)
    assert np.flatnonzero(~result.took_part).tolist() == never
    for read in (result, load(tmp_path / "run")):
        for name in ("mean", "std", "regret", "frozen"):
            if name in read.rounds:
                assert read.figures[name] == pytest.approx(read.rounds[name][-1], rel=1e-12), name
        assert (read.mean, read.std) == (read.figures["mean"], read.figures["std"])
        for row in (read.score, read.regret(), read.random_model, read.best_in_hindsight):
            assert row is not None
            assert np.flatnonzero(np.isnan(row)).tolist() == never
        assert "nan" not in str(read)
        models = read.to_pandas("models")
        assert models["held_share"].to_numpy() == pytest.approx(
            np.delete(read.clients["held_share"], never, axis=0).mean(axis=0)
        )
        for name, value in headline(read):
            assert "nan" not in value, name


def test_a_cell_of_a_run_with_events_keeps_its_means(tmp_path: Path) -> None:
    dictionary, stream = PROBLEMS["regression"]()
    events = [{"exchange": 0, "leave": ["0-2"]}]
    result = simulate(models=dictionary, stream=stream, budget="3", bandwidth="100%", events=events)
    write_cell(result, tmp_path / "cell.json", config=result.config, command="ofms run run.toml")
    cell = load(tmp_path / "cell.json")
    assert cell.took_part.tolist() == [False, False, False, True, True, True]
    assert cell.mean == cell.figures["mean"] == pytest.approx(result.mean, rel=1e-6)
    assert cell.figures["regret"] == pytest.approx(result.figures["regret"], rel=1e-6)


@pytest.mark.parametrize("given", [["1-2"], [1], ["0"], ["1", "2-3"]])
def test_numbers_of_clients_that_are_named_by_other_numbers_are_refused(given: list[int | str]) -> None:
    """A range would be of positions, and a name beside it of another client."""
    with pytest.raises(InvalidInput, match=r'leave = .*: clients are named by other numbers here; .*, such as "1"'):
        clients_of("leave", given, ["1", "2", "3", "4"], 4)
    assert clients_of("leave", ["1", "3"], ["1", "2", "3", "4"], 4) == (0, 2)
    assert clients_of("leave", ["1-2"], ["1", "1-2"], 2) == (1,)
    assert clients_of("leave", ["1-2", 0, "0"], ["0", "1", "2"], 3) == (1, 2, 0)


def test_drift_swaps_the_samples_of_clients_from_an_event_on() -> None:
    dictionary, stream = PROBLEMS["regression"]()
    given: dict[str, Any] = {"models": dictionary, "budget": "3", "bandwidth": "100%", "interval": 2, "seed": 3}
    result = simulate(stream=stream, events=[{"exchange": 6, "drift": [0, "2-3"]}], **given)
    x, y = stream.x.copy(), stream.y.copy()
    for client, source in ((0, 2), (2, 3), (3, 0)):
        x[client, 12:], y[client, 12:] = stream.x[source, 12:], stream.y[source, 12:]
    expected = simulate(stream=Stream(x, y, "regression", changes=(12,)), **given)
    assert result.score.tolist() == expected.score.tolist()
    assert result.figures["changes"] == [12]
    assert result.figures["dynamic_regret"] == expected.figures["dynamic_regret"]


def test_a_run_with_events_is_repeated_from_its_file(tmp_path: Path) -> None:
    dictionary, stream = PROBLEMS["regression"]()
    given: dict[str, Any] = {"models": dictionary, "stream": stream}
    events = [{"exchange": 3, "retire": ["net0"], "budget": {"1": 4}, "settings": {"window": 6}}]
    first = simulate(budget="3", bandwidth="100%", interval=2, events=events, doubling=9, out=tmp_path / "run", **given)
    again = simulate(tmp_path / "run" / "config.toml", **given)
    assert again.config.events == first.config.events
    assert again.config.doubling == 9
    assert again.score.tolist() == first.score.tolist()


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"exchange": 2, "retire": ["netX"]}, "retire = netX: no such model"),
        ({"exchange": 2, "join": ["pump"]}, "join = pump: there is no such client; give a number from 0 to 5"),
        ({"exchange": 2, "leave": [17]}, "leave = 17: there is no such client"),
        ({"exchange": 2, "drift": [1]}, "drift = [1]: clients see each other's samples"),
        ({"exchange": 2, "retires": ["net0"]}, "unknown field 'retires'"),
        ({"exchange": 2}, "event = exchange 2: it changes nothing"),
        ({"exchange": 2, "budget": {"1": "much"}}, "budget = much: write '5'"),
    ],
)
def test_a_bad_event_is_one_line(event: dict[str, Any], message: str) -> None:
    dictionary, stream = PROBLEMS["regression"]()
    with pytest.raises(InvalidInput) as caught:
        simulate(models=dictionary, stream=stream, budget="3", bandwidth="100%", events=[event])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
