"""A problem that satisfies every assumption of the theorems, run on the policies' halves with NumPy only.

Model k predicts θ_k·x from its own two features. The loss is |θ·x - y| with ‖x‖ ≤ 1, |y| ≤ ½ and ‖θ‖ ≤ ½ (by
projection): it lies in [0, 1], is convex, and its gradients have norm at most 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.draws import Draws
from ofms.core.packing import fewest_clusters, partition_models
from ofms.core.regret import ClientRegret, server_regret
from ofms.core.regret_bounds import server_bound
from ofms.core.typing import Floats
from ofms.policies.fleet import Fleet
from ofms.policies.local_updates import GradientStep
from ofms.policies.protocol import Policy
from ofms.policies.session import expected_weights, open_sessions


@dataclass(frozen=True, eq=False)
class Problem:
    """x [N, T, K, 2]: the features that each model sees; y [N, T]; the models' initial parameters [K, 2]."""

    x: Floats
    y: Floats
    start: Floats

    @classmethod
    def random(cls, clients: int, rounds: int, models: int) -> Problem:
        random = np.random.default_rng(0)
        x = random.normal(size=(clients, rounds, models, 2))
        x /= np.maximum(1, np.linalg.norm(x, axis=-1, keepdims=True))
        kind = np.arange(clients) % models
        clean = (x[np.arange(clients), :, kind] * [0.4, -0.2]).sum(axis=-1)
        y = np.clip(clean + 0.05 * random.normal(size=clean.shape), -0.5, 0.5)
        return cls(x, y, project(random.normal(size=(models, 2))))

    def losses(self, step: int, parameters: Floats) -> Floats:
        """[N, K] losses."""
        losses: Floats = np.abs((self.x[:, step] * parameters).sum(axis=-1) - self.y[:, step, None])
        return losses

    def gradients(self, step: int, parameters: Floats) -> Floats:
        """[N, K, 2] subgradients."""
        sign = np.sign((self.x[:, step] * parameters).sum(axis=-1) - self.y[:, step, None])
        gradients: Floats = sign[..., None] * self.x[:, step]
        return gradients


@dataclass(frozen=True, eq=False)
class Trace:
    """The quantities in the proofs: [T, N, K] p, ℓ, L and update weights; [T+1, K, 2] parameters; [T] groups."""

    pmf: Floats
    estimates: Floats
    losses: Floats
    update_weight: Floats
    parameters: Floats
    gradients: Floats
    groups: list[int]
    regret: Floats


def project(parameters: Floats) -> Floats:
    """Project onto the ball ‖θ‖ ≤ ½."""
    inside: Floats = parameters / np.maximum(1, 2 * np.linalg.norm(parameters, axis=-1, keepdims=True))
    return inside


def run(policy: Policy, fleet: Fleet, problem: Problem, seed: int, *, projected: bool = True) -> Trace:
    """Run the policy exchange by exchange, with this problem's losses and gradient steps."""
    if not isinstance(policy.local, GradientStep):
        raise TypeError(f"{policy.name} does not fine-tune by gradient steps")
    clients = fleet.budgets.size
    client_session, server_session = open_sessions(policy, fleet)
    client = client_session.join(fleet.catalogue, fleet.budgets, np.arange(clients))
    server = server_session.open()
    parameters = problem.start
    regret = ClientRegret.start(clients, len(fleet.catalogue))
    history: dict[str, list[Floats]] = {
        name: [] for name in ("pmf", "estimates", "losses", "update_weight", "gradients")
    }
    path, groups = [parameters], []
    for exchange in range(fleet.schedule.exchanges):
        draws = Draws(seed, exchange)
        client, requests = client_session.request(client, draws)
        server, grants = server_session.grant(server, requests, draws)
        client, plan = client_session.plan(client, grants)
        pmf = expected_weights(policy, client, server)
        losses = problem.losses(exchange, parameters)
        before = client.policy.cumulative_losses
        client, reports = client_session.learn(client, plan, np.where(policy.observed(plan), losses, np.nan))
        server, step = server_session.absorb(server, reports)
        gradients = problem.gradients(exchange, parameters)
        moved = parameters - step[:, None] * policy.local.rate * np.einsum("nk,nkd->kd", plan.update_weight, gradients)
        parameters = project(moved) if projected else moved
        regret = regret.add((pmf * losses).sum(axis=1), losses)
        for name, value in (
            ("pmf", pmf),
            ("estimates", client.policy.cumulative_losses - before),
            ("losses", losses),
            ("update_weight", plan.update_weight),
            ("gradients", gradients),
        ):
            history[name].append(value)
        path.append(parameters)
        groups.append(grants.groups)
    arrays = {name: np.stack(values) for name, values in history.items()}
    return Trace(**arrays, parameters=np.stack(path), groups=groups, regret=regret.value)


@dataclass(frozen=True, eq=False)
class ServerCurve:
    """[T] the server's mean regret over models and seeds after each round, and its bound at the end."""

    regret: Floats
    bound: float


def server_curve(fleet: Fleet, policy: Policy, problem: Problem, seeds: int) -> ServerCurve:
    """The server's regret (10r2) on a convex problem, against the best parameters of a fine grid."""
    if not isinstance(policy.local, GradientStep):
        raise TypeError(f"{policy.name} does not fine-tune by gradient steps")
    traces = [run(policy, fleet, problem, seed) for seed in range(seeds)]
    table = partition_models(fleet.catalogue.storage, fleet.budgets)
    mu = [fewest_clusters(fleet.catalogue.storage, budget).upper for budget in fleet.budgets.tolist()]
    ticks = np.linspace(-0.5, 0.5, 41)
    grid = project(np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2))
    curves, bounds = [], []
    for model in range(len(fleet.catalogue)):
        fits = np.abs(problem.x[:, :, model] @ grid.T - problem.y[..., None])
        best = int(fits.sum(axis=(0, 1)).argmin())
        curves += [server_regret(trace.losses[:, :, model], fits[:, :, best].T) for trace in traces]
        bounds.append(
            server_bound(
                distance=float(np.linalg.norm(problem.start[model] - grid[best])),
                gradient=1.0,
                fine_tuning_rate=policy.local.rate,
                most_groups=max(max(trace.groups) for trace in traces),
                fewest_clusters=float(np.mean(mu)),
                most_clusters=float(table.clusters.max(axis=1)[table.kind].mean()),
                rounds=fleet.schedule.require_rounds(),
            ).sharp
        )
    return ServerCurve(np.mean(curves, axis=0), float(np.mean(bounds)))
