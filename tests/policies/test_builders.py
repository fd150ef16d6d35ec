"""Settings reach the policy that is built from them, and expected weights are those of its states."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ofms.core.errors import InvalidInput
from ofms.core.messages import Plan
from ofms.core.schedule import Schedule
from ofms.policies import MODULES
from ofms.policies.granting_server import GrantingServer
from ofms.policies.late_hedge import Client
from ofms.policies.local_updates import Adapted, Epochs, GradientStep
from ofms.policies.protocol import Policy
from ofms.policies.single_model_server import SingleModelServer
from ofms.policies.tuning_server import TuningServer
from tests.problems import fleet_of, policy_of

FLEET = fleet_of([2, 3, 4], [10, 12, 14], rounds=100, interval=4)
STEP = {"fine_tuning_rate": "0.5/sqrt(T)", "window": 7, "warm_up": 3}


@pytest.mark.parametrize("policy", [name for name in MODULES if name != "late-hedge"])
@pytest.mark.parametrize("bound", ["clip", "saturate", "raw"])
def test_the_bound_of_losses_is_the_one_that_was_set(policy: str, bound: str) -> None:
    built = policy_of(policy, FLEET, loss_bound=bound)
    assert (built.loss_bound, built.name) == (bound, policy)


@pytest.mark.parametrize("policy", ["ofms-ft", "rms-ft", "b-fed-omft", "fed-poe"])
def test_one_gradient_step_as_it_was_set(policy: str) -> None:
    """0.5/√T with T = 100 is 0.05."""
    assert policy_of(policy, FLEET, **STEP).local == GradientStep(0.05, 7, 3)


def test_late_hedging_as_it_was_set() -> None:
    settings: dict[str, Any] = {"window": 9, "warm_up": 3, "tune_every": 5, "objective": "pool", "control_every": 6}
    built = policy_of("late-hedge", FLEET, momentum=0.25, fine_tuning_rate=0.4, fine_tuned="used", **settings)
    assert isinstance(built.local, GradientStep)
    assert built.local.rate > 0
    assert built.local == GradientStep(built.local.rate, 9, 3, every=5, objective="pool", control_every=6)
    assert built.server == TuningServer(0.4, built.local.rate)
    assert (built.momentum, built.reports_use, built.loss_bound, built.pooling) == (0.25, True, "raw", "log")
    assert (built.square_momentum, built.uploaded, built.weighs_by_use) == (0, None, True)
    assert built.remembers == 8, "the whole exchanges of four samples in nine"
    by_use = policy_of("late-hedge", FLEET, fine_tuned="used").local
    assert isinstance(by_use, GradientStep)
    assert (by_use.every, by_use.control_every) == (6, 60)
    other = policy_of("late-hedge", FLEET, fine_tuned="used", control_every=0, square_momentum=0.9)
    assert isinstance(other.local, GradientStep)
    assert (other.local.control_every, other.square_momentum) == (0, 0.9)
    frozen = policy_of("late-hedge", FLEET, fine_tuning_rate=0.0)
    assert (frozen.local, frozen.reports_use) == (None, False)
    assert built.not_covered == "late hedging's bound depends on the losses of the run"
    assert len(policy_of("late-hedge", FLEET, memories=(2, 3)).offset_memories) == 2, "two rounds are the least"
    state = SimpleNamespace(expected=np.eye(3))
    assert built.expected_weights(state, None) is state.expected


def shared(policy: Policy) -> int | None:
    assert isinstance(policy.client, Client)
    return policy.client.shared


def test_the_global_model_as_it_was_set() -> None:
    """By default the one with the most parameters, which all clients fine-tune in every exchange."""
    built = policy_of("late-hedge", FLEET, fine_tuning_rate=0.4, window=9, warm_up=3)
    assert isinstance(built.local, GradientStep)
    assert built.local == GradientStep(built.local.rate, 9, 3, every=1)
    assert built.server == TuningServer(0.4, built.local.rate, earned=False)
    assert (shared(built), built.uploaded, built.reports_use, built.weighs_by_use) == (2, (2,), True, False)
    assert (built.momentum, built.square_momentum) == (0.9, 0.999)
    named = policy_of("late-hedge", FLEET, model="model1", tune_every=3)
    assert isinstance(named.local, GradientStep)
    assert (shared(named), named.uploaded, named.local.every) == (1, (1,), 3)
    plain = policy_of("late-hedge", FLEET, square_momentum=0, momentum=0.5, control_every=7)
    assert isinstance(plain.local, GradientStep)
    assert (plain.square_momentum, plain.momentum, plain.local.control_every) == (0, 0.5, 7)
    equal = fleet_of([3, 3, 3], [10], rounds=100)
    assert shared(policy_of("late-hedge", equal)) == 0, "the first of several"
    for without in ({"fine_tuning_rate": 0}, {"fine_tuned": "used"}, {"fine_tuning_rate": 0, "model": 1}):
        assert (shared(frozen := policy_of("late-hedge", FLEET, **without)), frozen.uploaded) == (None, None)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"fine_tuned": "used", "model": 1}, "model = 1: it names the global model"),
        ({"model": "net9"}, "model = net9: give a name from the dictionary"),
        ({"fine_tuned": "used", "hold_global": False}, "hold_global = false: there is no global model"),
        ({"objective": "pool"}, "objective = pool: the global model is fine-tuned for its own loss"),
        ({"objective": "auto"}, "objective = auto: the global model is fine-tuned for its own loss"),
    ],
)
def test_settings_of_late_hedging_that_contradict_each_other(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}"):
        policy_of("late-hedge", FLEET, **settings)


def test_a_bandwidth_that_the_global_model_does_not_fit_is_rejected() -> None:
    """A client uploads that model alone."""
    enough, less = (replace(FLEET, bandwidth=bandwidth) for bandwidth in (4, 3))
    assert policy_of("late-hedge", enough).uploaded == (2,)
    with pytest.raises(InvalidInput, match=r"^bandwidth = 3 bytes: a client may have to upload 4 bytes"):
        policy_of("late-hedge", less)


def test_local_training_as_it_was_set() -> None:
    common: dict[str, Any] = {"model": "model1", "local_rate": 0.1, "epochs": 3, "batch_size": 5, "window": 7}
    omd = policy_of("fed-omd", FLEET, warm_up=2, upload_groups=2, **common)
    assert omd.local == Epochs(0.1, epochs=3, batch_size=5, window=7, warm_up=2)
    adapted = policy_of("perfedavg", FLEET, warm_up=2, upload_groups=2, adaptation_rate=0.2, **common)
    assert adapted.local == Adapted(0.1, 0.2, epochs=3, batch_size=5, window=7, warm_up=2)
    for built in (omd, adapted):
        assert built.server == SingleModelServer(1)
        assert built.upload_groups == 2
        assert built.expected_weights(None, None).tolist() == [[0, 1, 0]]
        assert (built.mixes, built.observes, built.own_model, built.uploaded) == (False, "held", None, None)


@pytest.mark.parametrize(("policy", "copies"), [("fed-omd", 1), ("perfedavg", 2)])
def test_one_model_must_fit_and_be_uploaded(policy: str, copies: int) -> None:
    """Model 2 takes 4 bytes; meta-learning holds it twice. A number of groups that is set needs no bandwidth."""
    tight = fleet_of([2, 3, 4], [8, 20], bandwidth=3)
    with pytest.raises(InvalidInput, match="bandwidth"):
        policy_of(policy, tight, model=2)
    assert policy_of(policy, tight, model=2, upload_groups=1).upload_groups == 1
    small = fleet_of([2, 3, 4], [7, 20], bandwidth=4)
    if copies == 1:
        assert policy_of(policy, small, model=2).upload_groups is None
    else:
        with pytest.raises(InvalidInput, match=r"^budget = 7 bytes: 2 copies of model2 take 8 bytes"):
            policy_of(policy, small, model=2)


@pytest.mark.parametrize(
    ("policy", "state", "expected"),
    [
        ("b-fed-omft", {"pmf": np.array([[0.2, 0.3, 0.5]])}, [[0.2, 0.3, 0.5]]),
        ("non-fed-oms", {"pmf": np.array([[0.2, 0.3, 0.5]])}, [[0.2, 0.3, 0.5]]),
        ("budgeted-experts", {"pmf": np.array([[0.2, 0.3, 0.5]])}, [[0.2, 0.3, 0.5]]),
        ("fed-poe", {"prediction_weights": np.array([[0.2, 0.3, 0.5]])}, [[0.2, 0.3, 0.5]]),
        ("rms-ft", {"wanted": np.array([[True, False, True]])}, [[0.5, 0, 0.5]]),
        ("explore-then-commit", {"chosen": np.array([2, 0]), "bin": np.zeros((2, 3))}, [[0, 0, 1], [1, 0, 0]]),
        ("follow-the-leader", {"chosen": np.array([2, 0]), "storage": np.zeros(3)}, [[0, 0, 1], [1, 0, 0]]),
    ],
)
def test_expected_weights_of_clients(policy: str, state: dict[str, Any], expected: list[list[float]]) -> None:
    assert policy_of(policy, FLEET).expected_weights(SimpleNamespace(**state), None).tolist() == expected


def test_expected_weights_of_the_paper_and_of_the_server() -> None:
    """Losses 0, ln 2 and ln 4 at η = 1: weights 4/7, 2/7, 1/7."""
    losses = np.log([[1.0, 2.0, 4.0]])
    state = SimpleNamespace(cumulative_losses=losses, learning_rate=np.array([1.0]))
    assert policy_of("ofms-ft", FLEET).expected_weights(state, None) == pytest.approx(np.array([[4, 2, 1]]) / 7)
    server = SimpleNamespace(pmf=np.array([0.5, 0.25, 0.25]))
    assert policy_of("mab", FLEET).expected_weights(None, server).tolist() == [[0.5, 0.25, 0.25]]


def test_what_clients_observe_report_and_mix() -> None:
    built = {name: policy_of(name, FLEET) for name in MODULES}
    assert {name for name, each in built.items() if each.observes == "predicting"} == {
        "non-fed-oms",
        "b-fed-omft",
        "rms-ft",
    }
    assert {name for name, each in built.items() if each.reports_losses} == {"mab"}
    assert {name for name, each in built.items() if each.mixes} == {"fed-poe"}
    assert policy_of("budgeted-experts", FLEET, prediction="mean").mixes
    assert {name for name, each in built.items() if each.own_model is not None} == {"fed-poe"}
    assert (built["fed-poe"].own_model, built["fed-poe"].uploaded) == (1, (0,))
    for name in ("non-fed-oms", "b-fed-omft"):
        assert policy_of(name, FLEET, feedback="all").observes == "held"
    assert all(each.not_covered for name, each in built.items() if each.bound is None)


@pytest.mark.parametrize("policy", ["ofms-ft", "rms-ft"])
def test_the_servers_step_is_the_one_that_was_set(policy: str) -> None:
    assert policy_of(policy, FLEET, server_step=0.5).server == GrantingServer(0.5)
    assert policy_of(policy, FLEET, server_step="N").server == GrantingServer("N")
    common: Any = policy_of("b-fed-omft", FLEET, server_step=0.5).server
    assert common.server_step == 0.5
    assert policy_of("fed-poe", FLEET).server == GrantingServer(1)


def test_the_weight_of_gradients_is_the_one_that_was_set() -> None:
    for policy, weight in (("ofms-ft", "inverse"), ("rms-ft", "inverse"), ("b-fed-omft", "one")):
        for each in (weight, "use"):
            client: Any = policy_of(policy, FLEET, gradient_weight=each).client
            assert client.gradient_weight == each


def test_exploration_lasts_whole_exchanges() -> None:
    """Nine samples in exchanges of four: three exchanges."""
    found = [policy_of("explore-then-commit", FLEET, exploration=count).client for count in (8, 9, 12)]
    assert [next(iter(vars(client).values())) for client in found] == [2, 3, 3]


def test_only_models_that_predict_are_observed_if_the_policy_says_so() -> None:
    held, weights = np.array([[True, True, True]]), np.array([[0.0, 0.4, 1.0]])
    plan = Plan(held, weights, np.ones((1, 3)), np.zeros((1, 3)))
    assert policy_of("ofms-ft", FLEET).observed(plan).tolist() == [[True, True, True]]
    assert policy_of("rms-ft", FLEET).observed(plan).tolist() == [[False, True, True]]


def test_why_theorems_do_not_bound_a_clients_regret() -> None:
    raw = policy_of("ofms-ft", FLEET, loss_bound="raw")
    assert (raw.bound, raw.not_covered) == (None, "the selection loss is not bounded (a1)")
    frozen = policy_of("ofms-ft", FLEET, learning_rate=0)
    assert (frozen.bound, frozen.not_covered) == (None, "a learning rate of 0 never learns")
    endless = replace(FLEET, schedule=Schedule(None, 4))
    forever = policy_of("ofms-ft", endless, learning_rate=1, fine_tuning_rate=1)
    assert (forever.bound, forever.not_covered) == (None, "there is no horizon")
    covered = policy_of("ofms-ft", FLEET, learning_rate=1)
    assert covered.bound is not None
    assert covered.not_covered == ""


def test_why_the_theorem_of_budgeted_advice_does_not_apply() -> None:
    def found(**settings: Any) -> tuple[bool, str]:
        built = policy_of("budgeted-experts", FLEET, **({"loss_bound": "clip"} | settings))
        return built.bound is not None, built.not_covered

    assert found() == (True, "")
    assert found(learning_rate=1) == (True, "")
    assert found(learning_rate=0) == (False, "a learning rate of 0 never learns")
    assert found(loss_bound="raw") == (False, "the selection loss is not bounded")
    assert found(prediction="mean")[0] is False
    assert found(prediction="mean")[1].startswith("it predicts with a mean")
    endless = replace(FLEET, schedule=Schedule(None, 4))
    forever = policy_of("budgeted-experts", endless, learning_rate=1, loss_bound="clip")
    assert (forever.bound, forever.not_covered) == (None, "there is no horizon")


def test_every_rate_may_be_one_over_the_root_of_the_horizon() -> None:
    """0.5/√100 is 0.05, wherever a policy has a rate."""
    text = "0.5/sqrt(T)"
    omd, adapted = policy_of("fed-omd", FLEET, local_rate=text), policy_of("perfedavg", FLEET, local_rate=text)
    assert [built.local.rate for built in (omd, adapted) if built.local] == pytest.approx([0.05, 0.05])
    meta = policy_of("perfedavg", FLEET, adaptation_rate=text).local
    assert isinstance(meta, Adapted)
    assert meta.adaptation_rate == pytest.approx(0.05)
    clients: list[Any] = [policy_of(name, FLEET, learning_rate=text).client for name in ("non-fed-oms", "b-fed-omft")]
    assert [client.rule.learning_rate for client in clients] == pytest.approx([0.05, 0.05])
    poe: Any = policy_of("fed-poe", FLEET, learning_rate=text).client
    server: Any = policy_of("mab", FLEET, learning_rate=text).server
    assert (poe.rate, server.learning_rate) == pytest.approx((0.05, 0.05))
    for policy in ("ofms-ft", "budgeted-experts"):
        client: Any = policy_of(policy, FLEET, learning_rate=text).client
        assert set(client.rates.values()) == {0.05}


def test_exp3_as_it_was_set() -> None:
    for policy in ("non-fed-oms", "b-fed-omft"):
        for feedback in ("one", "all"):
            built: Any = policy_of(policy, FLEET, exploration=0.3, feedback=feedback).client
            assert (built.rule.exploration, built.rule.feedback, built.rule.learning_rate) == (0.3, feedback, None)
            assert built.rule.horizon == 400, "n T"


OWN_SUBSET = "its guarantee holds only against the best model of its own subset"


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("non-fed-oms", OWN_SUBSET),
        ("b-fed-omft", OWN_SUBSET),
        ("rms-ft", "it does not learn which model suits a client"),
        ("explore-then-commit", "it does not learn after its commitment"),
        ("follow-the-leader", "an adversary makes the leader lose in every round"),
    ],
)
def test_why_no_theorem_bounds_the_regret(policy: str, reason: str) -> None:
    built = policy_of(policy, FLEET)
    assert (built.bound, built.not_covered) == (None, reason)
