"""`ofms.simulate`: one call from an experiment, or from models and data of one's own, to a result."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from tqdm import tqdm

from ofms.core.errors import InvalidInput
from ofms.data import load_dataset
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.policies.protocol import Fleet, Policy
from ofms.policies.registry import build_policy
from ofms.runs.config import RunConfig, change, load_experiment, load_run, resolve
from ofms.runs.dictionaries import find_dictionary
from ofms.runs.folder import RunFolder, new_run_folder, require_free
from ofms.simulator.fused import FusedSimulation
from ofms.simulator.loopback import LoopbackSimulation
from ofms.simulator.measure import Line, Measurement
from ofms.simulator.result import Result


def simulate(
    experiment: str = "digits",
    *,
    policy: str | None = None,
    models: Dictionary | str | os.PathLike[str] | None = None,
    stream: Stream | None = None,
    out: str | os.PathLike[str] | bool = False,
    loopback: bool = False,
    workers: int | None = None,
    progress: bool = False,
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
    if stream is not None and models is None:
        raise InvalidInput("models", None, "say which dictionary predicts your own stream")
    if isinstance(models, str | os.PathLike):
        given["models"] = os.fspath(models)
    repeated = load_run(experiment)
    if repeated is not None:
        config = change(repeated, given, policy)
        loaded = load_experiment(config.experiment)
    else:
        loaded = load_experiment(experiment)
        if stream is not None:
            stream.require_sound()
            experiment = "own stream"
            given = {"clients": stream.clients, "rounds": stream.rounds} | given
        task = stream.task if stream is not None else load_dataset(loaded.dataset).task
        config = resolve(loaded, experiment, task=task, policy=policy or "ofms-ft", given=given)
    if not isinstance(out, bool):
        require_free(Path(os.fspath(out)))
    if stream is None:
        stream = load_dataset(config.dataset).stream(clients=config.clients, rounds=config.rounds, seed=config.seed)
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
    return _run(
        config,
        built,
        fleet,
        dictionary,
        stream,
        out,
        loopback=loopback,
        workers=workers,
        progress=progress,
    )


def prepare(experiment: str, *, given: dict[str, Any]) -> tuple[RunConfig, Dictionary]:
    """An experiment's configuration and its dictionary, without a run."""
    loaded = load_experiment(experiment)
    config = resolve(loaded, experiment, task=load_dataset(loaded.dataset).task, given=given)
    return config, find_dictionary(loaded, config, progress=True)


def _run(
    config: RunConfig,
    policy: Policy,
    fleet: Fleet,
    dictionary: Dictionary,
    stream: Stream,
    out: str | os.PathLike[str] | bool,
    *,
    loopback: bool,
    workers: int | None,
    progress: bool,
) -> Result:
    metric = "accuracy" if stream.task == "classification" else "mse"
    dtype = getattr(torch, config.dtype)
    simulation: FusedSimulation | LoopbackSimulation
    if loopback:
        simulation = LoopbackSimulation(
            policy, fleet, dictionary, stream, seed=config.seed, hindsight=config.hindsight, dtype=dtype
        )
    else:
        simulation = FusedSimulation(
            policy,
            fleet,
            dictionary,
            stream,
            seed=config.seed,
            hindsight=config.hindsight,
            dtype=dtype,
            workers=workers,
        )
    measurement = Measurement(
        stream.clients,
        len(dictionary),
        loss_bound=policy.loss_bound,
        hindsight=config.hindsight,
        history=config.history,
    )
    folder = None if out is False else new_run_folder(None if out is True else os.fspath(out), config)
    lines: list[Line] = []
    started = time.perf_counter()
    with (
        RunFolder(folder, config) if folder is not None else nullcontext() as written,
        tqdm(total=config.rounds, desc=policy.name, unit="round", disable=None if progress else True) as bar,
    ):
        for exchange in simulation.exchanges():
            new = measurement.add(exchange)
            lines += new
            if written is not None:
                written.add_rounds(new)
            regret = f", regret {new[-1]['regret']:.2f}" if config.hindsight else ""
            bar.set_postfix_str(f"{metric} {new[-1]['mean']:.4f}{regret}", refresh=False)
            bar.update(len(new))
    clients = measurement.per_client() | {"budget": fleet.budgets}
    if isinstance(simulation, LoopbackSimulation):
        clients["seconds"] = np.array([client.seconds for client in simulation.clients])
    result = Result(
        config=config,
        metric=metric,
        clients=clients,
        history=measurement.first_clients(),
        lines=lines,
        seconds=time.perf_counter() - started,
        bound=policy.bound,
        not_covered=policy.not_covered,
        revision=fleet.catalogue.revision,
        folder=folder,
    )
    if written is not None:
        written.finish(result.clients, result.history, msgspec.to_builtins(result.summary()))
    return result
