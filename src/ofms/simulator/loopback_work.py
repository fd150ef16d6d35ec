"""What all clients of the loopback do in an exchange, one after the other: updates, own copies, and hindsight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from ofms.compute.checks import is_finite
from ofms.compute.evaluation import EvaluationBuilder
from ofms.compute.local import Tensors
from ofms.compute.protocol import Summed
from ofms.compute.tasks import sample_losses
from ofms.core.messages import Plan, Reports
from ofms.core.schedule import Window
from ofms.core.typing import Flags
from ofms.policies.local_updates import LocalUpdate
from ofms.simulator.loopback_client import LoopbackClient

Numbered = Sequence[tuple[int, LoopbackClient]]


def updates_of(
    clients: Numbered,
    plans: Sequence[Plan],
    reports: Reports,
    window: Window,
    local: LocalUpdate,
    combine: Callable[[int, Mapping[int, Tensors]], Tensors] | None = None,
) -> Summed:
    """The clients' weighted updates of each model that are finite, summed in the order of the clients.

    `combine` makes one update of a model's number and its updates by client, instead of the sum.
    """
    totals: dict[int, Tensors] = {}
    apart: dict[int, dict[int, Tensors]] = {}
    left_out: list[tuple[int, int]] = []
    for place, ((index, client), plan) in enumerate(zip(clients, plans, strict=True)):
        weights = {
            model: float(plan.update_weight[0, model]) for model in np.flatnonzero(reports.updated[place]).tolist()
        }
        offset = None if plan.offset is None else plan.offset[0]
        updates = client.fine_tune(weights, window, local, plan.prediction_weights[0], offset)
        for model, update in updates.items():
            if not is_finite(update.values()):
                left_out.append((index, model))
                continue
            if combine is not None:
                apart.setdefault(model, {})[index] = update
                continue
            total = totals.setdefault(model, {name: torch.zeros_like(part) for name, part in update.items()})
            for name, part in update.items():
                total[name] += part
    if combine is not None:
        totals = {model: combine(model, updates) for model, updates in apart.items()}
    return Summed(totals, left_out)


def train_own_copies(
    clients: Numbered, model: int | None, window: Window, local: LocalUpdate, models: int
) -> list[tuple[int, int]]:
    """Each client's fine-tuning of its own copy of a model, which stays with it; the clients that it would break."""
    left_out: list[tuple[int, int]] = []
    for index, client in clients:
        if model is not None and model in client.store:
            update = client.fine_tune({model: 1.0}, window, local, np.zeros(models))[model]
            moved = {name: client.store[model][name] + part for name, part in update.items()}
            if is_finite(moved.values()):
                client.store[model] = client.store[model] | moved
            else:
                left_out.append((index, model))
    return left_out


def evaluate_all(
    builder: EvaluationBuilder,
    clients: Sequence[LoopbackClient],
    networks: Sequence[nn.Module],
    models: Sequence[Tensors],
    span: tuple[int, int],
) -> EvaluationBuilder:
    """Evaluate all models on all clients' samples: only for metrics, no client sees the results."""
    x = torch.cat([client.x[span[0] : span[1]] for client in clients])
    targets = torch.stack([client.y[span[0] : span[1]] for client in clients])
    everybody: Flags = np.ones((len(clients), 1), dtype=np.bool_)
    for model, (network, tensors) in enumerate(zip(networks, models, strict=True)):
        with torch.no_grad():
            flat = functional_call(network, tensors, (x,))
        outputs = flat.unflatten(0, targets.shape).numpy()[:, :, None]
        losses = sample_losses(flat, targets.flatten(), builder.task).reshape(targets.shape).double().numpy()
        builder.add([model], np.arange(len(clients)), everybody, outputs, losses[:, :, None])
    return builder
