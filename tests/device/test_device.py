"""A device: agreement with the simulator, labels in any order, refused messages."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

import ofms
from ofms.compute.torch_client import TorchClient
from ofms.coordinator.coordinator import Coordinator
from ofms.core.messages import Plan
from ofms.core.pooling import Pooling
from ofms.core.schedule import Schedule
from ofms.device import learning
from ofms.device.device import Device
from ofms.device.held_models import HeldModels
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import build_module
from ofms.policies import MODULES, ofms_ft
from ofms.policies.fleet import Fleet
from ofms.simulator.loopback import LoopbackSimulation
from ofms.storage.envelope import Envelope, decode, encode
from tests.devices import (
    ROUNDS,
    budgets_for,
    coordinator_for,
    grant_arrays,
    grant_of,
    grant_values,
    granted_device,
    model_array,
    open_devices,
    problem,
)
from tests.policy_settings import SETTINGS
from tests.problems import policy_of

# Policies with the changes of their settings.
CASES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in MODULES} | {
    "late-hedge, own": ("late-hedge", {"objective": "own"})
}
CLASSIFIER = {"inputs": 2, "hidden": [4], "outputs": 3}


def classification_coordinator(architecture: str, options: dict[str, Any], held: int) -> tuple[Coordinator, int]:
    """A coordinator of one device with memory for some of four networks, and the device's budget."""
    architectures = {f"net{index}": (architecture, options) for index in range(4)}
    modules = {name: build_module(*each) for name, each in architectures.items()}
    dictionary = Dictionary.from_modules(modules, task="classification", architectures=architectures)
    budget = held * int(dictionary.catalogue().storage.max())
    return Coordinator(dictionary, budgets=np.array([budget]), bandwidth=budget, rounds=10, policy="ofms-ft"), budget


def join_and_grant(device: Device, coordinator: Coordinator) -> None:
    device.receive(coordinator.welcome(0))
    device.receive(coordinator.run_exchange({0: device.collect() or b""})[0])


