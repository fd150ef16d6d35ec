"""Choosing budget, interval and bandwidth: a quick simulation of each on the user's stream, beside OFMS-FT's bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue
from ofms.core.packing import smallest_budget
from ofms.core.schedule import Schedule
from ofms.core.typing import Floats
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.plugins import Trust
from ofms.policies.fleet import Fleet
from ofms.policies.ofms_ft_settings import OFMSFT
from ofms.policies.registry import build_policy
from ofms.runs.result import Result
from ofms.runs.units import parse_bytes, parse_uplink
from ofms.simulator.api import simulate
from ofms.simulator.experiments import prepare, stream_of_run

INTERVALS = (1, 5, 20)
# Budgets to try, and the exchanges that a run needs to say something about an interval.
_BUDGETS, _FEWEST_EXCHANGES = 4, 5
_FIXED = ("models", "clients", "rounds", "drift", "hindsight")


@dataclass(frozen=True)
class Limits:
    """What a fleet has: devices, memory of each, upload of all together; seconds between two samples of a device."""

    devices: int
    budget: int
    uplink: int | None
    every: float

    def bandwidth(self, budget: int, interval: int) -> int:
        """E: what all devices can upload between two exchanges, at most all that they hold."""
        whole = self.devices * budget
        return whole if self.uplink is None else min(whole, math.floor(self.uplink * self.every * interval))


@dataclass(frozen=True)
class Option:
    """One setting and what it leads to; bytes per device and second, up and down.

    `error` is None if it cannot run, for a `reason`; `enlarged` says that the simulation had more than its share of the
    uplink, because one client must be able to upload at all.
    """

    budget: int
    interval: int
    bandwidth: int
    bound: float | None
    error: float | None = None
    noise: float = 0.0
    held: float = 0.0
    up: float = 0.0
    down: float = 0.0
    enlarged: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Advice:
    """All options, the one with the least error, and the one to take: the cheapest of those that are as good."""

    metric: str
    policy: str
    limits: Limits
    clients: int
    rounds: int
    tolerance: float
    options: Sequence[Option]
    best: Option
    take: Option

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def advise(
    experiment: str,
    *,
    policy: str | None,
    given: dict[str, Any],
    clients: int,
    rounds: int,
    budget: str | None,
    devices: int | None,
    uplink: str | None,
    every: float,
    tolerance: float,
    trust: Trust | Iterable[str] = (),
    workers: int | None = None,
    on_option: Callable[[Option, int, int], None] = lambda option, done, total: None,
) -> Advice:
    """Simulate budgets up to `budget` and some intervals, each with the bandwidth that `uplink` leaves for it.

    Parameters
    ----------
    given
        Fields of the run and settings of the policy.
    clients, rounds
        The size of the simulations, at most that of the experiment.
    devices
        The size of the fleet that the advice is for; by default that of the experiment.
    every
        Seconds between two samples of a device.
    tolerance
        An option is as good as the best one if its error is larger by no more than this share of it.
    on_option
        Is called after each simulation, with the number of those that are done and of all.
    """
    for field, value in (("every", every), ("tolerance", tolerance)):
        if not (math.isfinite(value) and value > 0):
            raise InvalidInput(field, value, "give a number above 0")
    whole, dictionary = prepare(experiment, policy=policy, trust=trust, given=given)
    config = msgspec.structs.replace(whole, clients=min(clients, whole.clients), rounds=min(rounds, whole.rounds))
    catalogue, stream = dictionary.catalogue(), stream_of_run(config)
    limits = Limits(
        whole.clients if devices is None else devices,
        _most_memory(budget, catalogue),
        None if uplink is None else parse_uplink(uplink),
        every,
    )
    intervals = [each for each in INTERVALS if each * _FEWEST_EXCHANGES <= config.rounds] or [1]
    settings = [(memory, interval) for memory in _budgets(catalogue, limits.budget) for interval in intervals]
    options: list[Option] = []
    metric = "mse"
    for memory, interval in settings:
        option = Option(
            memory, interval, limits.bandwidth(memory, interval), _bound(catalogue, memory, config.rounds, interval)
        )
        result, reason = _simulated(
            experiment, config.policy, option, limits, dictionary, stream, given, trust, workers
        )
        if result is not None:
            metric = result.metric
        options.append(_measured(option, result, reason, limits))
        on_option(options[-1], len(options), len(settings))
    best, take = choose(options, tolerance)
    return Advice(metric, config.policy, limits, config.clients, config.rounds, tolerance, options, best, take)


def choose(options: Sequence[Option], tolerance: float) -> tuple[Option, Option]:
    """The option of the least error, and the cheapest of those whose error is larger by at most this share.

    Memory and traffic count alike, each as a share of the largest among the options.

    >>> small, large = Option(1, 1, 1, None, 0.102, held=1, up=1), Option(2, 1, 1, None, 0.1, held=2, up=1)
    >>> choose([small, large], 0.05) == (large, small), choose([small, large], 0.01) == (large, large)
    (True, True)
    """
    known = [(option.error, option) for option in options if option.error is not None]
    if not known:
        raise InvalidInput("uplink", options[0].bandwidth, f"no option can run: {options[0].reason}")
    least, best = min(known, key=lambda pair: pair[0])
    memory = max(option.held for _, option in known) or 1.0
    traffic = max(option.up + option.down for _, option in known) or 1.0
    good = [option for error, option in known if error <= least * (1 + tolerance)]
    return best, min(good, key=lambda option: option.held / memory + (option.up + option.down) / traffic)


def _most_memory(budget: str | None, catalogue: Catalogue) -> int:
    """The largest budget to try: that of the devices, at most the whole dictionary."""
    whole = int(catalogue.storage.sum())
    if budget is None:
        return whole
    most = parse_bytes("budget", budget, largest=int(catalogue.storage.max()))
    least = smallest_budget(catalogue.storage)
    if most < least:
        raise InvalidInput(
            "budget", budget, f"it must hold the two largest models together; give at least {least} bytes"
        )
    return min(most, whole)


def _budgets(catalogue: Catalogue, most: int) -> list[int]:
    """Budgets from the smallest possible one to the largest, in equal ratios."""
    least = smallest_budget(catalogue.storage)
    return sorted({round(float(value)) for value in np.geomspace(least, most, _BUDGETS)} | {most})


def _bound(catalogue: Catalogue, budget: int, rounds: int, interval: int) -> float | None:
    """The bound of OFMS-FT on a client's average regret, with tuned rates."""
    fleet = Fleet(catalogue, np.array([budget]), budget, Schedule(rounds, interval))
    bound: Floats | None = build_policy("ofms-ft", OFMSFT(fine_tuning_rate=0), fleet).bound
    return None if bound is None else float(bound[0]) / rounds


