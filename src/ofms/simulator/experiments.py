"""An experiment as the configuration of a run, and its dictionary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ofms.core.errors import InvalidInput
from ofms.data import load_dataset
from ofms.data.drift import make_stream
from ofms.data.stream import Stream
from ofms.models.dictionary import Dictionary
from ofms.plugins import NO_TRUST, Trust, trust_of
from ofms.runs.config import Experiment, RunConfig, load_experiment
from ofms.runs.dictionaries import find_dictionary, task_of
from ofms.runs.resolution import resolve

OWN_STREAM = "own stream"


def resolve_experiment(
    experiment: str,
    *,
    policy: str | None = None,
    stream: Stream | None = None,
    trust: Trust = NO_TRUST,
    given: dict[str, Any],
) -> tuple[Experiment, RunConfig]:
    """An experiment and the configuration of a run; the number of clients and rounds may come from a stream."""
    loaded = load_experiment(experiment)
    if stream is not None:
        stream.require_sound()
        experiment, task = OWN_STREAM, stream.task
        size = {"clients": stream.clients, "rounds": stream.rounds}
        loaded = msgspec.structs.replace(loaded, dataset=None, stream=None, **size)
    else:
        task = task_of(loaded, trust)
        if loaded.stream is not None and (loaded.clients is None or loaded.rounds is None):
            rounds = given.get("rounds", loaded.rounds)
            found = loaded.stream.read(rounds if isinstance(rounds, int) else None)
            loaded = msgspec.structs.replace(
                loaded, clients=loaded.clients or found.clients, rounds=loaded.rounds or found.rounds
            )
    return loaded, resolve(loaded, experiment, task=task, policy=policy, trust=trust, given=given)


def prepare(
    experiment: str,
    *,
    policy: str | None = None,
    trust: Trust | Iterable[str] = (),
    given: dict[str, Any],
    progress: bool = True,
) -> tuple[RunConfig, Dictionary]:
    """An experiment's configuration and its dictionary, without running it."""
    loaded, config = resolve_experiment(experiment, policy=policy, trust=trust_of(trust), given=given)
    return config, find_dictionary(loaded, config, progress=progress)


def stream_of_run(config: RunConfig, stream: Stream | None = None) -> Stream:
    """The samples of a run: of its dataset, of its table, or of a given stream, cut to its size."""
    size = {"clients": config.clients, "rounds": config.rounds}
    if stream is None and config.stream is not None:
        table, drift = config.stream, config.drift
        if drift is None:
            stream = table.read(config.rounds)
        else:
            stream = table.read_drifting(**size, seed=config.seed, drift=drift)
    if stream is None:
        dataset = load_dataset(str(config.dataset), config.trusted())
        stream = make_stream(dataset, **size, seed=config.seed, drift=config.drift)
        stream.require_sound()
        return stream
    if stream.clients < config.clients or stream.rounds < config.rounds:
        raise InvalidInput(
            "stream",
            f"{stream.clients} × {stream.rounds}",
            "it has fewer clients or rounds than requested; lower them or leave them out",
        )
    return stream.part(config.clients, config.rounds)