def record_evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The models that devices evaluate from now on."""
    evaluated: list[int] = []
    outputs = HeldModels.outputs

    def recorded(held_models: HeldModels, model: int, *rest: Any) -> Any:
        evaluated.append(model)
        return outputs(held_models, model, *rest)

    monkeypatch.setattr(HeldModels, "outputs", recorded)
    return evaluated


@pytest.mark.parametrize(
    ("interval", "reopened", "rounds"),
    [(1, False, ROUNDS), (4, False, ROUNDS), (1, True, ROUNDS), (4, True, ROUNDS), (4, False, None)],
    ids=["1-kept open", "4-kept open", "1-reopened", "4-reopened", "4-without a horizon"],
)
@pytest.mark.parametrize("case", CASES)
def test_devices_agree_with_the_simulator(
    case: str, interval: int, reopened: bool, rounds: int | None, tmp_path: Path
) -> None:
    """With the same seed and stream, held sets and predictions equal the loopback's, parameters to 1e-5.

    Rates are given as numbers, so that a fleet without a horizon agrees as well.
    """
    policy, changes = CASES[case]
    dictionary, stream = problem()
    budgets = budgets_for(dictionary)
    fleet = Fleet(dictionary.catalogue(), budgets, int(budgets.sum()) // 2, Schedule(ROUNDS, interval))
    loopback = LoopbackSimulation(
        policy_of(policy, fleet, **SETTINGS[policy] | changes), fleet, dictionary, stream, seed=5, hindsight=False
    )
    coordinator = coordinator_for(dictionary, policy, interval, rounds, **changes)
    devices = open_devices(tmp_path, dictionary)
    for client, device in enumerate(devices):
        device.receive(coordinator.welcome(client))
    for expected in loopback.exchanges():
        envelopes = {client: device.collect() for client, device in enumerate(devices)}
        for client, grant in coordinator.run_exchange(
            {client: envelope for client, envelope in envelopes.items() if envelope}
        ).items():
            devices[client].receive(grant)
        if reopened:
            for device in devices:
                device.close()
            devices = open_devices(tmp_path, dictionary)
        for client, device in enumerate(devices):
            assert device.holding == np.flatnonzero(expected.plan.held[client]).tolist()
            assert device.held_bytes <= device.budget
            for place, step in enumerate(range(*expected.span)):
                answer = device.predict(stream.x[client, step])
                error = (answer.value - stream.y[client, step]) ** 2
                assert error == pytest.approx(expected.scores[client, place], rel=1e-4, abs=1e-6)
                assert device.feedback(answer.id, float(stream.y[client, step]))
            if reopened and expected.index == 1:
                device.close()
                devices[client] = Device(tmp_path / str(client), budget=int(budgets[client]), mail=False)
    last = {client: envelope for client, device in enumerate(devices) if (envelope := device.collect())}
    for client, envelope in last.items():
        assert coordinator.receive(client, decode(envelope)) == []
    coordinator.close()
    for mine, theirs in zip(coordinator.tensors, loopback.parameters(), strict=True):
        for name in mine:
            assert mine[name].numpy() == pytest.approx(theirs[name].numpy(), abs=1e-5)
    for device in devices:
        device.close()


def test_a_device_without_a_grant_is_not_ready(tmp_path: Path) -> None:
    with Device(tmp_path / "new", budget=1000, mail=False) as device:
        assert not device.ready
        assert not device.wait_ready(timeout=0.01)
        with pytest.raises(ofms.NotReady, match="no grant has arrived yet"):
            device.predict(np.zeros(3))
        assert device.collect() is None


def test_labels_may_come_in_any_order_late_or_never(device: Device) -> None:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(6, 3))
    answers = [device.predict(x) for x in inputs]
    assert [answer.id for answer in answers] == list(range(6))
    for number in (3, 0, 5):
        assert device.feedback(number, 0.1)
    assert not device.feedback(3, 0.1), "once"
    assert not device.feedback(99, 0.1), "unknown"
    assert not device.wants_exchange
    assert device.collect() is None, "three of four labels"
    envelope = device.collect(now=True)
    assert envelope is not None
    assert decode(envelope).values["exchange"] == 1
    before = device._state.memory.state.policy.cumulative_losses.copy()
    assert device.feedback(4, 0.2), "late labels count"
    assert (device._state.memory.state.policy.cumulative_losses >= before).all()
    assert (device._state.memory.state.policy.cumulative_losses > before).any()
    assert device.predict(inputs[0]).id == 6, "it predicts without a server"
    with pytest.raises(ofms.InvalidInput, match="label = nan"):
        device.feedback(2, float("nan"))
    assert device.feedback(2, np.float32(0.5))
    with pytest.raises(ofms.InvalidInput, match="input"):
        device.predict(np.zeros(7))


def test_outputs_of_removed_models_are_kept_for_late_labels(device: Device, coordinator: Coordinator) -> None:
    x = np.array([0.3, -0.2, 0.9])
    answer = device.predict(x)
    held_models = device._state.held_models
    assert held_models is not None
    held = device.holding
    expected = {model: float(held_models.outputs(model, x.astype(np.float32)[None])[0, 0]) for model in held}
    envelope = device.collect(now=True)
    assert envelope is not None
    others = device._state.memory.state.policy.chosen.tolist()
    device.receive(grant_of(coordinator, others))
    assert device.holding == others
    compute = held_models.membership.compute
    assert isinstance(compute, TorchClient)
    networks = compute.networks
    real = [model for model in range(6) if not any(each.is_meta for each in networks[model].parameters())]
    assert real == others, "models that are not held take no memory"
    kept = {model: float(output[0]) for model, output in device._state.memory.waiting[answer.id].outputs.items()}
    assert kept == pytest.approx(expected)
    before = device._state.memory.state.policy.cumulative_losses.copy()
    device.close()
    with Device(device.store, budget=device.budget, mail=False) as again:
        assert again.feedback(answer.id, 0.5)
        gained = again._state.memory.state.policy.cumulative_losses - before
        assert set(np.flatnonzero(gained[0])) == set(held), "losses of the removed models are learnt"


@pytest.mark.parametrize("bound", ["clip", "saturate"])
def test_a_bounded_loss_that_overflows_counts_as_1(bound: str, tmp_path: Path) -> None:
    dictionary, _ = problem()
    coordinator = coordinator_for(dictionary, "ofms-ft", loss_bound=bound)
    device = open_devices(tmp_path, dictionary)[0]
    device.receive(coordinator.welcome(0))
    coordinator.receive(0, decode(device.collect() or b""))
    device.receive(coordinator.open()[0])
    assert device.feedback(device.predict(np.zeros(3)).id, 1e30)
    losses = device._state.memory.losses
    assert losses.tolist() == [1.0 if model in device.holding else 0.0 for model in range(6)]
    device.close()


def test_inputs_of_any_kind(device: Device) -> None:
    x = [0.3, -0.2, 0.9]
    expected = device.predict(np.array(x)).value
    tensor = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    inputs: list[Any] = [torch.tensor(x), tensor, x, np.ma.array(x)]
    for each in inputs:
        assert device.predict(each).value == pytest.approx(expected)
    with pytest.raises(ofms.InvalidInput, match=r"input = masked: see index \[1\]"):
        device.predict(np.ma.array(x, mask=[False, True, False]))
    with pytest.raises(ofms.InvalidInput, match="input = <U1: give an array of real numbers"):
        device.predict(np.array(["a", "b", "c"]))


def test_a_client_half_that_breaks_a_rule_rejects_the_grant(
    device: Device, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The models held before continue to predict."""
    plan = ofms_ft.Client.plan

    def predicts_twice(self: Any, state: Any, grants: Any) -> Any:
        state, made = plan(self, state, grants)
        return state, replace(made, prediction_weights=2 * made.prediction_weights)

    held, before = device.holding, device.predict(np.array([0.3, -0.2, 0.9])).value
    assert device.collect(now=True) is not None
    chosen = device._state.memory.state.policy.chosen.tolist()
    monkeypatch.setattr(ofms_ft.Client, "plan", predicts_twice)
    with pytest.raises(ofms.InvalidInput, match=r"policy = ofms-ft: client 0, exchange 1: .*sum to 2, not to 1"):
        device.receive(grant_of(coordinator, chosen))
    assert device.holding == held
    assert device.predict(np.array([0.3, -0.2, 0.9])).value == before