def _simulated(
    experiment: str,
    policy: str,
    option: Option,
    limits: Limits,
    dictionary: Dictionary,
    stream: Stream,
    given: dict[str, Any],
    trust: Trust | Iterable[str],
    workers: int | None,
) -> tuple[Result | None, str]:
    """A run of an option, or why there is none."""
    bandwidth = max(_share(option, stream.clients, limits), min(option.bandwidth, option.budget))
    varied = {"budget": f"{option.budget}B", "bandwidth": f"{bandwidth}B", "interval": option.interval, "history": 0}
    try:
        result = simulate(
            experiment,
            policy=policy,
            models=dictionary,
            stream=stream,
            workers=workers,
            trust=trust,
            **({key: value for key, value in given.items() if key not in _FIXED} | varied),
            hindsight=False,
        )
    except InvalidInput as error:
        if error.field != "bandwidth":
            raise
        return None, "the uplink is too small for one device"
    return result, ""


def _share(option: Option, clients: int, limits: Limits) -> int:
    """The part of the uplink of as many devices as there are clients in a simulation."""
    return option.bandwidth * clients // limits.devices


def _measured(option: Option, result: Result | None, reason: str, limits: Limits) -> Option:
    """An option with the figures of its run."""
    if result is None:
        return replace(option, reason=reason)
    errors = 1 - result.score if result.metric == "accuracy" else result.score
    seconds = result.config.rounds * limits.every
    return replace(
        option,
        error=float(errors.mean()),
        noise=float(errors.std(ddof=1) / math.sqrt(errors.size)) if errors.size > 1 else 0.0,
        held=float(result.rounds["held"].mean()),
        up=float(result.clients["up"].mean()) / seconds,
        down=float(result.clients["down"].mean()) / seconds,
        enlarged=_share(option, result.config.clients, limits) < min(option.bandwidth, option.budget),
    )
