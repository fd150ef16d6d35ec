"""The interface of both simulators, and their factory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from ofms.compute.factory import make_compute
from ofms.compute.group import ALONE, Group
from ofms.compute.own_copies import OwnCopies
from ofms.compute.protocol import Tensors
from ofms.compute.shards import Block, most_shards, shard_count
from ofms.core.attacks import Attack
from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.policies.fleet import Fleet
from ofms.policies.local_updates import Adapted, GradientStep
from ofms.policies.protocol import Policy
from ofms.simulator.exchange import Exchange
from ofms.simulator.fused import FusedSimulation
from ofms.simulator.loopback import LoopbackSimulation
from ofms.simulator.phases import Phases


class Simulation(Protocol):
    """A simulation of a policy on a fleet, exchange by exchange."""

    next_exchange: int

    def exchanges(self) -> Iterator[Exchange]:
        """Run the remaining exchanges, one at a time."""
        ...

    def parameters(self) -> list[Tensors]:
        """A copy of the dictionary's current parameters and buffers."""
        ...

    def client_figures(self) -> dict[str, AnyArray]:
        """Further arrays with a leading client axis that only this simulator measures."""
        ...

    def flatten(self) -> tuple[dict[str, AnyArray], dict[str, Any]]:
        """All state that changes between exchanges, as arrays and values."""
        ...

    def unflatten(self, arrays: dict[str, AnyArray], values: dict[str, Any]) -> None:
        """Continue from flattened arrays and values."""
        ...


def make_simulation(
    policy: Policy,
    fleet: Fleet,
    dictionary: Dictionary,
    stream: Stream,
    *,
    seed: int,
    hindsight: bool = True,
    dtype: torch.dtype = torch.float32,
    loopback: bool = False,
    workers: int | None = None,
    device: str = "cpu",
    cache: bool = False,
    progress: bool = False,
    phases: Phases | None = None,
    shards: int | None = None,
    group: Group = ALONE,
    attack: Attack | None = None,
) -> Simulation:
    """A simulator for a fleet: all clients at once, or client by client through messages.

    With `cache`, a run that never changes the dictionary looks up the models' outputs in the user's cache. With
    `phases`, the fleet changes during the run; `policy` and `fleet` are those of the first. With an `attack`, some
    clients upload hostile updates. Each process of `group` runs its own of the `shards`.
    """
    policies = [policy] if phases is None else [policy, *(setup.built for _, setup in phases.later)]
    if loopback:
        if device != "cpu":
            raise InvalidInput("device", device, "the loopback runs on the processor; leave it out")
        if group.size > 1:
            raise InvalidInput("loopback", True, "it runs in one process; leave out --processes")
        common: Any = {"seed": seed, "hindsight": hindsight, "phases": phases, "attack": attack}
        return LoopbackSimulation(policy, fleet, dictionary, stream, dtype=dtype, **common)

    block = block_of(stream, shards, group)
    if group.size > 1:
        _require_sums(policies, attack)
    make = partial(make_compute, dictionary, stream, dtype=dtype, device=device, workers=workers, block=block)
    targets = stream.y[slice(*block.clients)]
    given: Any = {"seed": seed, "hindsight": hindsight, "phases": phases, "block": block, "group": group}
    if cache and all(map(_is_frozen, policies)):
        return FusedSimulation(policy, fleet, make(cached=True, progress=progress), targets, **given)
    # The same choices with the first versions of models show the gain of fine-tuning.
    tuned = [each for each in policies if each.local is not None and each.local.rate > 0]
    controlled = any(isinstance(each.local, GradientStep) and each.local.control_every > 0 for each in tuned)
    frozen = make() if tuned and (hindsight or controlled) else None
    own = None
    copied = {each.own_model for each in tuned if each.own_model is not None}
    if len(copied) > 1:
        raise InvalidInput("events", "local_model", "clients keep their own copies of one model; do not change it")
    for model in copied:
        own = OwnCopies(dictionary, stream.rows(block.clients), model, dtype=dtype, device=device, block=block)
    return FusedSimulation(policy, fleet, make(), targets, frozen=frozen, own=own, attack=attack, **given)


def block_of(stream: Stream, shards: int | None, group: Group) -> Block:
    """The shards of this process; more processes than shards are rejected."""
    count = shard_count(stream.clients, shards, images=stream.x.ndim == 5)
    if group.size > count:
        most = most_shards(stream.clients)
        remedy = f"the run has {count} shards, of which each process needs one; give at most {count}"
        if most > count:
            remedy += f", or --set shards={min(most, group.size)}, which changes the last digits"
        raise InvalidInput("processes", group.size, remedy)
    return Block.of(stream.clients, count, group.rank, group.size)


def _require_sums(policies: Sequence[Policy], attack: Attack | None) -> None:
    """Reject what needs the updates of single clients."""
    remedy = "it needs the updates of all clients in one process; leave out --processes"
    if attack is not None:
        raise InvalidInput("attack", attack.kind, remedy)
    for policy in policies:
        if policy.aggregation.robust:
            raise InvalidInput("aggregation", policy.aggregation.kind, remedy)


def _is_frozen(policy: Policy) -> bool:
    """Whether clients predict with the initial dictionary throughout: nothing fine-tunes it, nobody adapts a copy."""
    return policy.local is None or (policy.local.rate == 0 and not isinstance(policy.local, Adapted))
