"""Exchanges of a coordinator: validation of messages, devices that miss an exchange; no network in it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ofms
from ofms.core.schedule import Schedule
from ofms.device.device import Device
from ofms.policies.fleet import Fleet
from ofms.simulator.loopback import LoopbackSimulation
from ofms.storage.envelope import Envelope, decode, encode
from tests.bench import INTERVAL, ROUNDS, SEED, Bench
from tests.problems import policy_of
from tests.tampering import a_delta, changed, tampered, without_deltas


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    made = Bench(tmp_path)
    yield made
    made.close()


WRONG = ["not finite", "a wrong shape", "a stale version", "an unknown model", "too large", "no weight"]
WRONG += ["another kind of number", "a weight beyond all numbers"]
WRONG += ["too much weight", "a weight that is no number", "a parameter too few", "no report"]


@pytest.mark.parametrize("wrong", WRONG)
def test_an_update_that_must_not_count_does_not(wrong: str, bench: Bench, tmp_path: Path) -> None:
    envelopes = bench.grant()
    envelope, message = tampered(envelopes[1])[wrong]
    for client in (0, 2):
        assert bench.coordinator.receive(client, envelopes[client]) == []
    refused = bench.coordinator.receive(1, envelope)
    assert refused
    assert any(re.search(message, line) for line in refused), refused
    bench.coordinator.close()
    other = Bench(tmp_path / "other")
    for client, each in other.grant().items():
        spoilt = {"a wrong shape", "a parameter too few"}
        if client != 1:
            other.coordinator.receive(client, each)
        elif wrong in spoilt:
            # Only one model's update is spoilt, the others count.
            model, _ = a_delta(each)
            arrays = {key: array for key, array in each.arrays.items() if not key.startswith(f"delta.{model}.")}
            arrays["report.updated"] = arrays["report.updated"].copy()
            arrays["report.updated"][0, model] = False
            other.coordinator.receive(client, Envelope(each.kind, each.values, arrays))
        else:
            other.coordinator.receive(client, without_deltas(each))
    other.coordinator.close()
    other.close()
    assert bench.parameters() == other.parameters()
    assert bench.coordinator.version.tolist() == other.coordinator.version.tolist()


def test_messages_that_are_refused_whole(bench: Bench) -> None:
    envelopes = bench.grant()
    before = bench.parameters()
    wanted = np.ones_like(envelopes[0].arrays["request.wanted"])
    for envelope, message in (
        (changed(envelopes[0], client=1), "this node is client 0"),
        (changed(envelopes[0], exchange=0), "exchange 1 is asked for now"),
        (changed(envelopes[0], exchange=2), "exchange 1 is asked for now"),
        (changed(envelopes[0], revision="other"), "another dictionary"),
        (changed(envelopes[0], deployment="other"), "another deployment"),
        (changed(envelopes[0], {"request.wanted": wanted}), "bytes wanted"),
        (changed(envelopes[0], {"request.wanted": wanted[:, :2]}), "give"),
        (changed(envelopes[0], {"report.updated": np.zeros((1, 6))}), "give"),
        (changed(envelopes[0], held_bytes="poem"), "bytes held"),
        (changed(envelopes[0], held_bytes=10**9), "bytes held"),
        (Envelope("poem", envelopes[0].values), "a server takes requests"),
    ):
        with pytest.raises(ofms.InvalidInput, match=message):
            bench.coordinator.receive(0, envelope)
    bench.coordinator.receive(0, envelopes[0])
    with pytest.raises(ofms.InvalidInput, match="a duplicate"):
        bench.coordinator.receive(0, envelopes[0])
    assert bench.parameters() == before, "nothing counts before the exchange is closed"


def test_the_order_of_messages_does_not_matter(tmp_path: Path) -> None:
    found = []
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        bench = Bench(tmp_path / "-".join(map(str, order)))
        for _ in range(3):
            envelopes = bench.grant()
            for client in order:
                bench.coordinator.receive(client, envelopes[client])
            bench.coordinator.close()
        found.append(bench.parameters())
        bench.close()
    assert found[0] == found[1] == found[2]
    assert found[0] != [{name: t.flatten().tolist() for name, t in m.tensors.items()} for m in bench.dictionary.models]


def test_a_device_that_misses_exchanges_comes_back_with_what_it_learnt(bench: Bench) -> None:
    for client, envelope in bench.grant().items():
        if client != 1:
            bench.coordinator.receive(client, envelope)
    bench.coordinator.close()
    device = bench.devices[1]
    learnt = device._state.memory.state.policy.cumulative_losses.copy()
    assert learnt.any()
    envelopes = bench.grant()
    assert sorted(envelopes) == [0, 2], "who did not answer is not in the next one"
    device.receive(bench.coordinator.welcome(1))
    answer = device.predict(bench.stream.x[1, 0])
    assert answer.id == INTERVAL, "meanwhile it goes on predicting"
    assert (device._state.memory.state.policy.cumulative_losses == learnt).all()
    for client, envelope in envelopes.items():
        bench.coordinator.receive(client, envelope)
    assert bench.coordinator.receive(1, bench.envelope(1)) == []
    bench.coordinator.close()
    device.receive(bench.coordinator.welcome(1))
    assert sorted(bench.grant()) == [0, 1, 2]
    assert device.exchange == 2


def test_a_frozen_dictionary_stays_as_it_is(bench: Bench) -> None:
    before = bench.parameters()
    bench.coordinator.frozen = True
    for _ in range(2):
        envelopes = bench.grant()
        assert not any(key.startswith("delta.") for envelope in envelopes.values() for key in envelope.arrays)
        for client, envelope in envelopes.items():
            assert bench.coordinator.receive(client, envelope) == []
        bench.coordinator.close()
    assert bench.parameters() == before
    assert bench.coordinator.version.tolist() == [0] * 6


def test_a_model_whose_version_is_unchanged_is_not_sent_again(bench: Bench) -> None:
    bench.coordinator.frozen = True
    sent, granted = 0, 0
    for _ in range(5):
        grants = bench.coordinator.open()
        for client, content in grants.items():
            before = set(bench.devices[client].holding)
            bench.devices[client].receive(content)
            models = {int(model) for model in decode(content).part("model")}
            held = set(bench.devices[client].holding)
            assert models == held - before
            sent, granted = sent + len(models), granted + len(held)
        for client in grants:
            bench.coordinator.receive(client, bench.see(client))
        bench.coordinator.close()
    assert sent < granted


def test_tuned_rates_are_the_fleets_and_not_one_devices(tmp_path: Path) -> None:
    """Tuned rates depend on the whole fleet."""
    bench = Bench(tmp_path, settings={}, largest_update=1e9)
    fleet = Fleet(
        bench.dictionary.catalogue(), bench.budgets, bench.coordinator.fleet.bandwidth, Schedule(ROUNDS, INTERVAL)
    )
    policy = policy_of("ofms-ft", fleet)
    simulation = LoopbackSimulation(policy, fleet, bench.dictionary, bench.stream, seed=SEED, hindsight=False)
    for expected in simulation.exchanges():
        for client, envelope in bench.grant().items():
            assert bench.devices[client].holding == np.flatnonzero(expected.plan.held[client]).tolist()
            assert bench.coordinator.receive(client, envelope) == []
        bench.coordinator.close()
    for mine, theirs in zip(bench.coordinator.tensors, simulation.parameters(), strict=True):
        for name in mine:
            assert mine[name].numpy() == pytest.approx(theirs[name].numpy(), abs=1e-5)
    bench.close()


def test_a_device_with_less_memory_than_the_fleet_counts_on_says_so(bench: Bench, tmp_path: Path) -> None:
    welcome = bench.coordinator.welcome(0)
    with Device(tmp_path / "small", budget=100, mail=False) as device:
        with pytest.raises(ofms.InvalidInput, match="its fleet counts on"):
            device.receive(welcome)
        assert device.collect() is None
    large = int(bench.budgets[0]) + 1000
    with Device(tmp_path / "large", budget=large, mail=False) as device:
        device.receive(welcome)
        assert decode(device.collect() or b"").values["client"] == 0


def test_a_server_that_went_back_in_time_is_followed(bench: Bench) -> None:
    old = bench.coordinator.welcome(0)
    for _ in range(2):
        for client, envelope in bench.grant().items():
            bench.coordinator.receive(client, envelope)
        bench.coordinator.close()
    device = bench.devices[0]
    device.predict(bench.stream.x[0, 0])
    assert device.exchange == 1
    values = decode(old).values | {"exchange": 1}
    device.receive(encode(Envelope("welcome", values)))
    assert (device.exchange, device.dropped) == (0, 1)
    request = decode(device.collect() or b"")
    assert request.values["exchange"] == 1
    assert (request.part("request")["holding"] == -1).all(), "its versions are not those of the same numbers"
    assert device.holding
    assert device.predict(bench.stream.x[0, 0]).id == 2 * INTERVAL + 1


def test_losses_count_where_the_server_learns_from_them_and_nowhere_else(tmp_path: Path, bench: Bench) -> None:
    envelopes = bench.grant()
    extra = changed(envelopes[0], {"report.losses": np.full((1, 6), 0.5)})
    for client, envelope in {**envelopes, 0: extra}.items():
        assert bench.coordinator.receive(client, envelope) == []
    bench.coordinator.close()
    mab = Bench(tmp_path / "mab", policy="mab", settings={})
    envelopes = mab.grant()
    losses = envelopes[0].arrays["report.losses"]
    held = ~np.isnan(losses)
    for wrong in (np.nan, -1.0, 1e308, np.inf):
        with pytest.raises(ofms.InvalidInput, match="losses"):
            mab.coordinator.receive(0, changed(envelopes[0], {"report.losses": np.where(held, wrong, losses)}))
    missing = {key: array for key, array in envelopes[0].arrays.items() if key != "report.losses"}
    with pytest.raises(ofms.InvalidInput, match="losses missing"):
        mab.coordinator.receive(0, Envelope("request", envelopes[0].values, missing))
    for client, envelope in envelopes.items():
        assert mab.coordinator.receive(client, envelope) == []
    mab.coordinator.close()
    assert np.isfinite(mab.coordinator.state.policy.cumulative_losses).all()
    mab.close()


def test_more_to_upload_than_ever_gets_through_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.coordinator.fleet = Fleet(
        bench.coordinator.fleet.catalogue, bench.budgets, 100, bench.coordinator.fleet.schedule
    )
    with pytest.raises(ofms.InvalidInput, match="the bandwidth is 100"):
        bench.coordinator.receive(0, bench.envelope(0))
    bench.close()


def test_a_model_that_would_stop_being_finite_stays_as_it_is(bench: Bench) -> None:
    envelopes = bench.grant()
    before = bench.parameters()
    for client, envelope in envelopes.items():
        bench.coordinator.receive(client, envelope)
    assert bench.coordinator.opened is not None
    answer = bench.coordinator.opened.answers[0]
    model = min(answer.updates)
    for delta in answer.updates[model].delta.values():
        delta.fill_(3e38)
    object.__setattr__(answer.updates[model], "weight", 1e30)
    assert bench.coordinator.close() == [model]
    assert bench.parameters()[model] == before[model]
    assert bench.parameters() != before, "the others count"


@pytest.mark.parametrize("field", ["uploads", "held"])
def test_an_update_that_was_not_asked_for_does_not_count(field: str, bench: Bench) -> None:
    envelopes = bench.grant()
    before = bench.parameters()
    assert bench.coordinator.opened is not None
    own = bench.coordinator.opened.grants[1]
    bench.coordinator.opened.grants[1] = replace(own, **{field: np.zeros_like(getattr(own, field))})
    refused = bench.coordinator.receive(1, envelopes[1])
    assert refused
    assert all("was not to upload it" in line for line in refused)
    bench.coordinator.close()
    assert bench.parameters() == before
