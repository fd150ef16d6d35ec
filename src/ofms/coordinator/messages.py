"""Messages of the server: welcome and grant."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ofms.coordinator.graphs import Graphs
from ofms.core.messages import Grants
from ofms.models.dictionary import Dictionary
from ofms.policies.fleet import Fleet
from ofms.storage.envelope import Envelope, encode, message_arrays


def encode_welcome(
    head: Mapping[str, Any],
    client: int,
    dictionary: Dictionary,
    fleet: Fleet,
    policy: Mapping[str, Any],
    seed: int,
    graphs: Mapping[int, Graphs],
) -> bytes:
    """Encode a device's welcome: its policy with resolved rates, and how to build its networks.

    `graphs` by model are for devices without PyTorch; models of the same architecture share them.
    """
    models: list[dict[str, Any]] = [
        {
            "name": model.name,
            "architecture": model.architecture,
            "options": dict(model.options),
            "storage": model.storage,
            "upload": model.upload,
            "trainable": list(model.trainable),
        }
        for model in dictionary.models
    ]
    for model, each in graphs.items():
        models[model]["graphs"] = each.key
    arrays = {
        f"graphs.{each.key}.{kind}": np.frombuffer(content, dtype=np.uint8)
        for each in graphs.values()
        for kind, content in each.contents.items()
    }
    values = {
        **head,
        "client": client,
        "seed": seed,
        "policy": policy,
        "task": dictionary.task,
        "rounds": fleet.schedule.rounds,
        "interval": fleet.schedule.interval,
        "since": fleet.schedule.since,
        "start": fleet.schedule.start,
        "budget": int(fleet.budgets[client]),
        "models": models,
    }
    return encode(Envelope("welcome", values, arrays))


def encode_grant(head: Mapping[str, Any], own: Grants, opening: str, encoded_model: Callable[[int], bytes]) -> bytes:
    """Encode a device's grant; each sent model is an opaque array of its encoded bytes."""
    arrays = message_arrays(own, "grant")
    for model in np.flatnonzero(own.sent[0]).tolist():
        arrays[f"model.{model}"] = np.frombuffer(encoded_model(model), dtype=np.uint8)
    return encode(Envelope("grant", {**head, "opening": opening, "groups": int(own.groups)}, arrays))


def opening_id(deployment: str, own: Grants) -> str:
    """The id of a device's grant, echoed by its report.

    A server that was killed reopens its exchange. If a device's grant is unchanged, so is the id, and an answer in
    transit counts; if it differs, for example in the number of groups α, the answer does not count.
    """
    digest = hashlib.sha256(deployment.encode())
    for name, array in sorted(own.to_arrays().items()):
        if name != "sent":
            digest.update(name.encode() + array.tobytes())
    return digest.hexdigest()[:16]
