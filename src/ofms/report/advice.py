"""Choosing budget, interval and bandwidth: a quick simulation of each on the user's stream, beside OFMS-FT's bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from ofms.plugins import Trust, trust_of
from ofms.policies.fleet import Fleet
from ofms.policies.ofms_ft_settings import OFMSFT
from ofms.policies.registry import build_policy
from ofms.runs.run_command import run_command
from ofms.runs.units import parse_bytes, parse_uplink
from ofms.runs.warning_lines import summarise_warnings
from ofms.simulator.api import simulate
from ofms.simulator.experiments import prepare, stream_of_run

INTERVALS = (1, 5, 20)
# Budgets to try, and the exchanges that a run needs to say something about an interval.
_BUDGETS, _FEWEST_EXCHANGES = 4, 5
# The choice is also simulated with these parts of its bandwidth, unless the uplink limits that already.
_LESS_BANDWIDTH = (4, 16)
_CHOSEN = ("budget", "bandwidth", "interval")
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

    def simulated(self, option: Option, clients: int) -> int:
        """The bandwidth of as many devices as there are clients; at least what one client may have to upload."""
        return max(option.bandwidth * clients // self.devices, min(option.bandwidth, option.budget))

    def is_enlarged(self, option: Option, clients: int) -> bool:
        """Whether that is more than their share."""
        return self.simulated(option, clients) > option.bandwidth * clients // self.devices


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
    """All options, the one with the least error, and the one to take: the cheapest of those that are as good.

    `command` runs the latter with all clients and rounds of the experiment. `warnings` are those of all simulations.
    """

    metric: str
    policy: str
    limits: Limits
    clients: int
    rounds: int
    tolerance: float
    options: Sequence[Option]
    best: Option
    take: Option
    command: str
    warnings: Sequence[str] = ()

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
    progress: bool = False,
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
    for name, value in (("every", every), ("tolerance", tolerance)):
        if not (math.isfinite(value) and value > 0):
            raise InvalidInput(name, value, "give a number above 0")
    for name in _CHOSEN:
        if name in given:
            raise InvalidInput(name, given[name], "it is what this command chooses; leave it out")
    trusted = trust_of(trust)
    whole, dictionary = prepare(experiment, policy=policy, trust=trusted, given=given, progress=progress)
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
    trial = _Trial(experiment, config.policy, dictionary, stream, given, trusted, workers, limits)
    options: list[Option] = []

    def try_all(settings: Sequence[tuple[int, int, int]]) -> tuple[Option, Option]:
        for memory, interval, bandwidth in settings:
            bound = _bound(catalogue, memory, config.rounds, interval)
            options.append(trial.measured(Option(memory, interval, bandwidth, bound)))
            on_option(options[-1], len(options), total)
        return choose(options, tolerance)

    total = len(settings)
    best, take = try_all([(*each, limits.bandwidth(*each)) for each in settings])
    if take.bandwidth == limits.devices * take.budget:
        # One device must be able to upload all that it holds.
        less = [take.bandwidth // part for part in _LESS_BANDWIDTH if limits.devices >= part]
        total += len(less)
        best, take = try_all([(take.budget, take.interval, bandwidth) for bandwidth in less])
    chosen = {"budget": f"{take.budget}B", "bandwidth": f"{limits.simulated(take, whole.clients)}B"}
    named = {key: value for key, value in given.items() if key != "models"} | chosen | {"interval": take.interval}
    return Advice(
        metric=trial.metric,
        policy=config.policy,
        limits=limits,
        clients=config.clients,
        rounds=config.rounds,
        tolerance=tolerance,
        options=options,
        best=best,
        take=take,
        command=run_command(experiment, named, policy=policy, models=given.get("models"), trust=trusted.packages),
        warnings=summarise_warnings(("", lines) for lines in trial.warnings),
    )


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


@dataclass
class _Trial:
    """Simulations of options on one stream; their metric and their warnings."""

    experiment: str
    policy: str
    dictionary: Dictionary
    stream: Stream
    given: dict[str, Any]
    trust: Trust
    workers: int | None
    limits: Limits
    metric: str = "mse"
    warnings: list[Sequence[str]] = field(default_factory=list)

    def measured(self, option: Option) -> Option:
        """An option with the figures of its run, or why there is none."""
        varied = {
            "budget": f"{option.budget}B",
            "bandwidth": f"{self.limits.simulated(option, self.stream.clients)}B",
            "interval": option.interval,
            "history": 0,
        }
        try:
            result = simulate(
                self.experiment,
                policy=self.policy,
                models=self.dictionary,
                stream=self.stream,
                workers=self.workers,
                trust=self.trust,
                **({key: value for key, value in self.given.items() if key not in _FIXED} | varied),
                hindsight=False,
            )
        except InvalidInput as error:
            if error.field != "bandwidth":
                raise
            return replace(option, reason="the uplink is too small for one device")
        self.metric = result.metric
        self.warnings.append(result.figures["warnings"])
        score = result.score[result.took_part]
        errors = 1 - score if result.metric == "accuracy" else score
        seconds = result.config.rounds * self.limits.every
        return replace(
            option,
            error=float(errors.mean()),
            noise=float(errors.std(ddof=1) / math.sqrt(errors.size)) if errors.size > 1 else 0.0,
            held=float(result.rounds["held"].mean()),
            up=float(result.clients["up"].mean()) / seconds,
            down=float(result.clients["down"].mean()) / seconds,
            enlarged=self.limits.is_enlarged(option, self.stream.clients),
        )
