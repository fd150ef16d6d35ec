"""What every policy keeps, one function each: AssertionError, or InvalidInput of the session, if it does not."""

from __future__ import annotations

import json
from typing import TypeVar

import msgspec
import numpy as np

from ofms.core.draws import Draws
from ofms.core.ledger import count_bytes
from ofms.core.messages import Requests
from ofms.core.states import flatten, unflatten
from ofms.core.typing import Floats
from ofms.policies.fleet import Fleet
from ofms.policies.protocol import Algorithm, Policy
from ofms.policies.session import open_sessions
from ofms.testing.exchanges import as_plain, learnt, losses_of, new_states, planned, run_exchanges

T = TypeVar("T")


def require(kept: object, rule: str) -> None:
    """Raise AssertionError, also under `python -O`."""
    if not kept:
        raise AssertionError(rule)


def check_exchanges(policy: Policy, fleet: Fleet, seed: int, losses: Floats) -> None:
    """Every exchange: budgets and bandwidth are kept, weights are probabilities, nothing is sent twice."""
    copies = policy.local.copies if policy.local else 1
    version, holding = fleet.catalogue.version, np.full(losses.shape[1:], -1)
    for each in run_exchanges(policy, fleet, seed, losses):
        requests, grants, plan, reports = each.requests, each.grants, each.plan, each.reports
        traffic = count_bytes(fleet.catalogue, grants, reports, copies)
        reported = 0 if reports.losses is None else int(np.isfinite(reports.losses).sum())
        require((traffic.held <= fleet.budgets).all(), "a client holds more than its budget")
        require(traffic.up.sum() <= fleet.bandwidth + 8 * reported, "clients upload more than the bandwidth")
        known = reports.losses is None or (np.isfinite(reports.losses) <= grants.held).all()
        require(known, "a loss is reported of a model that was not held")
        require((requests.holding == holding).all(), "a client does not hold what it was granted")
        require((grants.version == version).all(), "versions do not follow from the updates")
        due = grants.held & (holding != version)
        require((grants.sent == due).all(), "a version that a client holds is sent again, or one that it lacks is not")
        require((plan.held == grants.held).all(), "a client plans with other models than it was granted")
        require(np.allclose(plan.prediction_weights.sum(axis=1), 1), "prediction weights do not sum to one")
        require((plan.prediction_weights[~plan.held] == 0).all(), "a model predicts that is not held")
        require((plan.update_weight[~plan.held] == 0).all(), "a model is fine-tuned that is not held")
        require((plan.update_weight[~grants.uploads] == 0).all(), "a client updates that was not drawn to upload")
        require(np.isfinite(plan.update_weight).all(), "an update weight is not finite")
        require((reports.updated == (plan.update_weight > 0)).all(), "updates do not follow from their weights")
        require((each.weights >= 0).all(), "an expected weight is negative")
        require(np.allclose(each.weights.sum(axis=1), 1, atol=1e-9), "expected weights do not sum to one")
        require(np.isfinite(each.step).all(), "the server's step is not finite")
        holding = np.where(grants.held, version, -1)
        version = version + reports.updated.any(axis=0)


def check_repeatable(policy: Policy, fleet: Fleet, seed: int) -> None:
    """The same seed gives the same run: every random number comes from the draws that a half is given."""
    losses = losses_of(fleet, seed)
    first, second = (run_exchanges(policy, fleet, seed, losses) for _ in range(2))
    same = all(as_plain(one) == as_plain(other) for one, other in zip(first, second, strict=True))
    require(same, "the same seed gave another run; take random numbers from the draws")


def check_alone_and_together(policy: Policy, fleet: Fleet, seed: int) -> None:
    """N clients in one array request the same models as N arrays of one client: a device is the case N = 1."""
    clients, _ = open_sessions(policy, fleet)
    numbers, draws = np.arange(fleet.budgets.size), Draws(seed, 0)
    together = clients.request(clients.join(fleet.catalogue, fleet.budgets, numbers), draws)[1]
    alone = [
        clients.request(clients.join(fleet.catalogue, fleet.budgets[own], numbers[own]), draws)[1]
        for own in (slice(index, index + 1) for index in range(numbers.size))
    ]
    same = as_plain(Requests.stack(alone)) == as_plain(together)
    require(same, "a client requests other models alone than among others")


def check_saved_states(policy: Policy, fleet: Fleet, seed: int) -> None:
    """States that were saved and restored continue with the same requests and grants."""
    clients, servers = open_sessions(policy, fleet)
    client, server = new_states(policy, fleet)
    for exchange in range(3):
        client, server, requests, plan = planned(policy, fleet, client, server, Draws(seed, exchange))
        losses = np.random.default_rng(exchange).random(plan.held.shape)
        client, reports = learnt(clients, client, plan, losses)
        server, _ = servers.absorb(server, reports)
    fresh_client, fresh_server = new_states(policy, fleet)
    again, again_server = _restored(client, fresh_client), _restored(server, fresh_server)
    draws = Draws(seed, 3)
    expected, found = (clients.request(each, draws)[1] for each in (client, again))
    require(as_plain(found) == as_plain(expected), "a restored client requests other models")
    expected_grants, found_grants = (servers.grant(each, requests, draws)[1] for each in (server, again_server))
    require(as_plain(found_grants) == as_plain(expected_grants), "a restored server grants other models")


def check_observed(policy: Policy, fleet: Fleet, seed: int) -> None:
    """Only losses of observed models are learnt from."""
    clients, _ = open_sessions(policy, fleet)
    client, server = new_states(policy, fleet)
    client, _, _, plan = planned(policy, fleet, client, server, Draws(seed, 0))
    observed = policy.observed(plan)
    require((observed <= plan.held).all(), "a loss is observed of a model that is not held")
    require((observed >= (plan.prediction_weights > 0)).all(), "a model predicts that is not observed")
    losses = np.random.default_rng(seed).random(plan.held.shape)
    everything, needed = (learnt(clients, client, plan, losses, known) for known in (plan.held, observed))
    same = [as_plain(part) for part in needed] == [as_plain(part) for part in everything]
    require(same, "it learns from losses that it does not observe")


def check_deployable(algorithm: Algorithm, policy: Policy) -> None:
    """The client half is a dataclass of plain values, which a server can send to devices."""
    try:
        sent = msgspec.json.encode(msgspec.to_builtins(policy.client, str_keys=True))
        same = msgspec.convert(msgspec.json.decode(sent), algorithm.client, str_keys=True) == policy.client
    except (TypeError, ValueError) as error:
        raise AssertionError(f"the client half cannot be sent to a device: {error}") from None
    require(same, "a device receives another client half than the server's; make it a dataclass of plain values")


def _restored(state: T, template: T) -> T:
    """A state that was written as bytes and JSON, and read into a new one."""
    arrays, values = flatten(state)
    read = {name: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape) for name, array in arrays.items()}
    return unflatten(template, read, json.loads(json.dumps(values)))
