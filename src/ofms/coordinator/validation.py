"""What a server believes of a device's letter: everything is checked before anything of it counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue, Grants, Reports, Requests
from ofms.core.typing import AnyArray
from ofms.storage.envelope import Envelope

Tensors = dict[str, torch.Tensor]
_MOST_LINES = 20


@dataclass(frozen=True, eq=False)
class Update:
    """An update of a model that may count: the weight of its importance, and what fine-tuning came to."""

    weight: float
    delta: Tensors


@dataclass(frozen=True, eq=False)
class Answer:
    """What a device said in an exchange, as far as it is believed; a line for each thing that is not."""

    reports: Reports
    updates: Mapping[int, Update]
    refused: Sequence[str] = field(default_factory=tuple)


def read_request(
    letter: Envelope, client: int, exchange: int, catalogue: Catalogue, budget: int, bandwidth: int | None
) -> Requests:
    """The request in a letter, or a refusal of the whole letter; `bandwidth` is None where nobody uploads."""
    if letter.kind != "request":
        raise InvalidInput("letter", letter.kind, "a server takes requests")
    values = letter.values
    if values.get("revision") != catalogue.revision:
        raise InvalidInput("letter", f"revision {_short(values.get('revision'))}", "it is of another dictionary")
    if values.get("client") != client:
        raise InvalidInput("letter", f"client {_short(values.get('client'))}", f"this node is client {client}")
    if values.get("exchange") != exchange:
        found = _short(values.get("exchange"))
        raise InvalidInput("letter", f"exchange {found}", f"exchange {exchange} is asked for now")
    part = letter.part("request")
    wanted = _array(part, "wanted", (1, len(catalogue)), "b")
    holding = _array(part, "holding", (1, len(catalogue)), "i")
    needed = int(wanted[0] @ catalogue.storage)
    if needed > budget:
        raise InvalidInput("letter", f"{needed} bytes wanted", f"the device has {budget}")
    upload = int(wanted[0] @ catalogue.upload)
    if bandwidth is not None and upload > bandwidth:
        raise InvalidInput("letter", f"{upload} bytes to upload", f"the bandwidth is {bandwidth}")
    held = values.get("held_bytes")
    if not isinstance(held, int) or not 0 <= held <= budget:
        raise InvalidInput("letter", f"{_short(held)} bytes held", f"the device has {budget}")
    return Requests(exchange, np.array([client]), wanted, holding)


def read_answer(
    letter: Envelope,
    grants: Grants,
    catalogue: Catalogue,
    tensors: Sequence[Tensors],
    trainable: Sequence[Sequence[str]],
    *,
    largest_update: float,
    most_loss: float | None,
) -> Answer:
    """The report and the updates in the letter of one client, whose grant is given.

    `largest_update` bounds the norm of an update, before importance weighting, by that many times the norm of the
    parameters which it updates. `most_loss` is what a model's losses of an exchange can come to where the server learns
    from them, None where it does not.
    """
    models = len(catalogue)
    part = letter.part("report")
    updated = _array(part, "updated", (1, models), "b").copy()
    losses = None
    if most_loss is not None:
        losses = _array(part, "losses", (1, models), "f").astype(np.float64)
        own = losses[grants.held]
        if not ((own >= 0) & (own <= most_loss)).all():
            raise InvalidInput("letter", "losses", f"they are not from 0 to {most_loss:g} for all models held")
        losses = np.where(grants.held, losses, np.nan)
    reports = Reports(grants.exchange, grants.client, losses, updated)
    refused, updates = [], {}
    try:
        deltas = letter.by_model("delta")
    except ValueError:
        raise InvalidInput("letter", "an update", "it names no model") from None
    for model in sorted(deltas.keys() | set(np.flatnonzero(updated[0]).tolist())):
        try:
            if not 0 <= model < models:
                raise InvalidInput("model", model, f"unknown; the dictionary has {models}")
            updates[model] = _read_update(letter, model, deltas.get(model, {}), grants, tensors, trainable)
            _require_moderate(updates[model], model, grants, tensors, largest_update)
        except InvalidInput as error:
            updates.pop(model, None)
            refused.append(f"update refused: {error}")
            if len(refused) > _MOST_LINES:
                raise InvalidInput("letter", f"{len(deltas)} updates", "too many of them make no sense") from None
            if 0 <= model < models:
                updated[0, model] = False
    return Answer(replace(reports, updated=updated), updates, tuple(refused))


def _read_update(
    letter: Envelope,
    model: int,
    delta: Mapping[str, AnyArray],
    grants: Grants,
    tensors: Sequence[Tensors],
    trainable: Sequence[Sequence[str]],
) -> Update:
    if not (grants.held[0, model] and grants.uploads[0]):
        raise InvalidInput("model", model, "this device was not to upload it")
    if not letter.part("report")["updated"][0, model]:
        raise InvalidInput("model", model, "the report does not speak of it")
    version = _value(letter, "versions", model)
    if version != int(grants.version[model]):
        raise InvalidInput("model", model, f"of version {version}, granted was {int(grants.version[model])}")
    if set(delta) != set(trainable[model]):
        raise InvalidInput("model", model, "its parameters are not those that are fine-tuned")
    for name, array in delta.items():
        expected = tensors[model][name]
        if array.shape != tuple(expected.shape) or array.dtype != expected.numpy().dtype:
            raise InvalidInput("model", model, f"{name} is {list(array.shape)}, not {list(expected.shape)}")
        if not np.isfinite(array).all():
            raise InvalidInput("model", model, f"{name} is not finite")
    weight = _value(letter, "weights", model)
    if not isinstance(weight, float):
        raise InvalidInput("model", model, "its weight is missing")
    return Update(
        weight,
        {name: torch.from_numpy(np.array(array)).to(tensors[model][name].dtype) for name, array in delta.items()},
    )


def _require_moderate(
    update: Update, model: int, grants: Grants, tensors: Sequence[Tensors], largest_update: float
) -> None:
    # A model is held with a probability of at least 1/K: no honest weight is larger than α·K.
    most = grants.groups * grants.held.shape[1]
    if not 0 < update.weight <= most:
        raise InvalidInput("model", model, f"its weight is {update.weight:g}, and at most {most} is possible")
    norm = math.sqrt(sum(float(delta.double().square().sum()) for delta in update.delta.values()))
    own = math.sqrt(sum(float(tensors[model][name].double().square().sum()) for name in update.delta))
    if norm > largest_update * own:
        raise InvalidInput("model", model, f"its norm is {norm:g}, over {largest_update:g} times the model's {own:g}")


def _array(part: Mapping[str, AnyArray], name: str, shape: tuple[int, ...], kind: str) -> AnyArray:
    array = part.get(name)
    if array is None or array.shape != shape or array.dtype.kind != kind:
        found = "missing" if array is None else f"{array.dtype}{list(array.shape)}"
        raise InvalidInput("letter", f"{name} {found}", f"give {list(shape)} of kind {kind}")
    return array


def _short(value: object) -> str:
    """What somebody else wrote, for the log."""
    return str(value)[:40]


def _value(letter: Envelope, field: str, model: int) -> object:
    values = letter.values.get(field)
    return values.get(str(model)) if isinstance(values, dict) else None