@pytest.mark.parametrize("reopened", [False, True])
def test_a_late_label_counts_in_the_exchange_of_its_prediction(reopened: bool, tmp_path: Path) -> None:
    """Late hedging learns the same of an exchange whether its last label arrives before or after its end."""
    inputs, labels = np.random.default_rng(0).normal(size=(4, 3)), [0.3, -0.1, 0.2, 0.7]
    found = []
    for name, before in (("in time", 4), ("late", 3)):
        device, coordinator = granted_device(tmp_path / name, "late-hedge")
        held = device.holding
        answers = [device.predict(x) for x in inputs]
        for answer, label in list(zip(answers, labels, strict=True))[:before]:
            assert device.feedback(answer.id, label)
        assert device.collect(now=True) is not None
        device.receive(grant_of(coordinator, np.flatnonzero(device._state.memory.state.policy.held[0]).tolist()))
        assert device.holding != held
        if reopened:
            device.close()
            device = Device(device.store, budget=device.budget, mail=False)
        for answer, label in list(zip(answers, labels, strict=True))[before:]:
            assert device.feedback(answer.id, label), "after the next exchange began"
        if reopened:
            device.close()
            device = Device(device.store, budget=device.budget, mail=False)
        found.append((held, device._state.memory.state))
        device.close()
    (held, expected), (_, late) = found
    for name in ("outputs", "targets", "exchange"):
        assert getattr(late.recent, name) == pytest.approx(getattr(expected.recent, name), nan_ok=True)
    assert late.recent.exchange.tolist() == [[0] * 4]
    assert set(np.flatnonzero(late.recent.known[0].all(axis=0))) == set(held)
    first, same = (state.policy.rounds for state in (expected, late))
    assert (same.number[0, 0], same.samples[0, 0]) == (0, 4)
    assert set(np.flatnonzero(np.isfinite(same.open.losses[0, 0]))) == set(held)
    assert same.open.losses[0, 0] == pytest.approx(first.open.losses[0, 0], abs=1e-12, nan_ok=True)


