"""Exchanges of a coordinator without a network: validation of messages, devices that miss an exchange."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ofms
from ofms.core.schedule import Schedule
from ofms.device.device import Device
from ofms.policies.fleet import Fleet
from ofms.simulator.loopback import LoopbackSimulation
from ofms.storage.envelope import Envelope, decode, encode
from tests.local_fleet import INTERVAL, ROUNDS, SEED, LocalFleet
from tests.problems import policy_of
from tests.tampering import changed, first_delta, tampered, without_deltas


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalFleet]:
    made = LocalFleet(tmp_path)
    yield made
    made.close()


WRONG = ["not finite", "a wrong shape", "a stale version", "an unknown model", "too large", "no weight"]
WRONG += ["another dtype", "an infinite weight"]
WRONG += ["too much weight", "a weight of NaN", "a missing parameter", "an update without a report"]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_faulty_update_does_not_count(wrong: str, local: LocalFleet, tmp_path: Path) -> None:
    envelopes = local.grant()
    messages = tampered(envelopes[1])
    assert sorted(messages) == sorted(WRONG)
    envelope, message = messages[wrong]
    for client in (0, 2):
        assert local.coordinator.receive(client, envelopes[client]) == []
    refused = local.coordinator.receive(1, envelope)
    assert refused
    assert any(re.search(message, line) for line in refused), refused
    local.coordinator.close()
    other = LocalFleet(tmp_path / "other")
    for client, each in other.grant().items():
        spoilt = {"a wrong shape", "a missing parameter"}
        if client != 1:
            other.coordinator.receive(client, each)
        elif wrong in spoilt:
            # Only one model's update is spoilt, the others count.
            model, _ = first_delta(each)
            arrays = {key: array for key, array in each.arrays.items() if not key.startswith(f"delta.{model}.")}
            arrays["report.updated"] = arrays["report.updated"].copy()
            arrays["report.updated"][0, model] = False
            other.coordinator.receive(client, Envelope(each.kind, each.values, arrays))
        else:
            other.coordinator.receive(client, without_deltas(each))
    other.coordinator.close()
    other.close()
    assert local.parameters() == other.parameters()
    assert local.coordinator.version.tolist() == other.coordinator.version.tolist()


def test_a_faulty_message_is_refused_entirely(local: LocalFleet) -> None:
    envelopes = local.grant()
    before = local.parameters()
    wanted = np.ones_like(envelopes[0].arrays["request.wanted"])
    for envelope, message in (
        (changed(envelopes[0], client=1), "this node is client 0"),
        (changed(envelopes[0], exchange=0), "expected exchange 1"),
        (changed(envelopes[0], exchange=2), "expected exchange 1"),
        (changed(envelopes[0], revision="other"), "another dictionary"),
        (changed(envelopes[0], deployment="other"), "another deployment"),
        (changed(envelopes[0], {"request.wanted": wanted}), "bytes wanted"),
        (changed(envelopes[0], {"request.wanted": wanted[:, :2]}), "expected"),
        (changed(envelopes[0], {"report.updated": np.zeros((1, 6))}), "expected"),
        (changed(envelopes[0], held_bytes="poem"), "bytes held"),
        (changed(envelopes[0], held_bytes=10**9), "bytes held"),
        (Envelope("poem", envelopes[0].values), "a server accepts only requests"),
    ):
        with pytest.raises(ofms.InvalidInput, match=message):
            local.coordinator.receive(0, envelope)
    local.coordinator.receive(0, envelopes[0])
    with pytest.raises(ofms.InvalidInput, match="a duplicate"):
        local.coordinator.receive(0, envelopes[0])
    assert local.parameters() == before, "nothing counts before the exchange is closed"


def test_the_order_of_messages_does_not_matter(tmp_path: Path) -> None:
    found = []
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        local = LocalFleet(tmp_path / "-".join(map(str, order)))
        for _ in range(3):
            envelopes = local.grant()
            for client in order:
                local.coordinator.receive(client, envelopes[client])
            local.coordinator.close()
        found.append(local.parameters())
        local.close()
    assert found[0] == found[1] == found[2]
    assert found[0] != [{name: t.flatten().tolist() for name, t in m.tensors.items()} for m in local.dictionary.models]


def test_a_device_that_missed_an_exchange_returns_with_what_it_learnt(local: LocalFleet) -> None:
    for client, envelope in local.grant().items():
        if client != 1:
            local.coordinator.receive(client, envelope)
    local.coordinator.close()
    device = local.devices[1]
    learnt = device._state.memory.state.policy.cumulative_losses.copy()
    assert learnt.any()
    envelopes = local.grant()
    assert sorted(envelopes) == [0, 2], "a device that did not answer is not in the next exchange"
    device.receive(local.coordinator.welcome(1))
    answer = device.predict(local.stream.x[1, 0])
    assert answer.id == INTERVAL, "meanwhile it still predicts"
    assert (device._state.memory.state.policy.cumulative_losses == learnt).all()
    for client, envelope in envelopes.items():
        local.coordinator.receive(client, envelope)
    assert local.coordinator.receive(1, local.envelope(1)) == []
    local.coordinator.close()
    device.receive(local.coordinator.welcome(1))
    assert sorted(local.grant()) == [0, 1, 2]
    assert device.exchange == 2


def test_a_frozen_dictionary_does_not_change(local: LocalFleet) -> None:
    before = local.parameters()
    local.coordinator.frozen = True
    for _ in range(2):
        envelopes = local.grant()
        assert not any(key.startswith("delta.") for envelope in envelopes.values() for key in envelope.arrays)
        for client, envelope in envelopes.items():
            assert local.coordinator.receive(client, envelope) == []
        local.coordinator.close()
    assert local.parameters() == before
    assert local.coordinator.version.tolist() == [0] * 6


def test_a_server_that_learns_from_losses_goes_on_while_the_dictionary_is_frozen(tmp_path: Path) -> None:
    weights = []
    for frozen in (False, True):
        local = LocalFleet(tmp_path / str(frozen), policy="mab", settings={"learning_rate": 0.5})
        local.coordinator.frozen = frozen
        before = local.coordinator.state.policy.cumulative_losses.copy()
        for client, envelope in local.grant().items():
            assert local.coordinator.receive(client, envelope) == []
        local.coordinator.close()
        weights.append(local.coordinator.state.policy.cumulative_losses)
        assert (weights[-1] != before).any()
        local.close()
    assert (weights[0] == weights[1]).all()


@pytest.mark.parametrize("frozen", [False, True])
def test_models_go_back_if_devices_predict_worse_with_them(frozen: bool, tmp_path: Path) -> None:
    """Steps a hundred times too long, compared after two exchanges; a frozen dictionary stays as it is.

    With gradients of their own losses, these untrained networks would become better even so.
    """
    settings = {"fine_tuning_rate": 100.0, "control_every": 2, "tune_every": 1, "warm_up": 0, "objective": "pool"}
    settings["fine_tuned"] = "used"
    local = LocalFleet(tmp_path, policy="late-hedge", settings=settings, interval=1, largest_update=1e9, seed=2)
    first, back = local.parameters(), []
    for number in range(8):
        local.coordinator.frozen = frozen and number == 2
        before, grants = local.parameters(), local.grant()
        for client, envelope in grants.items():
            assert local.coordinator.receive(client, envelope) == []
        granted = local.coordinator.opened
        assert granted is not None
        control = number in (2, 3, 5, 7)
        assert control == (not any(each.version.any() for each in granted.grants.values()) and number > 1)
        restored = local.coordinator.close().restored
        assert not restored or control
        for model, tensors in enumerate(local.parameters()):
            if model in restored:
                assert tensors == first[model]
                assert before[model] != first[model]
            elif control:
                assert tensors == before[model]
        back.append(len(restored))
    assert (back[2] > 0) != frozen
    local.close()


def test_a_model_whose_version_is_unchanged_is_not_sent_again(local: LocalFleet) -> None:
    local.coordinator.frozen = True
    sent, granted = 0, 0
    for _ in range(5):
        grants = local.coordinator.open()
        for client, content in grants.items():
            before = set(local.devices[client].holding)
            local.devices[client].receive(content)
            models = {int(model) for model in decode(content).part("model")}
            held = set(local.devices[client].holding)
            assert models == held - before
            sent, granted = sent + len(models), granted + len(held)
        for client in grants:
            local.coordinator.receive(client, local.answer(client))
        local.coordinator.close()
    assert sent < granted


def test_tuned_rates_depend_on_the_whole_fleet(tmp_path: Path) -> None:
    """Devices choose as in the simulator, which tunes rates on all budgets."""
    local = LocalFleet(tmp_path, settings={}, largest_update=1e9)
    fleet = Fleet(
        local.dictionary.catalogue(), local.budgets, local.coordinator.fleet.bandwidth, Schedule(ROUNDS, INTERVAL)
    )
    policy = policy_of("ofms-ft", fleet)
    simulation = LoopbackSimulation(policy, fleet, local.dictionary, local.stream, seed=SEED, hindsight=False)
    for expected in simulation.exchanges():
        for client, envelope in local.grant().items():
            assert local.devices[client].holding == np.flatnonzero(expected.plan.held[client]).tolist()
            assert local.coordinator.receive(client, envelope) == []
        local.coordinator.close()
    for mine, theirs in zip(local.coordinator.tensors, simulation.parameters(), strict=True):
        for name in mine:
            assert mine[name].numpy() == pytest.approx(theirs[name].numpy(), abs=1e-5)
    local.close()


def test_a_device_with_less_memory_than_its_fleet_expects_is_refused(local: LocalFleet, tmp_path: Path) -> None:
    welcome = local.coordinator.welcome(0)
    with Device(tmp_path / "small", budget=100, mail=False) as device:
        with pytest.raises(ofms.InvalidInput, match="its fleet assumes"):
            device.receive(welcome)
        assert device.collect() is None
    large = int(local.budgets[0]) + 1000
    with Device(tmp_path / "large", budget=large, mail=False) as device:
        device.receive(welcome)
        assert decode(device.collect() or b"").values["client"] == 0


def test_a_device_follows_a_server_that_was_restored_from_an_earlier_exchange(local: LocalFleet) -> None:
    old = local.coordinator.welcome(0)
    for _ in range(2):
        for client, envelope in local.grant().items():
            local.coordinator.receive(client, envelope)
        local.coordinator.close()
    device = local.devices[0]
    device.predict(local.stream.x[0, 0])
    assert device.exchange == 1
    device.receive(encode(changed(decode(old), exchange=1)))
    assert (device.exchange, device.dropped) == (0, 1)
    request = decode(device.collect() or b"")
    assert request.values["exchange"] == 1
    assert (request.part("request")["holding"] == -1).all(), "its version numbers may name other parameters now"
    assert device.holding
    assert device.predict(local.stream.x[0, 0]).id == 2 * INTERVAL + 1


def test_losses_are_validated_only_for_a_server_that_learns_from_them(tmp_path: Path, local: LocalFleet) -> None:
    envelopes = local.grant()
    extra = changed(envelopes[0], {"report.losses": np.full((1, 6), 0.5)})
    for client, envelope in {**envelopes, 0: extra}.items():
        assert local.coordinator.receive(client, envelope) == []
    local.coordinator.close()
    mab = LocalFleet(tmp_path / "mab", policy="mab", settings={})
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


def test_a_request_above_the_bandwidth_is_refused(tmp_path: Path) -> None:
    local = LocalFleet(tmp_path)
    local.coordinator.fleet = Fleet(
        local.coordinator.fleet.catalogue, local.budgets, 100, local.coordinator.fleet.schedule
    )
    with pytest.raises(ofms.InvalidInput, match="the bandwidth is 100"):
        local.coordinator.receive(0, local.envelope(0))
    local.close()


def test_a_model_that_would_not_stay_finite_is_not_updated(local: LocalFleet) -> None:
    envelopes = local.grant()
    before = local.parameters()
    for client, envelope in envelopes.items():
        local.coordinator.receive(client, envelope)
    assert local.coordinator.opened is not None
    answer = local.coordinator.opened.answers[0]
    model = min(answer.updates)
    for delta in answer.updates[model].delta.values():
        delta.fill_(3e38)
    object.__setattr__(answer.updates[model], "weight", 1e30)
    assert local.coordinator.close().quarantined == [model]
    assert local.parameters()[model] == before[model]
    assert local.parameters() != before, "other models are updated"


@pytest.mark.parametrize("field", ["uploads", "held"])
def test_an_update_that_was_not_requested_does_not_count(field: str, local: LocalFleet) -> None:
    envelopes = local.grant()
    before = local.parameters()
    assert local.coordinator.opened is not None
    own = local.coordinator.opened.grants[1]
    local.coordinator.opened.grants[1] = replace(own, **{field: np.zeros_like(getattr(own, field))})
    refused = local.coordinator.receive(1, envelopes[1])
    assert refused
    assert all("was not granted its upload" in line for line in refused)
    local.coordinator.close()
    assert local.parameters() == before


def test_a_request_leaves_room_for_working_copies(local: LocalFleet) -> None:
    """A device that requests more than fits with its copies is refused; the exchange opens for the others."""
    coordinator = local.coordinator
    adapting = policy_of("perfedavg", coordinator.fleet).local
    coordinator.policy = replace(coordinator.policy, local=adapting)
    coordinator.session = replace(coordinator.session, policy=coordinator.policy)
    requests = {client: decode(device.collect() or b"") for client, device in enumerate(local.devices)}
    storage, budgets = coordinator.fleet.catalogue.storage, coordinator.fleet.budgets
    coordinator.requests, fits = {}, {}
    for client, request in requests.items():
        wanted = np.zeros_like(request.arrays["request.wanted"])
        wanted[0, [0, 2] if client == 1 else [0]] = True
        fits[client] = bool(2 * int(wanted[0] @ storage) <= budgets[client])
        envelope = changed(request, {"request.wanted": wanted})
        if fits[client]:
            coordinator.receive(client, envelope)
        else:
            with pytest.raises(ofms.InvalidInput, match="bytes wanted"):
                coordinator.receive(client, envelope)
    assert fits == {0: True, 1: False, 2: True}
    assert sorted(coordinator.open()) == [0, 2]
