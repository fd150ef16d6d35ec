"""How a server that holds its models as tensors learns from an exchange and moves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ofms.compute.checks import is_finite
from ofms.compute.momentum import Momentum, sizes_of
from ofms.compute.protocol import Tensors
from ofms.core.messages import Reports
from ofms.policies.session import ServerSession, ServerState


def move_models(
    session: ServerSession,
    before: ServerState,
    reports: Reports,
    updates: Mapping[int, Tensors],
    momentum: Momentum,
    tensors: list[Tensors],
    trainable: Sequence[Sequence[str]],
    first_version: Callable[[int], Tensors],
    awaited: int = 0,
) -> ServerState:
    """Learn from the reports, and move models along their summed updates; `tensors` are replaced.

    A model that would not be finite stays as it is and is quarantined; those that go back to their first versions are
    `session.restored`. `awaited` clients may report later.
    """
    directions = momentum.add(dict(updates))
    sizes = sizes_of(updates, directions, tensors, trainable)
    restored = np.flatnonzero(session.restored(before, reports)).tolist()
    state, step = session.absorb(before, reports, sizes, awaited)
    diverged = []
    for model in [model for model in directions if not state.quarantined[model]]:
        parts = directions[model].items()
        moved = tensors[model] | {name: tensors[model][name] + float(step[model]) * part for name, part in parts}
        if is_finite(moved.values()):
            tensors[model] = moved
        else:
            diverged.append(model)
    for model in restored:
        tensors[model] = first_version(model)
    state = session.unmoved(before, state, diverged)
    momentum.forget([*restored, *np.flatnonzero(state.quarantined).tolist()])
    return state
