"""Regret bounds of OFMS-FT, and the rates that minimise them; `docs/theory.md` has the proofs.

`theorem` is the paper's form (th:4, th:5) in μ, the minimum number of clusters for the worst chosen model. `sharp`
needs only M = max_j m_j, the most clusters of first-fit decreasing: for clients it sums p/q over the models instead of
bounding each 1/q, for the server it uses q ≥ 1/M. Both are bounds against a fixed model. Models that are fine-tuned
react to the clients' draws, so the best of them is known only afterwards: `realised` holds against that one. The
server's first term is ‖θ_1 - θ*‖²/(2η_f): the paper's R/(2η_f) holds only for models that start at zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ClientBound:
    """Upper bounds on a client's expected cumulative regret.

    Attributes
    ----------
    theorem
        Against a fixed model: eq. (11r2) and (54ap).
    sharp
        Against a fixed model, or the best model of a fixed dictionary.
    realised
        Against the best model of the run, also of a dictionary that is fine-tuned during it.
    """

    theorem: float
    sharp: float
    realised: float


@dataclass(frozen=True)
class ServerBound:
    """Upper bounds on the server's expected cumulative regret for one model, eq. (12r2) and (55ap)."""

    theorem: float
    sharp: float


def largest_second_moment(models: int, most_clusters: int) -> float:
    """G = K·M/(K + M - 1), the largest Σ_k p_k/q_k over all PMFs p.

    >>> largest_second_moment(20, 19), largest_second_moment(20, 1)
    (10.0, 1.0)
    """
    return models * most_clusters / (models + most_clusters - 1)


def client_bound(
    *,
    models: int,
    learning_rate: float,
    fewest_clusters: int,
    most_clusters: int,
    rounds: int,
    interval: int = 1,
) -> ClientBound:
    """ln K/η + η μ n T; ln K/η + η G n T/2; and the latter with √(2 (M-1) n T ln K) + (M-1) n ln K/3 added.

    Parameters
    ----------
    models
        K.
    learning_rate
        η_i.
    fewest_clusters
        μ_i, or an upper bound on it.
    most_clusters
        M = max_j m_j.
    rounds, interval
        T and n; with n = 1 it is th:4.

    Examples
    --------
    >>> bound = client_bound(
    ...     models=20, learning_rate=0.05, fewest_clusters=5, most_clusters=5, rounds=200
    ... )
    >>> round(bound.theorem, 2), round(bound.sharp, 2), round(bound.realised, 2)
    (109.91, 80.75, 153.98)
    """
    start = math.log(models) / learning_rate
    growth = learning_rate * interval * rounds
    sharp = start + growth * largest_second_moment(models, most_clusters) / 2
    deviation = comparator_deviation(models=models, most_clusters=most_clusters, rounds=rounds, interval=interval)
    return ClientBound(start + growth * fewest_clusters, sharp, sharp + deviation)


def comparator_deviation(*, models: int, most_clusters: int, rounds: int, interval: int = 1) -> float:
    """√(2 (M-1) n T ln K) + (M-1) n ln K/3: a bound on E max_k of a model's estimated less its true loss.

    Bernstein's inequality for martingales: an estimate of an exchange exceeds the loss by at most (M-1) n, with a
    variance of at most (M-1) n².

    >>> comparator_deviation(models=20, most_clusters=1, rounds=200)
    0.0
    """
    excess, experts = most_clusters - 1, math.log(models)
    return math.sqrt(2 * excess * interval * rounds * experts) + excess * interval * experts / 3


