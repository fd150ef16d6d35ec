"""`ofms.simulate`: one call from an experiment, or from models and data of one's own, to a result."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch

from ofms.core.errors import InvalidInput
from ofms.data import load_dataset
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.policies.fleet import Fleet
from ofms.policies.protocol import Policy
from ofms.policies.registry import build_policy
from ofms.runs.checkpoint import Checkpoints, Flattenable, Inputs, restore
from ofms.runs.config import Experiment, RunConfig, change, load_experiment, load_run, resolve
from ofms.runs.dictionaries import find_dictionary, task_of
from ofms.runs.folder import CONFIG, RunFolder, new_run_folder, require_free, unfinished_run
from ofms.runs.observers import CheckpointObserver, Observer
from ofms.runs.trackers import require_tracker, start_tracker
from ofms.simulator.metrics import Line, Measurement
from ofms.simulator.progress import Progress
from ofms.simulator.result import Result
from ofms.simulator.simulation import make_simulation

CHECKPOINT_SECONDS = 30.0
_DEFAULT, _OWN_STREAM = "digits", "own stream"


def simulate(
    experiment: str = _DEFAULT,
    *,
    policy: str | None = None,
    models: Dictionary | str | os.PathLike[str] | None = None,
    stream: Stream | None = None,
    out: str | os.PathLike[str] | bool = False,
    loopback: bool = False,
    workers: int | None = None,
    progress: bool = False,
    resume: str | os.PathLike[str] | None = None,
    checkpoint: float | None = None,
    tracker: str | None = None,
    **given: Any,
) -> Result:
    """Run one policy for a fleet of clients.

    Parameters
    ----------
    experiment
        A name that `ofms list` shows, or a TOML file: an experiment of one's own, or the `config.toml` of an earlier
        run, which is repeated. Its dataset and sizes hold unless given otherwise.
    policy
        `ofms-ft` (the default), or another one that `ofms list` shows.
    models
        A dictionary or its folder; by default the experiment's own, which is pre-trained and kept where it is missing.
    stream
        What the clients see, in place of the experiment's dataset.
    out
        A folder for the run; True for a new one under `runs`; False to write nothing.
    loopback
        Run client by client through messages: slow, and the oracle for the fast way.
    workers
        Threads; one for each core by default. The result does not depend on it.
    resume
        The folder of a run that was interrupted: it goes on from its last checkpoint, with its own configuration. A
        dictionary or a stream of one's own must be given again.
    checkpoint
        Seconds between two checkpoints of a run that is written to a folder, 30 by default; more where they would take
        over 2 % of its time.
    tracker
        `tensorboard` or `mlflow`: log the metrics there too; for a run that is written to a folder.
    given
        Fields of the run (`preset`, `seed`, `clients`, `rounds`, `interval`, `budget`, `bandwidth`, `dtype`,
        `hindsight`, `history`) and settings of the policy (`learning_rate`, `window`, …).

    Examples
    --------
    >>> import numpy as np
    >>> from torch import nn
    >>> from ofms import Dictionary, Stream, simulate
    >>> inputs = np.linspace(-1, 1, 60, dtype=np.float32).reshape(3, 20, 1)
    >>> stream = Stream(inputs, inputs[..., 0] / 2, "regression")
    >>> dictionary = Dictionary.from_modules({name: nn.Linear(1, 1) for name in "abc"}, task="regression")
    >>> result = simulate(models=dictionary, stream=stream, preset="theory", budget="2", bandwidth="100%", rounds=20)
    >>> result.score.shape, result.metric
    ((3,), 'mse')
    """
    checkpoint = CHECKPOINT_SECONDS if checkpoint is None else checkpoint
    if not checkpoint >= 0:
        raise InvalidInput("checkpoint", checkpoint, "give the seconds between two checkpoints, 0 for every exchange")
    if tracker is not None:
        require_tracker(tracker)
        if out is False and resume is None:
            raise InvalidInput("tracker", tracker, "it follows runs that are written; say out=True or name a folder")
    if resume is not None:
        _require_only_resume(policy, loopback, out, given)
        experiment = os.fspath(Path(os.fspath(resume)) / CONFIG)
        unfinished_run(Path(os.fspath(resume)))
    if stream is not None and models is None:
        raise InvalidInput("models", None, "say which dictionary predicts your own stream")
    if isinstance(models, str | os.PathLike):
        given["models"] = os.fspath(models)
    repeated = load_run(experiment)
    if repeated is not None:
        config = change(repeated, given, policy)
        loaded = load_experiment(_DEFAULT if config.experiment == _OWN_STREAM else config.experiment)
        if stream is None and config.experiment == _OWN_STREAM:
            raise InvalidInput("stream", None, "the run was of a stream of your own; give it again")
    else:
        loaded, config = resolve_experiment(experiment, policy=policy, stream=stream, given=given)
    loopback = loopback or bool(config.loopback)
    if loopback:
        config = msgspec.structs.replace(config, loopback=True)
    if not isinstance(out, bool):
        require_free(Path(os.fspath(out)))
    if stream is None and config.stream is not None:
        stream = config.stream.read()
    if stream is None:
        dataset = load_dataset(str(config.dataset))
        stream = dataset.stream(clients=config.clients, rounds=config.rounds, seed=config.seed)
        stream.require_sound()
    elif stream.clients < config.clients or stream.rounds < config.rounds:
        raise InvalidInput(
            "stream",
            f"{stream.clients} × {stream.rounds}",
            "more clients or rounds were asked for than it has",
        )
    else:
        stream = stream.part(config.clients, config.rounds)
    dictionary = models if isinstance(models, Dictionary) else find_dictionary(loaded, config, progress=progress)
    fleet = config.fleet(dictionary.catalogue())
    built = build_policy(config.policy, config.policy_settings(), fleet)
    folder = Path(os.fspath(resume)) if resume is not None else None
    if folder is None and out is not False:
        folder = new_run_folder(None if out is True else os.fspath(out), config)
    return _run(
        config,
        built,
        fleet,
        dictionary,
        stream,
        folder=folder,
        resumed=resume is not None,
        workers=workers,
        progress=progress,
        checkpoint=checkpoint,
        tracker=tracker,
    )


def _require_only_resume(policy: str | None, loopback: bool, out: object, given: dict[str, Any]) -> None:
    """Refuse what would change a run in the middle."""
    named = [*(["policy"] if policy else []), *(["loopback"] if loopback else []), *given]
    if out not in (False, None):
        named.append("out")
    if named:
        raise InvalidInput("resume", named[0], "a run goes on as it was; leave out everything else")


def resolve_experiment(
    experiment: str, *, policy: str | None = None, stream: Stream | None = None, given: dict[str, Any]
) -> tuple[Experiment, RunConfig]:
    """An experiment, and the configuration of a run of it; a stream of one's own says how many clients and rounds."""
    loaded = load_experiment(experiment)
    task, sizes = task_of(loaded), {"clients": loaded.clients, "rounds": loaded.rounds}
    if stream is not None:
        stream.require_sound()
        experiment, task = _OWN_STREAM, stream.task
        loaded = msgspec.structs.replace(loaded, stream=None)
        sizes = {"clients": stream.clients, "rounds": stream.rounds}
    elif loaded.stream is not None and None in sizes.values():
        found = loaded.stream.read()
        sizes = {"clients": loaded.clients or found.clients, "rounds": loaded.rounds or found.rounds}
    return loaded, resolve(loaded, experiment, task=task, policy=policy or "ofms-ft", given=sizes | given)


