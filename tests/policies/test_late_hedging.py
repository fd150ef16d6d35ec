"""Late hedging against adversaries aimed at it: its regret stays under the certificate that it measures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ofms.core.typing import Floats
from tests.policies.late_clients import LateClients, Open
from tests.policies.late_hedge_runs import runs
from tests.problems import fleet_of

CLIENTS, MODELS, BUDGET, WINDOW = 8, 5, 2, 10
Adversary = Callable[[Open, int], Floats]


def wrong_when_certain(now: Open, step: int) -> Floats:
    """Models are right exactly when they are not sure to be held."""
    return np.where(now.certain, 0.0, 1.0)


def wrong_when_trusted(now: Open, step: int) -> Floats:
    """The model of most weight is wrong."""
    outputs = np.ones((CLIENTS, MODELS))
    outputs[np.arange(CLIENTS), now.weights.argmax(axis=1)] = 0
    return outputs


def one_right(now: Open, step: int) -> Floats:
    """One model is right, the others are wrong: late losses are all that tells them apart."""
    return np.tile(np.eye(MODELS)[3], (CLIENTS, 1))


def switching(now: Open, step: int) -> Floats:
    """One model is right for 60 rounds, then the next one; the last one is right in two rounds of five."""
    outputs = np.zeros((CLIENTS, MODELS))
    outputs[:, step // 60 % (MODELS - 1)] = 1
    outputs[:, -1] = step % 5 < 2
    return outputs


def alternating(now: Open, step: int) -> Floats:
    """Models are right in turns that make a late loss as misleading as possible; the first a little more often."""
    outputs = np.tile((step // WINDOW + np.arange(MODELS)) % 2, (CLIENTS, 1)).astype(np.float64)
    outputs[:, 0] = outputs[:, 0] if step % 8 else 1.0
    return outputs


def play(adversary: Adversary, rounds: tuple[int, ...], memories: tuple[float, ...]) -> list[tuple[float, float]]:
    """The mean regret to the best model and the mean certificate, after some numbers of rounds."""
    clients = LateClients(CLIENTS, MODELS, BUDGET, WINDOW, memories)
    incurred, of_models, found = np.zeros(CLIENTS), np.zeros((CLIENTS, MODELS)), []
    for step in range(rounds[-1]):
        outputs = adversary(clients.begin(), step)
        incurred += clients.end(outputs, 1.0)
        of_models += (outputs - 1) ** 2
        if step + 1 in rounds:
            regret = incurred - of_models.min(axis=1)
            found.append((float(regret.mean()), float(clients.certificate(1.0).mean())))
    return found


def play_policy(adversary: Adversary, rounds: tuple[int, ...]) -> list[tuple[float, float]]:
    """The same for the policy itself; its certificate is measured over final rounds."""
    fleet = fleet_of([1] * MODELS, [BUDGET] * CLIENTS, rounds=rounds[-1] + 1)
    outputs, targets = np.zeros((CLIENTS, rounds[-1] + 1, MODELS, 1)), np.ones((CLIENTS, rounds[-1] + 1))
    incurred, of_models, found = np.zeros(CLIENTS), np.zeros((CLIENTS, MODELS)), []
    for step, planned in enumerate(runs(fleet, outputs, targets, window=WINDOW, memories=(0, 16, 4))):
        policy = planned.state.policy
        if step in rounds:
            hedge = policy.hedge
            bound = hedge.peaks[:, 0] + hedge.totals.gaps[:, 0] + hedge.member_peak + hedge.totals.member_gaps
            found.append((float((incurred - of_models.min(axis=1)).mean()), float(bound.mean())))
        now = policy.rounds
        layers = (now.members, now.mixture, now.rates, now.mixture_rate, now.certain, now.thinning)
        outputs[:, step, :, 0] = adversary(Open(*(each.parts[-1] for each in layers)), step)
        pools = (planned.plan.prediction_weights * outputs[:, step, :, 0]).sum(axis=1)
        incurred += (pools - 1) ** 2
        of_models += (outputs[:, step, :, 0] - 1) ** 2
    return found


@pytest.mark.parametrize("of_the_policy", [False, True], ids=["as derived", "as it runs"])
@pytest.mark.parametrize("adversary", [one_right, wrong_when_certain, wrong_when_trusted, switching, alternating])
@pytest.mark.parametrize("rounds", [(100, 400), pytest.param((500, 2000), marks=pytest.mark.slow)], ids=["400", "2000"])
def test_the_regret_stays_under_its_certificate_and_falls(
    adversary: Adversary, rounds: tuple[int, ...], of_the_policy: bool
) -> None:
    played = play_policy(adversary, rounds) if of_the_policy else play(adversary, rounds, (1.0, 15 / 16, 3 / 4))
    (early, early_bound), (late, late_bound) = played
    assert early <= early_bound
    assert late <= late_bound
    assert late / rounds[1] < max(0.7 * early / rounds[0], 0), "below 0 where mixing helps"
    assert late_bound / rounds[1] < 0.7 * early_bound / rounds[0]


def test_lemma_6_the_weighted_age_does_not_depend_on_the_window() -> None:
    """Unknown losses of models below 1/n, weighted: at most (4/3) K/n a round on average, not d."""
    rounds, places = 300, BUDGET - 1
    clients = LateClients(CLIENTS, MODELS, BUDGET, 8 * MODELS, (1.0,))
    total = 0.0
    for step in range(rounds):
        weights = clients.begin().weights
        age = step - 1 - clients.last
        total += float(np.where(places * weights <= 1, weights * age, 0).sum()) / CLIENTS
        clients.end(wrong_when_trusted(clients.now, step), 1.0)
    assert 0 < total / rounds <= 4 / 3 * MODELS / places < clients.delay