def test_a_device_evaluates_new_models_on_its_past_samples_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it reports: models that it did not hold before, on each sample that it keeps."""
    device, coordinator = granted_device(tmp_path, "late-hedge")
    first = device.holding
    inputs = np.random.default_rng(0).normal(size=(8, 3))
    for x in inputs[:4]:
        assert device.feedback(device.predict(x).id, 0.5)
    assert device.collect() is not None
    second = np.flatnonzero(device._state.memory.state.policy.held[0]).tolist()
    device.receive(grant_of(coordinator, second))
    for x in inputs[4:]:
        assert device.feedback(device.predict(x).id, 0.5)
    evaluated = record_evaluations(monkeypatch)
    assert device.collect() is not None
    new = [model for model in second if model not in first]
    assert new
    assert sorted(evaluated) == sorted(4 * new)
    recent = device._state.memory.state.recent
    assert np.flatnonzero(recent.known[0].all(axis=0)).tolist() == second
    assert np.flatnonzero(recent.known[0, :4].all(axis=0)).tolist() == sorted({*first, *second})
    held_models = device._state.held_models
    assert held_models is not None
    for model in new:
        expected = held_models.outputs(model, inputs.astype(np.float32))
        assert recent.outputs[0, :, model] == pytest.approx(expected, rel=1e-5, abs=1e-6)
    device.close()


@pytest.mark.parametrize("labels", [4, 8])
def test_labels_that_arrive_during_a_report_do_not_shift_late_outputs(labels: int, tmp_path: Path) -> None:
    """Also if they push the oldest samples out of memory, which is eight samples long."""
    device, coordinator = granted_device(tmp_path, "late-hedge")
    inputs = np.random.default_rng(0).normal(size=(labels + 6, 3)).astype(np.float32)
    for x in inputs[:labels]:
        assert device.feedback(device.predict(x).id, 0.5)
    assert device.collect() is not None
    device.receive(grant_of(coordinator, np.flatnonzero(device._state.memory.state.policy.held[0]).tolist()))
    state, held_models = device._state, device._state.held_models
    assert held_models is not None
    waiting = [device.predict(x) for x in inputs[labels:]]
    task = state.late_task(held_models)
    outputs = learning.late_outputs(held_models, task.unknown, task.samples)
    assert outputs is not None
    for answer in waiting[:2]:
        assert device.feedback(answer.id, 0.5)
    state.remember(held_models, task, outputs)
    recent = state.memory.state.recent
    kept = inputs[: labels + 2][-8:]
    assert recent.targets.shape == (1, len(kept))
    for model in device.holding:
        assert recent.outputs[0, :, model] == pytest.approx(held_models.outputs(model, kept), rel=1e-5, abs=1e-6)
    device.close()


def test_class_probabilities_are_pooled_as_their_policy_says() -> None:
    """Class 2 has the largest mean probability, class 0 the largest geometric mean."""
    outputs = {0: np.log(np.array([0.5, 0.49, 0.01])), 2: np.log(np.array([0.1, 0.0001, 0.8999]))}
    weights = np.array([[0.5, 0.0, 0.5]])
    plan = Plan(weights > 0, weights, np.ones((1, 3)), np.zeros((1, 3)))
    assert learning.answer(outputs, plan, "classification", "mean") == 2
    assert learning.answer(outputs, plan, "classification", "log") == 0
    assert learning.answer({0: outputs[0]}, plan, "classification", "log") == 0
    values = {0: np.array([1.0]), 2: np.array([4.0])}
    assert learning.answer(values, plan, "regression", "log") == 2.5


def test_a_prediction_has_the_offset_of_its_plan() -> None:
    outputs = {0: np.log(np.array([0.5, 0.3, 0.2]))}
    plan = Plan(np.ones((1, 1), dtype=np.bool_), np.ones((1, 1)), np.ones((1, 1)), np.zeros((1, 1)))
    shifted = replace(plan, offset=np.array([[0.0, 0.0, 1.0]]))
    for pooling in get_args(Pooling):
        assert learning.answer(outputs, plan, "classification", pooling) == 0
        assert learning.answer(outputs, shifted, "classification", pooling) == 2
    assert learning.answer({0: np.array([1.5])}, replace(plan, offset=np.array([[0.25]])), "regression", "log") == 1.75


@pytest.mark.parametrize(("policy", "everything"), [("ofms-ft", True), ("rms-ft", False)])
def test_a_label_evaluates_only_models_that_its_policy_observes(
    policy: str, everything: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, _ = granted_device(tmp_path, policy)
    assert len(device.holding) > 1
    answer = device.predict(np.zeros(3))
    evaluated = record_evaluations(monkeypatch)
    assert device.feedback(answer.id, 0.5)
    others = [model for model in device.holding if model not in device.predicting]
    assert evaluated == (others if everything else []), "outputs of the models that predicted are kept"
    device.close()


def test_a_class_label_evaluates_only_observed_models_that_did_not_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, budget = classification_coordinator("mlp", CLASSIFIER, held=3)
    evaluated = record_evaluations(monkeypatch)
    with Device(tmp_path / "store", budget=budget, mail=False) as device:
        join_and_grant(device, coordinator)
        answers = [device.predict(np.zeros(2)) for _ in range(2)]
        predicting, others = device.predicting, [each for each in device.holding if each not in device.predicting]
        assert others
        assert evaluated == 2 * predicting
        evaluated.clear()
        assert device.feedback(answers[0].id, 2)
        assert evaluated == others
    with Device(tmp_path / "store", budget=budget, mail=False) as again:
        evaluated.clear()
        assert again.feedback(answers[1].id, 1)
        assert sorted(evaluated) == again.holding, "after a crash, outputs are computed once more"


def test_predictions_without_a_label_are_limited_and_dropped_ones_counted(device: Device) -> None:
    device.most_waiting = 3
    for _ in range(5):
        device.predict(np.zeros(3))
    assert (len(device._state.memory.waiting), device.dropped) == (3, 2)
    assert not device.feedback(0, 0.1)
    device.longest_wait = 0.05
    time.sleep(0.1)
    device.predict(np.zeros(3))
    assert (len(device._state.memory.waiting), device.dropped) == (1, 5)


def test_malformed_messages_change_nothing(device: Device, coordinator: Coordinator) -> None:
    held, exchange = device.holding, device.exchange
    everything = grant_arrays(np.ones((1, 6), np.bool_))
    device.collect(now=True)
    values = grant_values(coordinator)
    small = np.zeros((1, 6), np.bool_)
    small[0, 0] = True
    own = dict(coordinator.tensors[0])
    shapeless = own | {"0.weight": torch.zeros(2, 2)}
    halves = {name: tensor.half() for name, tensor in own.items()}
    more = own | {"more": torch.zeros(10_000)}
    unsent = grant_arrays(small)
    unsent["grant.version"] = unsent["grant.version"] + 7

    def sending(array: np.ndarray) -> bytes:
        return encode(Envelope("grant", values, grant_arrays(small) | {"model.0": array}))

    for content, message in (
        (b"nonsense", "not a complete envelope"),
        (encode(Envelope("grant", values | {"revision": "other"})), "another dictionary"),
        (encode(Envelope("grant", values | {"deployment": "other"})), "another dictionary"),
        (encode(Envelope("grant", values)), "client missing"),
        (encode(Envelope("grant", values, everything)), "exceeds the budget"),
        (sending(model_array(shapeless)), "missing or has another shape"),
        (sending(model_array(halves)), "is float16, not float32"),
        (sending(model_array(more)), "it has no tensor 'more'"),
        (sending(np.arange(99, dtype=np.uint8)), "not a complete safetensors file"),
        (sending(model_array(own)[:-4]), "not a complete safetensors file"),
        (sending(np.zeros((3, 3))), "not a complete safetensors file"),
        (encode(Envelope("grant", values, unsent)), "neither sent nor held"),
        (encode(Envelope("poem")), "a welcome or a grant"),
    ):
        with pytest.raises(ofms.InvalidInput, match=message):
            device.receive(content)
        assert (device.holding, device.exchange) == (held, exchange)
    assert device.in_transit == 0


def test_all_inputs_have_the_shape_of_the_first(tmp_path: Path) -> None:
    """A network that pools accepts an image one row larger, but a batch of both shapes cannot be trained on."""
    options = {"image": [1, 8, 8], "blocks": [[3]], "dense": 4, "classes": 3}
    coordinator, budget = classification_coordinator("vgg", options, held=2)
    store = tmp_path / "store"
    with Device(store, budget=budget, mail=False) as device:
        join_and_grant(device, coordinator)
        first = device.predict(np.zeros((1, 8, 8)))
        with pytest.raises(ofms.InvalidInput, match=r"input = \[1, 9, 9\]: earlier inputs were \[1, 8, 8\]"):
            device.predict(np.zeros((1, 9, 9)))
        assert device.waiting == [first.id]
    for _ in range(2):
        with Device(store, budget=budget, mail=False) as again:
            with pytest.raises(ofms.InvalidInput, match="give the same shape"):
                again.predict(np.zeros((1, 9, 9)))
            # The journal the first time, a snapshot the second.
            again.collect(now=True)


def test_an_unknown_class_is_refused_and_not_recorded(tmp_path: Path) -> None:
    coordinator, budget = classification_coordinator("mlp", CLASSIFIER, held=2)
    with Device(tmp_path / "store", budget=budget, mail=False) as device:
        join_and_grant(device, coordinator)
        answer = device.predict(np.zeros(2))
        assert answer.value in (0, 1, 2)
        for label in (3, -1, 0.5):
            with pytest.raises(ofms.InvalidInput, match=r"give a class from 0 to 2"):
                device.feedback(answer.id, label)
    with Device(tmp_path / "store", budget=budget, mail=False) as again:
        assert again.feedback(answer.id, np.int64(2))
        assert again.collect() is not None


def test_a_device_copies_its_input(device: Device) -> None:
    """A program may reuse one array for all samples."""
    buffer = np.array([0.1, 0.2, 0.3], dtype=np.float32)
    answer = device.predict(buffer)
    buffer.fill(9.0)
    assert device._state.memory.waiting[answer.id].x.tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_nothing_is_learnt_from_values_that_are_not_finite(device: Device) -> None:
    for bad in (np.nan, np.inf):
        with pytest.raises(ofms.InvalidInput, match="input = not finite"):
            device.predict(np.array([bad, 0, 0]))
    answer = device.predict(np.zeros(3))
    with pytest.raises(ofms.InvalidInput, match="is not finite; the label is ignored"):
        device.feedback(answer.id, 1e30)
    assert device._state.memory.losses.tolist() == [0] * 6
    assert device.feedback(answer.id, 0.5), "it still waits"
    device.close()
    with Device(device.store, budget=device.budget, mail=False) as again:
        assert np.isfinite(again._state.memory.losses).all()
