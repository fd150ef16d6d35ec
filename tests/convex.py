"""A problem that meets every assumption of the theorems, run on the policies' halves with NumPy alone.

Model k predicts θ_k·x from two features of its own choice; the loss is |θ·x - y| with ‖x‖ ≤ 1, |y| ≤ ½ and ‖θ‖ ≤ ½
kept by projection, so that it lies in [0, 1], is convex, and its gradients have norm at most 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ofms.core.draws import Draws
from ofms.core.regret import ClientRegret
from ofms.core.typing import Floats
from ofms.policies.protocol import Fleet, GradientStep, Policy


@dataclass(frozen=True, eq=False)
class Problem:
    """x [N, T, K, 2]: what each model sees of a sample; y [N, T]; the models' first parameters [K, 2]."""

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
        """[N, K]."""
        return np.abs((self.x[:, step] * parameters).sum(axis=-1) - self.y[:, step, None])

    def gradients(self, step: int, parameters: Floats) -> Floats:
        """[N, K, 2] subgradients."""
        sign = np.sign((self.x[:, step] * parameters).sum(axis=-1) - self.y[:, step, None])
        return sign[..., None] * self.x[:, step]


@dataclass(frozen=True, eq=False)
class Trace:
    """All that the proofs speak of: [T, N, K] p, q, ℓ, L, pull; [T+1, K, 2] parameters; [T] numbers of groups."""

    pmf: Floats
    estimates: Floats
    losses: Floats
    pull: Floats
    parameters: Floats
    gradients: Floats
    groups: list[int]
    regret: Floats


def project(parameters: Floats) -> Floats:
    """Onto the ball ‖θ‖ ≤ ½."""
    return parameters / np.maximum(1, 2 * np.linalg.norm(parameters, axis=-1, keepdims=True))


def run(policy: Policy, fleet: Fleet, problem: Problem, seed: int, *, projected: bool = True) -> Trace:
    """The protocol, exchange by exchange, with this problem's losses and gradient steps."""
    assert isinstance(policy.local, GradientStep)
    clients = fleet.budgets.size
    client = policy.client.join(fleet.catalogue, fleet.budgets, np.arange(clients))
    server = policy.server.open(fleet.catalogue, fleet.bandwidth)
    parameters = problem.start
    regret = ClientRegret.start(clients, len(fleet.catalogue))
    history: dict[str, list[Floats]] = {name: [] for name in ("pmf", "estimates", "losses", "pull", "gradients")}
    path, groups = [parameters], []
    for exchange in range(fleet.schedule.exchanges):
        draws = Draws(seed, exchange)
        client, requests = policy.client.request(client, draws)
        server, grants = policy.server.grant(server, requests, draws)
        client, plan = policy.client.plan(client, grants)
        pmf = policy.expected_vote(client, server)
        losses = problem.losses(exchange, parameters)
        before = client.cumulative_losses
        client, reports = policy.client.learn(client, plan, np.where(plan.held, losses, np.nan))
        server, step = policy.server.absorb(server, reports)
        slopes = problem.gradients(exchange, parameters)
        moved = parameters - step[:, None] * policy.local.rate * np.einsum("nk,nkd->kd", plan.pull, slopes)
        parameters = project(moved) if projected else moved
        regret = regret.add((pmf * losses).sum(axis=1), losses)
        for name, value in (
            ("pmf", pmf),
            ("estimates", client.cumulative_losses - before),
            ("losses", losses),
            ("pull", plan.pull),
            ("gradients", slopes),
        ):
            history[name].append(value)
        path.append(parameters)
        groups.append(grants.groups)
    arrays = {name: np.stack(values) for name, values in history.items()}
    return Trace(**arrays, parameters=np.stack(path), groups=groups, regret=regret.value)
