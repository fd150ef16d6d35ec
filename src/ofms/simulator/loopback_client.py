"""One client of the loopback: a device in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch

from ofms.compute.local import LocalNetworks, Tensors
from ofms.compute.tasks import sample_losses
from ofms.core.draws import Draws
from ofms.core.messages import Grants, Plan, Reports, Requests
from ofms.core.pooling import within_range
from ofms.core.schedule import Window
from ofms.core.states import flatten, unflatten
from ofms.core.typing import AnyArray, Floats, Integers
from ofms.policies.local_updates import Adapted, LocalUpdate, adaptation_window_of, tunes_pool
from ofms.policies.observations import Samples
from ofms.policies.session import ClientSession, ClientState

P = ParamSpec("P")
R = TypeVar("R")
Outputs = list[tuple[int, AnyArray, Floats]]


def _timed(
    method: Callable[Concatenate[LoopbackClient, P], R],
) -> Callable[Concatenate[LoopbackClient, P], R]:
    """Add the processor time of a client's method, on its thread, to the client's total."""

    @wraps(method)
    def counted(client: LoopbackClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        began = time.thread_time()
        try:
            return method(client, *args, **kwargs)
        finally:
            client.seconds += time.thread_time() - began

    return counted


@dataclass(eq=False)
class LoopbackClient:
    """A client's state, its samples, the parameters that it holds, its processor time, and when it joined."""

    session: ClientSession
    networks: LocalNetworks
    x: torch.Tensor
    y: torch.Tensor
    state: ClientState
    store: dict[int, Tensors] = field(default_factory=dict)
    seconds: float = 0.0
    first_round: int = 0

    @_timed
    def request(self, draws: Draws) -> Requests:
        self.state, requests = self.session.request(self.state, draws)
        return requests

    @_timed
    def receive(self, grants: Grants, sent: dict[int, Tensors]) -> Plan:
        """Keep the granted models, drop the others."""
        self.state, plan = self.session.plan(self.state, grants)
        held = set(np.flatnonzero(plan.held[0]).tolist())
        copies = {model: {name: tensor.clone() for name, tensor in tensors.items()} for model, tensors in sent.items()}
        self.store = {model: tensors for model, tensors in (self.store | copies).items() if model in held}
        if set(self.store) != held:
            raise AssertionError(f"granted {sorted(held)}, has {sorted(self.store)}")
        return plan

    @_timed
    def evaluate(self, exchange: int, models: Sequence[int]) -> Outputs:
        """(model, [n, C] outputs, [n] losses) of held models, sample by sample."""
        return self.evaluate_with(self.store, exchange, models)

    def evaluate_with(
        self, parameters: dict[int, Tensors] | Sequence[Tensors], exchange: int, models: Sequence[int]
    ) -> Outputs:
        """The same with given parameters, adapted to the client's past samples if the policy adapts."""
        first, stop = self.session.schedule.span(exchange)
        found = []
        for model in models:
            tensors = self._adapted(model, parameters[model], exchange)
            with torch.no_grad():
                steps = [self.networks.outputs(model, tensors, self.x[step : step + 1]) for step in range(first, stop)]
                outputs = torch.cat(steps)
                losses = sample_losses(outputs, self.y[first:stop], self.networks.task)
            found.append((model, outputs.numpy(), losses.numpy()))
        return found

    @_timed
    def learn(self, exchange: int, plan: Plan, losses: Floats, found: Outputs) -> Reports:
        """Learn from an exchange; evaluate newly held models on past samples if the policy remembers them."""
        late = self.session.late(self.state, plan)
        samples = None if late is None else self._samples(exchange, late[0], found)
        self.state, reports = self.session.learn(self.state, plan, losses, samples)
        return reports

    def _samples(self, exchange: int, late: Integers, found: Outputs) -> Samples:
        """The samples of an exchange, with outputs on it and of so many [K] `late` past samples."""
        first, stop = self.session.schedule.span(exchange)
        start = first - int(late.max())
        outputs = np.full((stop - start, late.size, found[0][1].shape[1]), np.nan, dtype=found[0][1].dtype)
        for model, current, _ in found:
            outputs[first - start :, model] = within_range(current)
            with torch.no_grad():
                for step in range(first - int(late[model]), first):
                    late_output = self.networks.outputs(model, self.store[model], self.x[step : step + 1])
                    outputs[step - start, model] = within_range(late_output.numpy())[0]
        return Samples.of(exchange, outputs[None], self.y[None, first:stop].numpy())

    @_timed
    def fine_tune(
        self,
        weights: Mapping[int, float],
        window: Window,
        local: LocalUpdate,
        prediction_weights: Floats,
        offset: Floats | None = None,
    ) -> dict[int, Tensors]:
        """The updates of models by the `weights` of their updates; [K] `prediction_weights` are those of the pool.

        [C] `offset` is that of predictions.
        """
        window = self._own(window)
        x, y = self.x[window.first : window.stop], self.y[window.first : window.stop]
        residuals = None
        if weights and tunes_pool(local, self.networks.task):
            residuals = self.networks.residuals(self.store, x, y, prediction_weights, offset)
        return {
            model: self.networks.update(
                model, self.store[model], x, y, window.weights, weight, local, residuals, offset
            )
            for model, weight in weights.items()
        }

    def _adapted(self, model: int, tensors: Tensors, exchange: int) -> Tensors:
        local = self.session.policy.local
        past = adaptation_window_of(local, self.session.schedule, exchange)
        if past is None or not isinstance(local, Adapted) or past.stop <= self.first_round:
            return tensors
        past = self._own(past)
        x, y = self.x[past.first : past.stop], self.y[past.first : past.stop]
        return self.networks.adapted(model, tensors, x, y, local.adaptation_rate)

    def _own(self, window: Window) -> Window:
        """The part of a window that the client saw."""
        before = max(0, self.first_round - window.first)
        return Window(window.first + before, window.weights[before:]) if before else window

    def flatten(self, prefix: str) -> tuple[dict[str, AnyArray], dict[str, Any]]:
        """The client's state and held parameters, as arrays and values."""
        arrays, values = flatten(self.state, f"{prefix}state.")
        for model, tensors in self.store.items():
            arrays |= {f"{prefix}store.{model}.{name}": tensor.numpy() for name, tensor in tensors.items()}
        return arrays, values | {f"{prefix}seconds": self.seconds}

    def unflatten(self, arrays: dict[str, AnyArray], values: dict[str, Any], prefix: str) -> None:
        """Continue from flattened arrays and values."""
        self.state = unflatten(self.state, arrays, values, f"{prefix}state.")
        self.seconds = float(values[f"{prefix}seconds"])
        self.store = {}
        for key, array in arrays.items():
            if key.startswith(f"{prefix}store."):
                model, _, name = key.removeprefix(f"{prefix}store.").partition(".")
                self.store.setdefault(int(model), {})[name] = torch.from_numpy(array.copy())
