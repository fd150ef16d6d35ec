"""The interface of both simulators, and their factory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import torch

from ofms.compute.factory import make_compute
from ofms.compute.own_copies import OwnCopies
from ofms.compute.protocol import Tensors
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
    attack: Attack | None = None,
) -> Simulation:
    """A simulator for a fleet: all clients at once, or client by client through messages.

    With `cache`, a run that never changes the dictionary looks up the models' outputs in the user's cache. With
    `phases`, the fleet changes during the run; `policy` and `fleet` are those of the first. With an `attack`, some
    clients upload hostile updates.
    """
    policies = [policy] if phases is None else [policy, *(setup.built for _, setup in phases.later)]
    if loopback:
        if device != "cpu":
            raise InvalidInput("device", device, "the loopback runs on the processor; leave it out")
        common: Any = {"seed": seed, "hindsight": hindsight, "phases": phases, "attack": attack}
        return LoopbackSimulation(policy, fleet, dictionary, stream, dtype=dtype, **common)

    make = partial(make_compute, dictionary, stream, dtype=dtype, device=device, workers=workers)
    if cache and all(map(_is_frozen, policies)):
        compute = make(cached=True, progress=progress)
        return FusedSimulation(policy, fleet, compute, stream.y, seed=seed, hindsight=hindsight, phases=phases)
    # The same choices with the first versions of models show the gain of fine-tuning.
    tuned = [each for each in policies if each.local is not None and each.local.rate > 0]
    controlled = any(isinstance(each.local, GradientStep) and each.local.control_every > 0 for each in tuned)
    frozen = make() if tuned and (hindsight or controlled) else None
    own = None
    copied = {each.own_model for each in tuned if each.own_model is not None}
    if len(copied) > 1:
        raise InvalidInput("events", "local_model", "clients keep their own copies of one model; do not change it")
    for model in copied:
        own = OwnCopies(dictionary, stream, model, dtype=dtype, device=device)
    given: Any = {"frozen": frozen, "own": own, "seed": seed, "hindsight": hindsight, "phases": phases}
    given["attack"] = attack
    return FusedSimulation(policy, fleet, make(), stream.y, **given)


def _is_frozen(policy: Policy) -> bool:
    """Whether clients predict with the initial dictionary throughout: nothing fine-tunes it, nobody adapts a copy."""
    return policy.local is None or (policy.local.rate == 0 and not isinstance(policy.local, Adapted))
