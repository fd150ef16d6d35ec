"""Metric, regret and shares of exchanges, against sums computed by hand and by plain loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ofms.core.ledger import Traffic
from ofms.core.messages import Grants, Plan
from ofms.core.typing import Flags, Floats
from ofms.models.dictionary import Dictionary
from ofms.simulator.api import simulate
from ofms.simulator.exchange import Exchange
from ofms.simulator.metrics import Measurement
from ofms.simulator.simulation import make_simulation
from tests.problems import PROBLEMS, fleet_for, policy_of, regression_problem

NAN = np.nan


def exchange_of(
    span: tuple[int, int], losses: Floats, *, expected: Floats, predicting: Floats, held: Flags, **given: Any
) -> Exchange:
    """An exchange of clients whose every model has losses [N, n, K]; scores are half of them."""
    clients, rounds, models = losses.shape
    ones, zeros = np.ones(clients, dtype=np.bool_), np.zeros(clients, dtype=np.int64)
    given = {"client_losses": losses, "model_scores": losses / 2} | given
    return Exchange(
        index=span[0],
        span=span,
        grants=Grants(span[0], np.arange(clients), held, held, None, ones, 2, np.zeros(models, dtype=np.int64)),
        plan=Plan(held, predicting, np.ones(losses.shape[::2]), np.zeros(losses.shape[::2])),
        traffic=Traffic(zeros + 7, zeros + 3, zeros + 10 * (span[0] + 1)),
        scores=np.full((clients, rounds), 0.5),
        losses=losses,
        expected_weights=expected,
        **given,
    )


def two_exchanges() -> list[Exchange]:
    """Two clients and three models; an exchange of three rounds, then one of two."""
    one, two = np.eye(3)[[0, 2]], np.eye(3)[[1, 2]]
    expected = np.array([[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]])
    first = np.array([[[0.2, 0.4, 0.6]] * 3, [[3.0, 0.5, 0.1]] * 3])
    second = np.array([[[0.8, 0.0, 0.4]] * 2, [[0.5, 0.5, 0.3]] * 2])
    return [
        exchange_of((0, 3), first, expected=expected, predicting=one, held=one > 0),
        exchange_of((3, 5), second, expected=expected, predicting=two, held=np.ones((2, 3), dtype=np.bool_)),
    ]


def measured(exchanges: list[Exchange], bound: str = "clip") -> tuple[Measurement, list[dict[str, Any]]]:
    clients, _, models = exchanges[0].losses.shape
    measurement = Measurement(clients, models, loss_bound=bound, hindsight=True)
    return measurement, [line for exchange in exchanges for line in measurement.add(exchange)]


def test_regret_counts_the_bounded_losses_that_clients_expect_and_those_of_all_models() -> None:
    measurement, lines = measured(two_exchanges())
    # Client 0 expects 0.35 and then 0.5 a round; its models lose 0.6 + 1.6, 1.2 + 0, 1.8 + 0.8: model 1 is best.
    # Client 1 expects 0.3 and then 0.4; its models lose 3 (clipped) + 1, 1.5 + 1, 0.3 + 0.6: model 2 is best.
    assert measurement.regret.value.tolist() == pytest.approx([3 * 0.35 + 2 * 0.5 - 1.2, 3 * 0.3 + 2 * 0.4 - 0.9])
    assert measurement.regret.hindsight[1].tolist() == pytest.approx([4.0, 2.5, 0.9])
    assert lines[0]["regret"] == pytest.approx((0.35 - 0.2 + 0.3 - 0.1) / 2)
    raw, _ = measured(two_exchanges(), "raw")
    assert raw.regret.hindsight[1, 0] == pytest.approx(10.0)


def test_clients_incur_the_losses_of_their_own_copies_but_hindsight_counts_the_shared_models() -> None:
    adapted = [replace(each, client_losses=each.losses / 2) for each in two_exchanges()]
    measurement, _ = measured(adapted, "raw")
    assert measurement.regret.incurred.tolist() == pytest.approx([1.5 * 0.35 + 0.5, 1.5 * 0.3 + 0.4])
    assert measurement.regret.hindsight[0].tolist() == pytest.approx([2.2, 1.2, 2.6])


def test_a_model_that_overflows_is_not_the_best_and_what_has_no_weight_costs_nothing() -> None:
    first, second = two_exchanges()
    losses = first.losses.copy()
    # Client 1 gives model 0 no weight; client 0 would need it, so only the other one overflows.
    losses[1, 1, 0] = NAN
    measurement, _ = measured([replace(first, losses=losses, client_losses=losses), second])
    assert measurement.regret.hindsight[1].tolist() == pytest.approx([np.inf, 2.5, 0.9])
    assert measurement.regret.value[1] == pytest.approx(3 * 0.3 + 2 * 0.4 - 0.9)


def test_shares_are_of_rounds_not_of_exchanges() -> None:
    measurement, lines = measured(two_exchanges())
    arrays = measurement.per_client()
    assert arrays["prediction_share"].tolist() == [[0.6, 0.4, 0.0], [0.0, 0.0, 1.0]]
    assert arrays["held_share"].tolist() == [[1.0, 0.4, 0.4], [0.4, 0.4, 1.0]]
    assert arrays["score"].tolist() == [0.5, 0.5]
    assert arrays["model_score"][0].tolist() == pytest.approx([0.22, 0.12, 0.26])
    assert arrays["down"].tolist() == [14, 14]
    assert arrays["up"].tolist() == [6, 6]
    assert arrays["most_held"].tolist() == [40, 40]
    # Bytes are counted once in an exchange, at its first round.
    assert [line["down"] for line in lines] == [14, 0, 0, 14, 0]
    assert [line["up"] for line in lines] == [6, 0, 0, 6, 0]
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5]
    assert lines[-1]["held"] == 40


def test_losses_at_their_bound_are_a_share_of_the_samples_of_clients_in_the_fleet() -> None:
    present = (np.array([True, False]), np.ones(3, dtype=np.bool_))
    one = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    losses = np.full((2, 4, 3), 3.0)
    losses[:, 0] = 0.1
    exchange = exchange_of((0, 4), losses, expected=one, predicting=one, held=one > 0, present=present)
    measurement = Measurement(2, 3, loss_bound="clip", hindsight=True, changing=True)
    measurement.add(exchange)
    assert measurement.saturated_share == 0.75


def own_outputs(dictionary: Dictionary, x: torch.Tensor) -> Floats:
    """[K, ...] outputs of each model by itself."""
    with torch.no_grad():
        each: list[Floats] = [
            torch.func.functional_call(model.module, model.tensors, (x,)).double().numpy()
            for model in dictionary.models
        ]
    return np.stack(each)


@pytest.mark.parametrize("loopback", [False, True])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_budgeted_experts_that_predict_with_a_mean_have_the_regret_of_that_mean(problem: str, loopback: bool) -> None:
    dictionary, stream = PROBLEMS[problem]()
    fleet = fleet_for(dictionary, stream, 3)
    policy = policy_of("budgeted-experts", fleet, learning_rate=0.5, prediction="mean", loss_bound="raw")
    assert policy.bound is None
    assert "mean" in policy.not_covered
    simulation = make_simulation(policy, fleet, dictionary, stream, seed=2, loopback=loopback)
    measurement = Measurement(stream.clients, len(dictionary), loss_bound="raw", hindsight=True)
    incurred, alone = np.zeros(stream.clients), np.zeros((stream.clients, len(dictionary)))
    for exchange in simulation.exchanges():
        measurement.add(exchange)
        for client in range(stream.clients):
            for step in range(*exchange.span):
                outputs = own_outputs(dictionary, torch.as_tensor(stream.x[client, step][None]))[:, 0]
                y, weights = stream.y[client, step], exchange.plan.prediction_weights[client]
                if stream.task == "regression":
                    alone[client] += (outputs[:, 0] - y) ** 2
                    incurred[client] += (weights @ outputs[:, 0] - y) ** 2
                else:
                    right = (np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True))[:, y]
                    alone[client] -= np.log(right)
                    incurred[client] -= np.log(weights @ right)
    assert measurement.regret.value == pytest.approx(incurred - alone.min(axis=1), rel=1e-4)


def test_a_run_with_a_model_that_overflows_has_finite_figures() -> None:
    dictionary, stream = regression_problem(clients=3, rounds=5)
    huge = {name: torch.full_like(tensor, 1e38) for name, tensor in dictionary.models[2].tensors.items()}
    models = tuple(replace(model, tensors=huge) if k == 2 else model for k, model in enumerate(dictionary.models))
    sound, broken = (
        simulate(models=each, stream=stream, policy="b-fed-omft", budget="3", bandwidth="100%", subset=[0, 1])
        for each in (dictionary, replace(dictionary, models=models))
    )
    scores = sound.clients["model_score"]
    assert not np.isfinite(broken.clients["model_score"][:, 2]).any()
    assert broken.random_model == pytest.approx(np.delete(scores, 2, axis=1).mean(axis=1))
    assert broken.best_in_hindsight == pytest.approx(np.delete(scores, 2, axis=1).min(axis=1))
    assert broken.figures["random_model"] == pytest.approx(float(np.delete(scores, 2, axis=1).mean()))
    assert broken.figures["best_in_hindsight"] < broken.figures["random_model"]
