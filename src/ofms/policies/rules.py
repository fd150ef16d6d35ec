"""The rules that every policy keeps, checked in every exchange, whoever runs it.

Sessions check what a half returns before it is used, so that a policy that breaks a rule ends the run with a line that
names policy, client, exchange and rule, instead of figures that no device could reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.messages import Grants, Plan, Requests
from ofms.core.typing import AnyArray, Flags, Floats, Integers

# Weights may come from sums in single precision.
_TOLERANCE = 1e-5
_MOST = np.finfo(np.float64).max
_NUMBERS_IN_A_BLOCK = 100_000


class BrokenRule(InvalidInput):
    """A rule that a policy broke for a client, by its number or name.

    >>> str(BrokenRule("greedy", 3, 5, "it predicts with a model that it does not hold", 1).named("pump", ["a", "b"]))
    'policy = greedy: client pump, exchange 5: it predicts with a model that it does not hold (b); correct the policy'
    """

    def __init__(
        self, policy: str, client: int | str, exchange: int, rule: str, model: int | str | None = None
    ) -> None:
        self.policy, self.client, self.exchange, self.rule, self.model = policy, client, exchange, rule, model
        what = "" if model is None else f" ({f'model {model}' if isinstance(model, int) else model})"
        super().__init__("policy", policy, f"client {client}, exchange {exchange}: {rule}{what}; correct the policy")

    def named(self, client: str, models: Sequence[str]) -> BrokenRule:
        """The same with the names of client and model."""
        model = models[self.model] if isinstance(self.model, int) else self.model
        return BrokenRule(self.policy, client, self.exchange, self.rule, model)


def require_parts(policy: str, method: str, found: Any, names: Sequence[str]) -> Any:
    """What a method of a half returned; rejected unless it is a tuple of the named parts.

    >>> require_parts("greedy", "select", (None, None), ["state", "models"])
    (None, None)
    >>> require_parts("greedy", "select", "all", ["state", "models"])
    Traceback (most recent call last):
    ...
    ofms.core.errors.InvalidInput: policy = greedy: its select returned a str; return a tuple: state, models
    """
    if isinstance(found, tuple) and len(found) == len(names):
        return found
    what = f"{len(found)} values" if isinstance(found, tuple) else f"a {type(found).__name__}"
    raise InvalidInput("policy", policy, f"its {method} returned {what}; return a tuple: {', '.join(names)}")


def require_requests(policy: str, requests: Requests) -> None:
    """Reject requests that are not one flag for each client and model."""
    _require_array(policy, requests.exchange, "the request", requests.wanted, requests.holding.shape, "b")


def require_held(policy: str, requests: Requests, held: Flags, storage: Integers, budgets: Integers) -> None:
    """Reject [N, K] models to hold that exceed a client's budget.

    Parameters
    ----------
    storage
        [K] the memory that a model takes, with the policy's working copies.
    budgets
        [N] those of the clients of `requests`.
    """
    _require_array(policy, requests.exchange, "the granted set", held, requests.wanted.shape, "b")
    # Products of floats are fast, and exact up to 2⁵³ bytes.
    needed = np.einsum("nk,k->n", held, storage.astype(np.float64))
    for row in np.flatnonzero(needed > budgets)[:1].tolist():
        rule = f"it holds {needed[row]:.0f} bytes, more than its budget of {int(budgets[row])}"
        raise BrokenRule(policy, int(requests.client[row]), requests.exchange, rule)


def require_plan(policy: str, grants: Grants, plan: Plan) -> None:
    """Reject a plan that breaks a rule.

    - A client holds what it was granted.
    - Prediction weights are numbers from 0 on that sum to one, of held models only.
    - Inclusion probabilities lie in [0, 1], and above 0 for models that predict.
    - Update weights are finite numbers from 0 on, of held models, and of clients that upload.
    - Offsets are finite.
    """
    exchange, shape, clients = grants.exchange, grants.held.shape, grants.client
    _require_array(policy, exchange, "the held set", plan.held, shape, "b")
    for name, array in (
        ("prediction_weights", plan.prediction_weights),
        ("inclusion", plan.inclusion),
        ("update_weight", plan.update_weight),
    ):
        _require_array(policy, exchange, f"the plan's {name}", array, shape, "fiu")
    _require_weights(policy, exchange, clients, plan.prediction_weights, grants.held)
    if plan.offset is not None:
        _require_array(policy, exchange, "the plan's offset", plan.offset, (shape[0], plan.offset.shape[-1]), "f")
        for row in np.flatnonzero(~np.isfinite(plan.offset).all(axis=1))[:1].tolist():
            raise BrokenRule(policy, int(clients[row]), exchange, "the offset of its predictions is not finite")
    for rows in _blocks(shape):
        held, inclusion, update = grants.held[rows], plan.inclusion[rows], plan.update_weight[rows]
        predicting = plan.prediction_weights[rows] > 0
        check = partial(_require, policy, exchange, clients[rows])
        if plan.held is not grants.held:
            check(plan.held[rows] == held, "it holds other models than it was granted")
        if not _within(inclusion, 1 + _TOLERANCE):
            check((inclusion >= 0) & (inclusion <= 1 + _TOLERANCE), "an inclusion probability is not in [0, 1]")
        check(predicting <= (inclusion > 0), "a model predicts whose inclusion probability is 0")
        if update.any():
            check((update >= 0) & (update <= _MOST), "an update weight is negative or not finite")
            check((update != 0) <= (held & grants.uploads[rows, None]), "it updates a model that it may not upload")


def require_probabilities(policy: str, exchange: int, clients: Integers, weights: Floats) -> None:
    """Reject [N, K] or [1, K] expected prediction weights that are no probabilities."""
    _require_weights(policy, exchange, clients, weights, np.ones((1, 1), dtype=np.bool_))


def require_steps(policy: str, exchange: int, steps: Floats) -> None:
    """Reject a step along the summed updates that is not finite."""
    for model in np.flatnonzero(~np.isfinite(steps))[:1].tolist():
        raise InvalidInput(
            "policy",
            policy,
            f"exchange {exchange}: the server's step for model {model} is {steps[model]}; keep it finite",
        )


def _require_weights(policy: str, exchange: int, clients: Integers, weights: AnyArray, held: Flags) -> None:
    for rows in _blocks(weights.shape):
        some, allowed = weights[rows], held if held.shape[0] == 1 else held[rows]
        check = partial(_require, policy, exchange, clients[rows])
        if not _within(some, _MOST):
            check((some >= 0) & (some <= _MOST), "a prediction weight is negative or not finite")
        total = np.einsum("nk->n", some, dtype=np.float64)
        for row in np.flatnonzero(~(np.abs(total - 1) <= _TOLERANCE))[:1].tolist():
            rule = f"its prediction weights sum to {total[row]:.6g}, not to 1"
            raise BrokenRule(policy, int(clients[rows][row]), exchange, rule)
        check((some != 0) <= allowed, "it predicts with a model that it does not hold")


def _within(values: AnyArray, most: float) -> bool:
    """Whether all values lie in [0, most]: faster than flags; false if one is not a number."""
    return bool(values.min() >= 0 and values.max() <= most)


def _require_array(policy: str, exchange: int, name: str, array: object, shape: tuple[int, ...], kinds: str) -> None:
    if isinstance(array, np.ndarray) and array.shape == shape and array.dtype.kind in kinds:
        return
    found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
    expected = f"an array of {'flags' if kinds == 'b' else 'numbers'} {list(shape)}"
    raise InvalidInput("policy", policy, f"exchange {exchange}: {name} must be {expected}, not {found}")


def _require(policy: str, exchange: int, clients: Integers, kept: Flags, rule: str) -> None:
    """Reject [n, K] flags that are not all set."""
    if not kept.all():
        row, model = np.argwhere(~kept)[0].tolist()
        raise BrokenRule(policy, int(clients[row]), exchange, rule, model)


def _blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Rows whose intermediate results fit the cache."""
    size = max(1, _NUMBERS_IN_A_BLOCK // max(1, shape[1]))
    return (slice(first, first + size) for first in range(0, shape[0], size))