def server_bound(
    *,
    distance: float,
    gradient: float,
    fine_tuning_rate: float,
    most_groups: int,
    fewest_clusters: float,
    most_clusters: float,
    rounds: int,
    interval: int = 1,
) -> ServerBound:
    """‖θ_1 - θ*‖²/(2η_f) + η_f α μ G² n T, with the mean of μ_i (or of max_j m_ij, halved) over clients.

    Parameters
    ----------
    distance
        ‖θ_1 - θ*‖, the distance from the pre-trained to the best parameters.
    gradient
        G, the largest norm of a gradient.
    fine_tuning_rate
        η_f.
    most_groups
        The largest α of the run; it depends on the requests.
    fewest_clusters, most_clusters
        Means over clients of μ_i and of max_j m_ij.

    Examples
    --------
    The counterexample to the paper's R/(2η_f): N = 1, loss |θ - 1|/2 from θ = -1, regret 42.5.

    >>> server_bound(
    ...     distance=2.0, gradient=0.5, fine_tuning_rate=0.05, most_groups=1, fewest_clusters=1,
    ...     most_clusters=1, rounds=400,
    ... ).theorem
    45.0
    """
    start = distance**2 / (2 * fine_tuning_rate)
    growth = fine_tuning_rate * most_groups * gradient**2 * interval * rounds
    return ServerBound(start + growth * fewest_clusters, start + growth * most_clusters / 2)


@dataclass(frozen=True)
class UseBound:
    """Upper bounds on the server's expected cumulative regret over all models by use.

    Attributes
    ----------
    fixed
        Against fixed parameters.
    realised
        Against the best parameters for the weights with which the models were used, known only afterwards.
    """

    fixed: float
    realised: float


def server_bound_by_use(
    *, distance: float, gradient: float, fine_tuning_rate: float, most_groups: int, rounds: int, interval: int = 1
) -> UseBound:
    """D²/(2η_f) + η_f α G² n T/2, and D G √(α n T) more, where gradients count p/q.

    The regret is that of what the clients use: Σ_k p_k (L(θ_k,t) - L(θ_k)), mean over clients, summed over rounds.

    Parameters
    ----------
    distance
        D = (Σ_k ‖θ_k,1 - θ_k‖²)^½, over the parameters of all models together.
    gradient, fine_tuning_rate, most_groups, rounds, interval
        G, η_f, the largest α, T and n.

    Examples
    --------
    >>> server_bound_by_use(distance=2.0, gradient=1.0, fine_tuning_rate=0.1, most_groups=1, rounds=400)
    UseBound(fixed=40.0, realised=80.0)
    """
    growth = most_groups * gradient**2 * interval * rounds
    fixed = distance**2 / (2 * fine_tuning_rate) + fine_tuning_rate * growth / 2
    return UseBound(fixed, fixed + distance * math.sqrt(growth))


def tuned_learning_rate(*, models: int, fewest_clusters: int, rounds: int, interval: int = 1) -> float:
    """η = √(ln K/(μ n T)), eq. (72ap): the rate that minimises the theorem's bound on a client.

    >>> round(tuned_learning_rate(models=20, fewest_clusters=5, rounds=200), 3)
    0.055
    """
    return math.sqrt(math.log(models) / (fewest_clusters * interval * rounds))


def sharp_learning_rate(*, models: int, most_clusters: int, rounds: int, interval: int = 1) -> float:
    """η = √(2 ln K/(G n T)): the rate that minimises the sharp bound on a client, to √(2 G n T ln K).

    >>> rate = sharp_learning_rate(models=20, most_clusters=19, rounds=400)
    >>> bound = client_bound(models=20, learning_rate=rate, fewest_clusters=19, most_clusters=19, rounds=400)
    >>> round(rate, 4), round(bound.sharp, 1)
    (0.0387, 154.8)
    """
    second_moment = largest_second_moment(models, most_clusters)
    return math.sqrt(2 * math.log(models) / (second_moment * interval * rounds))


def tuned_fine_tuning_rate(*, most_groups: int, fewest_clusters: float, rounds: int, interval: int = 1) -> float:
    """η_f = 1/√(α n T · mean of μ_i), eq. (75ap).

    >>> round(tuned_fine_tuning_rate(most_groups=2, fewest_clusters=5, rounds=200), 4)
    0.0224
    """
    return 1.0 / math.sqrt(most_groups * interval * rounds * fewest_clusters)