def prepare(experiment: str, *, given: dict[str, Any]) -> tuple[RunConfig, Dictionary]:
    """An experiment's configuration and its dictionary, without a run."""
    loaded, config = resolve_experiment(experiment, given=given)
    return config, find_dictionary(loaded, config, progress=True)


def _run(
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
) -> Result:
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
    )
    measurement = Measurement(
        stream.clients,
        len(dictionary),
        loss_bound=policy.loss_bound,
        hindsight=config.hindsight,
        history=config.history,
    )
    metric = "accuracy" if stream.task == "classification" else "mse"
    parts: dict[str, Flattenable] = {"simulation": simulation, "measurement": measurement}
    inputs = Inputs(fleet.catalogue.revision, stream.fingerprint())
    done, seconds = restore(folder, parts, inputs) if resumed and folder is not None else (0, 0.0)
    began = time.perf_counter() - seconds
    lines: list[Line] = []
    with ExitStack() as stack:
        observers: list[Observer] = []
        if folder is not None:
            written = stack.enter_context(RunFolder(folder, config, rounds=done))
            lines += written.lines
            observers.append(written)
            if tracker is not None:
                observers.append(stack.enter_context(start_tracker(tracker, config, folder)))
        if progress:
            observers.append(stack.enter_context(Progress(policy.name, metric, config.rounds, before=lines)))
        if folder is not None:
            checkpoints = Checkpoints(folder, checkpoint, parts, inputs)
            follower = CheckpointObserver(checkpoints, config.rounds, done=done, seconds=seconds)
            observers.append(stack.enter_context(follower))
        for exchange in simulation.exchanges():
            new = measurement.add(exchange)
            lines += new
            for observer in observers:
                observer.on_rounds(new)
        result = Result(
            config=config,
            metric=metric,
            clients=measurement.per_client() | {"budget": fleet.budgets} | simulation.client_figures(),
            history=measurement.first_clients(),
            lines=lines,
            seconds=time.perf_counter() - began,
            bound=policy.bound,
            not_covered=policy.not_covered,
            revision=fleet.catalogue.revision,
            models=fleet.catalogue.names,
            folder=folder,
        )
        for observer in observers:
            observer.on_finish(result)
    return result
