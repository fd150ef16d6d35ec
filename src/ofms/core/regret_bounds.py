"""The regret bounds of th:4 and th:5, and the rates that the paper tunes for them.

Each bound has two forms. `theorem` is the paper's, in μ, the minimum number of clusters for the worst chosen model.
`sharp` follows from the same proofs with q ≥ 1/max_j m_j instead of q ≥ 1/(2μ): it needs only the clusters of
first-fit decreasing. Since max_j m_j ≤ 2μ, it never exceeds the theorem's. The server's first term is
‖θ_1 - θ*‖²/(2η_f): the paper's R/(2η_f) holds only for models that start at zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ClientBound:
    """Upper bounds on a client's expected cumulative regret, eq. (11r2) and (54ap)."""

    theorem: float
    sharp: float


@dataclass(frozen=True)
class ServerBound:
    """Upper bounds on the server's expected cumulative regret for one model, eq. (12r2) and (55ap)."""

    theorem: float
    sharp: float


def client_bound(
    *,
    models: int,
    learning_rate: float,
    fewest_clusters: int,
    most_clusters: int,
    rounds: int,
    interval: int = 1,
) -> ClientBound:
    """ln K/η + η μ n T, and ln K/η + η · max_j m_j · n T/2.

    Parameters
    ----------
    models
        K.
    learning_rate
        η_i.
    fewest_clusters
        μ_i, or an upper bound on it.
    most_clusters
        max_j m_j.
    rounds, interval
        T and n; with n = 1 it is th:4.

    Examples
    --------
    >>> bound = client_bound(
    ...     models=20, learning_rate=0.05, fewest_clusters=5, most_clusters=5, rounds=200
    ... )
    >>> round(bound.theorem, 2), round(bound.sharp, 2)
    (109.91, 84.91)
    """
    start = math.log(models) / learning_rate
    growth = learning_rate * interval * rounds
    return ClientBound(start + growth * fewest_clusters, start + growth * most_clusters / 2)


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


def tuned_learning_rate(*, models: int, fewest_clusters: int, rounds: int, interval: int = 1) -> float:
    """η = √(ln K/(μ n T)), eq. (72ap): the rate that minimises the theorem's bound on a client.

    >>> round(tuned_learning_rate(models=20, fewest_clusters=5, rounds=200), 3)
    0.055
    """
    return math.sqrt(math.log(models) / (fewest_clusters * interval * rounds))


def tuned_fine_tuning_rate(*, most_groups: int, fewest_clusters: float, rounds: int, interval: int = 1) -> float:
    """η_f = 1/√(α n T · mean of μ_i), eq. (75ap).

    >>> round(tuned_fine_tuning_rate(most_groups=2, fewest_clusters=5, rounds=200), 4)
    0.0224
    """
    return 1.0 / math.sqrt(most_groups * interval * rounds * fewest_clusters)
