"""`ofms.simulate`: run an experiment, or your own models and data, and return the result."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ofms.compute.devices import require_device
from ofms.compute.group import ALONE, Group, first_on_machine
from ofms.core.errors import InvalidInput
from ofms.data.stream import Stream
from ofms.plugins import Trust
from ofms.policies.options import PolicyOptions, policy_of
from ofms.runs.checkpoint import require_same_config
from ofms.runs.config import RUN_FIELDS, Experiment, load_run
from ofms.runs.dictionaries import find_dictionary
from ofms.runs.events import drifted
from ofms.runs.folder import CONFIG, new_run_folder, require_free, unfinished_run
from ofms.runs.resolution import change
from ofms.runs.result import Result
from ofms.runs.setup import without_bound
from ofms.runs.trackers import require_tracker
from ofms.simulator.arguments import (
    Models,
    count_of,
    dictionary_of,
    flag_of,
    path_of,
    plain_values,
    require_models,
    seconds_of,
    stream_of,
    trusted_packages,
)
from ofms.simulator.experiments import OWN_STREAM, resolve_experiment, stream_of_run
from ofms.simulator.phases import phases_of
from ofms.simulator.running import run

CHECKPOINT_SECONDS = 30.0
_DEFAULT = "digits"
_log = logging.getLogger(__name__)


def simulate(
    experiment: str | os.PathLike[str] = _DEFAULT,
    *,
    policy: str | PolicyOptions | None = None,
    models: Models | None = None,
    stream: Stream | None = None,
    out: str | os.PathLike[str] | bool = False,
    loopback: bool = False,
    workers: int | None = None,
    progress: bool = False,
    resume: str | os.PathLike[str] | None = None,
    checkpoint: float | None = None,
    tracker: str | None = None,
    cache: bool = False,
    save_models: bool = False,
    report: bool = True,
    trust: Trust | Iterable[str] = (),
    group: Group | None = None,
    **given: Any,
) -> Result:
    """Run one policy for a fleet of clients.

    Parameters
    ----------
    experiment
        A name from `ofms list`, or a TOML file: your own experiment, or the `config.toml` of an earlier run, which is
        repeated. It provides the dataset and all sizes that are not given.
    policy
        A name from `ofms list`, by default that of the experiment; or your own as `package.module:name`; or settings
        such as `ofms.OFMSFT(learning_rate=0.5)`, which are all that apply: neither a preset nor the experiment changes
        them.
    models
        A dictionary or its folder, or networks by name, or a list of networks; by default the experiment's own, which
        is pre-trained and cached if it is missing.
    stream
        The clients' samples, NumPy arrays or tensors, instead of the experiment's dataset.
    out
        A folder for the run; True for a new one under `runs`; False to write nothing.
    loopback
        Run client by client through messages: slow, the reference for the fast simulator.
    workers
        Number of threads; one per core by default. The result does not depend on it.
    resume
        The folder of an interrupted run: it resumes from its last checkpoint, with its own configuration. A dictionary
        or stream that was passed as an object must be passed again.
    checkpoint
        Seconds between checkpoints of a run that is written to a folder, 30 by default; more if they would take over
        2 % of its time.
    tracker
        `tensorboard` or `mlflow`: also log the metrics there; only for a run that is written to a folder.
    cache
        Keep the outputs of all models on all samples in the user's cache, so that further runs on the same stream only
        look them up; if the run does not fine-tune. Its figures agree with those of a direct run up to rounding.
    save_models
        Write the fine-tuned dictionary into `models` of the run's folder, in the form that `models` reads. From Python,
        `Result.models` has it in any case.
    report
        Whether a run that is written to a folder leaves its page there, `report.html`.
    trust
        Packages whose code may run: networks, datasets and policies that a file names as `package.module:name`. The
        policy named in this call is trusted.
    group
        The processes that share the run, each of which makes this call: `ofms.compute.join_group()` in processes that
        `torchrun` started. By default this process runs it alone. The result does not depend on it.
    given
        Fields of the run (`preset`, `seed`, `clients`, `rounds`, `interval`, `budget`, `bandwidth`, `dtype`,
        `device`, `hindsight`, `history`, `drift`, `events`, `doubling`, `shards`, `aggregation`, `attack`) and settings
        of the policy (`learning_rate`, …). A field that is None counts as not given.

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
    group = ALONE if group is None else group
    given = plain_values({key: value for key, value in given.items() if key not in RUN_FIELDS or value is not None})
    experiment = path_of("experiment", experiment, "give a name from `ofms list`, or a TOML file")
    if policy is not None and not isinstance(policy, str):
        policy, given = _options_of(policy, given)
    trusted, workers = trusted_packages(trust), count_of("workers", workers)
    loopback, progress, cache = flag_of("loopback", loopback), flag_of("progress", progress), flag_of("cache", cache)
    save_models, report = flag_of("save_models", save_models), flag_of("report", report)
    checkpoint = seconds_of("checkpoint", CHECKPOINT_SECONDS if checkpoint is None else checkpoint)
    require_models(models)
    stream = None if stream is None else stream_of(stream)
    if not isinstance(out, bool):
        out = path_of("out", out, "name a folder; True for a new one under `runs`, False to write nothing")
    if resume is not None:
        resume = path_of("resume", resume, "name the folder of an interrupted run")
    if tracker is not None:
        require_tracker(tracker)
        if out is False and resume is None:
            raise InvalidInput("tracker", tracker, "it needs a run that is written; set out=True or name a folder")
    if save_models and out is False and resume is None:
        raise InvalidInput("save_models", True, "it needs a run that is written; set out=True or name a folder")
    if resume is not None:
        _require_only_resume(policy, loopback, out, given)
        experiment = os.fspath(Path(resume) / CONFIG)
        unfinished_run(Path(resume))
    if stream is not None and models is None:
        raise InvalidInput("models", None, "a stream of your own needs a dictionary; give its folder or a Dictionary")
    if isinstance(models, str | os.PathLike):
        given["models"] = os.fspath(models)
    loaded: Experiment | None
    repeated = load_run(experiment)
    if repeated is not None:
        if resume is not None:
            require_same_config(Path(resume), repeated)
        loaded, config = None, change(repeated, given, policy, trusted)
        if stream is None and config.experiment == OWN_STREAM:
            raise InvalidInput("stream", None, "the run used a stream of your own; give it again")
    else:
        loaded, config = resolve_experiment(experiment, policy=policy, stream=stream, trust=trusted, given=given)
    loopback = loopback or bool(config.loopback)
    if loopback:
        config = msgspec.structs.replace(config, loopback=True)
    if save_models:
        config = msgspec.structs.replace(config, save_models=True)
    require_device(config.device, config.dtype)
    if loopback and config.device not in (None, "cpu"):
        raise InvalidInput("device", config.device, "the loopback runs on the processor; leave it out")
    if not isinstance(out, bool) and group.rank == 0:
        require_free(Path(out))
    if config.drift is not None and stream is not None:
        raise InvalidInput("drift", config.drift, "give a stream that drifts, with its changes; leave drift out")
    with first_on_machine(group):
        stream = stream_of_run(config, stream)
        if models is None or isinstance(models, str | os.PathLike):
            dictionary = find_dictionary(loaded, config, progress=progress)
        else:
            dictionary = dictionary_of(models, stream.task)
    if config.save_models:
        dictionary.require_storable()
    fleet = config.fleet(dictionary.catalogue(), stream.names)
    stream = drifted(stream, config.events or (), fleet.schedule)
    phases = phases_of(config, fleet, stream.names)
    if phases is not None:
        fleet = phases.first.fleet
    built = config.policy_for(fleet) if phases is None else without_bound(phases.first.built)
    for line in stream.warnings if group.rank == 0 else ():
        # A program that configures logging, at any level of its loggers, gets it in its log.
        if _log.hasHandlers():
            _log.warning(line)
        else:
            warnings.warn(line, stacklevel=2)
    folder = Path(resume) if resume is not None else None
    if folder is None and out is not False:
        name = os.fspath(new_run_folder(None if out is True else str(out), config)) if group.rank == 0 else ""
        folder = Path(group.share(name.encode()).decode())
    return run(
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
        cache=cache,
        phases=phases,
        report=report,
        group=group,
    )


def _options_of(policy: object, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of a policy that is given by its settings, and the caller's values with these."""
    kind = type(policy).__name__
    name, settings = policy_of(policy)
    for key in given.keys() & (settings.keys() | {"preset"}):
        raise InvalidInput(key, given[key], f"{kind}(...) has all settings; leave it out, or set it there")
    return name, settings | given


def _require_only_resume(policy: str | None, loopback: bool, out: object, given: dict[str, Any]) -> None:
    """Reject arguments that would change a resumed run."""
    named = [*(["policy"] if policy else []), *(["loopback"] if loopback else []), *given]
    if out not in (False, None):
        named.append("out")
    if named:
        raise InvalidInput("resume", named[0], "a resumed run keeps its configuration; leave out everything else")
