"""The states of clients in a checkpoint: of the whole fleet, whichever processes ran it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from ofms.compute.group import Group
from ofms.core.messages import Catalogue
from ofms.core.states import flatten, unflatten
from ofms.core.typing import AnyArray, Integers
from ofms.policies.session import ClientState
from ofms.simulator.cohorts import Cohorts, States

Arrays = dict[str, AnyArray]
Values = dict[str, Any]


def flatten_clients(
    cohorts: Cohorts, states: States, prefixes: Mapping[int, str], group: Group, catalogue: Catalogue, budgets: Integers
) -> tuple[Arrays, Values]:
    """The states as arrays and values by path; `prefixes` by the first client of each cohort of all processes.

    Arrays that are as in a new state, such as tables that follow from budgets, are those of a new state of the whole
    fleet. Of the others, rows are joined; an array without a row for each client is common to all.
    """
    arrays: Arrays = {}
    values: Values = {}
    changed: Arrays = {}
    for rows, numbers, state in zip(cohorts.members, cohorts.numbers, states, strict=True):
        prefix, own = prefixes[int(numbers[0])], rows + cohorts.first
        found, own_values = flatten(state, prefix)
        values |= own_values
        if group.size == 1:
            arrays |= found
            continue
        fresh, _ = flatten(cohorts.session.join(catalogue, budgets[own], own), prefix)
        changed |= {name: array for name, array in found.items() if not _same(array, fresh[name])}
        changed[f"{prefix}/clients"] = own
    if group.size == 1:
        return arrays, values
    parts = group.gather(changed)
    told = group.gather({"values": np.frombuffer(msgspec.json.encode(values), np.uint8)})
    for part in told:
        values |= msgspec.json.decode(part["values"].tobytes())
    for first, prefix in prefixes.items():
        key = f"{prefix}/clients"
        have = [part for part in parts if key in part]
        everyone = np.concatenate([part[key] for part in have])
        assert int(everyone[0]) == first
        whole, _ = flatten(cohorts.session.join(catalogue, budgets[everyone], everyone), prefix)
        for name, new in whole.items():
            if any(name in part for part in have):
                own_parts = [_part(part, name, new, everyone, part[key]) for part in have]
                arrays[name] = _joined(name, own_parts, [part[key].size for part in have], new.shape[0])
            else:
                arrays[name] = new
    return arrays, values


def unflatten_clients(
    cohorts: Cohorts,
    states: States,
    prefixes: Mapping[int, str],
    group: Group,
    catalogue: Catalogue,
    budgets: Integers,
    stored: tuple[Arrays, Values],
) -> States:
    """The inverse, for the clients of this process."""
    arrays, values = stored
    if group.size == 1:
        named = [(prefixes[int(numbers[0])], state) for numbers, state in zip(cohorts.numbers, states, strict=True)]
        return tuple(unflatten(state, arrays, values, prefix) for prefix, state in named)
    made = []
    for rows, numbers in zip(cohorts.members, cohorts.numbers, strict=True):
        prefix, own = prefixes[int(numbers[0])], rows + cohorts.first
        template: ClientState = cohorts.session.join(catalogue, budgets[own], own)
        fresh, _ = flatten(template, prefix)
        whole, _ = flatten(cohorts.session.join(catalogue, budgets[numbers], numbers), prefix)
        places = np.searchsorted(numbers, own)
        found = {}
        for name in fresh:
            if _same(arrays[name], whole[name]):
                found[name] = fresh[name]
            else:
                by_client = arrays[name].shape[0] == numbers.size > 1
                found[name] = arrays[name][places] if by_client else arrays[name]
        made.append(unflatten(template, found, values, prefix))
    return tuple(made)


def _part(part: Arrays, name: str, fresh: AnyArray, everyone: Integers, own: Integers) -> AnyArray:
    """A process's array; rows of a new state if it is still as in one."""
    if name in part:
        return part[name]
    return fresh[np.searchsorted(everyone, own)] if fresh.shape[0] == everyone.size else fresh


def _joined(name: str, arrays: list[AnyArray], counts: list[int], rows: int) -> AnyArray:
    """The rows of all processes, which have so many clients each; or what is common to all, where it is longest.

    `rows` are those of the array in a new state of the whole fleet. A process forgets exchanges, the oldest first, once
    they are final for its own clients, [N, R, ...]. The whole fleet has those that any process has kept.
    """
    by_client = all(array.shape[0] == count for array, count in zip(arrays, counts, strict=True))
    if not by_client or (rows == 1 and max(counts) == 1):
        return max(arrays, key=lambda array: array.size)
    most = max(array.shape[1] if array.ndim > 1 else 0 for array in arrays)
    return np.concatenate([_with_forgotten(name, array, most) for array in arrays])


def _with_forgotten(name: str, array: AnyArray, most: int) -> AnyArray:
    """An array with `most` exchanges: the oldest one stands for those that were forgotten, and they are final."""
    if array.ndim == 1 or array.shape[1] == most:
        return array
    forgotten = np.repeat(array[:, :1], most - array.shape[1], axis=1)
    if name.endswith(".final"):
        forgotten[:] = True
    return np.concatenate([forgotten, array], axis=1)


def _same(one: AnyArray, other: AnyArray) -> bool:
    """Whether arrays have the same shape, type and bits."""
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
