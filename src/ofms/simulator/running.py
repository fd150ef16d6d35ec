"""One run: a simulation, its metrics, and its observers."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from ofms.compute.group import ALONE, Group, own_device
from ofms.core.errors import InvalidInput, PeerEnded
from ofms.core.failures import describe_failure, is_of_policy, last_line, user_line
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.plugins import is_reference
from ofms.policies import blocks
from ofms.policies.fleet import Fleet
from ofms.policies.protocol import Policy
from ofms.policies.rules import BrokenRule
from ofms.runs.checkpoint import Checkpoints, Flattenable, Inputs, comparable, restore
from ofms.runs.config import RunConfig
from ofms.runs.folder import RunFolder, resume_command
from ofms.runs.measured import result_of
from ofms.runs.observers import CheckpointObserver, Observer
from ofms.runs.result import Result
from ofms.runs.trackers import start_tracker
from ofms.runs.warning_lines import divergence_warnings, quarantined_models, run_warnings
from ofms.simulator.agreement import agreed, from_first, lines_of, require_same
from ofms.simulator.drift import DriftMeasurement
from ofms.simulator.exchange import Exchange
from ofms.simulator.metrics import Line, Measurement
from ofms.simulator.phases import Phases
from ofms.simulator.progress import Progress, log_quarantine
from ofms.simulator.simulation import block_of, make_simulation

_log = logging.getLogger(__name__)


def run(
    config: RunConfig,
    policy: Policy,
    fleet: Fleet,
    dictionary: Dictionary,
    stream: Stream,
    *,
    folder: Path | None,
    resumed: bool,
    workers: int | None,
    progress: bool,
    checkpoint: float,
    tracker: str | None,
    cache: bool = False,
    phases: Phases | None = None,
    report: bool = True,
    group: Group = ALONE,
) -> Result:
    """Run a policy to its end, from the last checkpoint if it is resumed, and notify observers.

    Every process of `group` returns the result; the first one writes and shows it.
    """
    inputs = Inputs(fleet.catalogue.revision, stream.fingerprint())
    require_same(group, config, inputs, resumed=resumed)
    writes = group.rank == 0
    simulation = make_simulation(
        policy,
        fleet,
        dictionary,
        stream,
        seed=config.seed,
        hindsight=config.hindsight,
        dtype=getattr(torch, config.dtype),
        loopback=bool(config.loopback),
        workers=workers,
        device=own_device(group, config.device),
        cache=cache,
        progress=progress,
        phases=phases,
        shards=config.shards,
        group=group,
        attack=config.attacked(),
    )
    block = block_of(stream, config.shards, group)
    own: Any = {"group": group, "first": block.clients[0]}
    measurement = Measurement(
        block.size,
        len(dictionary),
        loss_bound=policy.loss_bound,
        hindsight=config.hindsight,
        history=config.history,
        changing=phases is not None,
        **own,
    )
    metric = "accuracy" if stream.task == "classification" else "mse"
    parts: dict[str, Flattenable] = {"simulation": simulation, "measurement": measurement}
    drift = None
    # With a fleet that changes, phases of the stream are not comparable.
    if stream.changes and config.hindsight and phases is None:
        drift = DriftMeasurement(
            *(block.size, len(dictionary), config.rounds, stream.changes),
            metric=metric,
            loss_bound=policy.loss_bound,
            **own,
        )
        parts["drift"] = drift
    done, seconds = 0, 0.0
    lines: list[Line] = []
    with ExitStack() as stack:
        stack.enter_context(blocks.threads(workers or os.cpu_count() or 1))
        observers: list[Observer] = []
        written: RunFolder | None = None
        if folder is not None:
            if writes:
                written = stack.enter_context(RunFolder(folder, config, resumed=resumed))
            if resumed:
                done, seconds = restore(folder, parts, inputs, partial(from_first, group))
            lines += lines_of(group, [] if written is None else written.start(done))
            observers += [] if written is None else [written]
            if tracker is not None and writes:
                observers.append(stack.enter_context(start_tracker(tracker, config, folder)))
        if progress and writes:
            observers.append(stack.enter_context(Progress(policy.name, metric, config.rounds, before=lines)))
        if folder is not None:
            checkpoints = Checkpoints(folder, checkpoint, parts, inputs, comparable(config), writes=writes)
            follower = CheckpointObserver(
                checkpoints, config.rounds, done=done, seconds=seconds, agree=partial(agreed, group)
            )
            observers.append(stack.enter_context(follower))
        _log.debug("configuration: %s", msgspec.json.encode(config).decode())
        began = time.perf_counter() - seconds
        policies = [config.policy, *(event.policy for event in config.events or () if event.policy is not None)]
        own = ", ".join(name for name in policies if is_reference(name))
        for exchange in _explained(simulation.exchanges(), stream, fleet.catalogue.names, folder, own):
            new = measurement.add(exchange)
            new[-1] |= _events(exchange, fleet.catalogue.names, stream)
            if drift is not None:
                drift.add(exchange)
            lines += new
            for observer in observers:
                observer.on_rounds(new)
            if writes:
                log_quarantine(new, shown=progress)
        drift_arrays = {} if drift is None else drift.per_client(measurement.regret.incurred)
        clients = measurement.per_client() | drift_arrays | {"budget": fleet.budgets} | simulation.client_figures()
        warnings = run_warnings(
            metric=metric,
            rounds=config.rounds,
            interval=config.interval,
            loss_bound=policy.loss_bound,
            local=policy.local,
            saturated=measurement.saturated_share,
            clients=clients,
        )
        quarantined = quarantined_models(lines)
        further = {"loss_bound": policy.loss_bound} | ({"quarantined": quarantined} if quarantined else {})
        warnings = [*stream.warnings, *warnings, *divergence_warnings(lines)]
        result = result_of(
            config,
            metric=metric,
            clients=clients,
            history=measurement.history.arrays(),
            lines=lines,
            seconds=time.perf_counter() - began,
            bound=policy.bound,
            not_covered=policy.not_covered,
            revision=fleet.catalogue.revision,
            models=fleet.catalogue.names,
            stream=stream,
            further=further
            | {"warnings": warnings}
            | ({} if phases is None else {"events": phases.lines(stream.names)}),
            folder=folder,
            dictionary=dictionary.with_tensors(simulation.parameters()),
        )
        if written is not None and config.save_models:
            written.write_models(result.models)
        for observer in observers:
            observer.on_finish(result)
        if written is not None and report:
            written.write_page()
    return result


def _events(exchange: Exchange, models: Sequence[str], stream: Stream) -> Line:
    """What the record of an exchange's last round says about updates that are not finite; nothing in most exchanges."""
    left_out = sorted({stream.name_of(client) for client, _ in exchange.left_out})
    names = [models[model] for model in exchange.quarantined]
    return ({"left_out": left_out} if left_out else {}) | ({"quarantined": names} if names else {})


def _explained(
    exchanges: Iterator[Exchange], stream: Stream, models: Sequence[str], folder: Path | None, own: str
) -> Iterator[Exchange]:
    """The exchanges; a broken rule names client and model, and an error of the user's own code says how to resume.

    `own` names the policies that are the user's: an error of what one returned is one of its own.
    """
    try:
        yield from exchanges
    except BrokenRule as error:
        client = error.client if isinstance(error.client, str) else stream.name_of(error.client)
        raise error.named(client, models) from None
    except PeerEnded as error:
        if folder is not None:
            error.add_note(f"continue with: {resume_command(folder)}")
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        unexpected = user_line(error) is None and not isinstance(error, InvalidInput | MemoryError)
        if own and unexpected and is_of_policy(error):
            remedy = f"{describe_failure(error)}, in {last_line(error)}; correct what its parts return"
            raise InvalidInput("policy", own, remedy) from error
        # An error of the folder itself says so already.
        if folder is not None and not isinstance(error, InvalidInput | OSError):
            error.add_note(f"once it is corrected, continue with: {resume_command(folder)}")
        raise
