"""Validation of device messages: everything is checked before anything counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from ofms.core.errors import InvalidInput
from ofms.core.messages import Catalogue, Grants, Reports, Requests
from ofms.core.schedule import Schedule
from ofms.core.selection_loss import MOST_LOSS
from ofms.core.typing import AnyArray, Flags, Floats
from ofms.policies.protocol import Policy
from ofms.storage.envelope import Envelope, require_array

Tensors = dict[str, torch.Tensor]
_MOST_LINES = 20
# A device may see more samples than the interval before it can report.
_MOST_LABELS = 10
# Of what fine-tuning lost against first versions (`ofms.policies.controls`): a device's shares of one relative change.
_MOST_COMPARED = 1.0
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Update:
    """A valid update of a model: its importance weight, and the change of the parameters."""

    weight: float
    delta: Tensors


@dataclass(frozen=True, eq=False)
class Answer:
    """The valid part of a device's report, and a line for each rejected part."""

    reports: Reports
    updates: Mapping[int, Update]
    refused: Sequence[str] = field(default_factory=tuple)


def read_request(
    envelope: Envelope,
    client: int,
    exchange: int,
    catalogue: Catalogue,
    budget: int,
    bandwidth: int | None,
    copies: int = 1,
    most_held: int | None = None,
) -> Requests:
    """Read the request in a message, or reject the whole message.

    `bandwidth` is None if the policy uploads nothing; `copies` of each model must fit the budget. A device holds up to
    `most_held` bytes if its budget was reduced since its last grant.
    """
    if envelope.kind != "request":
        raise InvalidInput("message", envelope.kind, "a server accepts only requests")
    values = envelope.values
    if values.get("revision") != catalogue.revision:
        raise InvalidInput("message", f"revision {_short(values.get('revision'))}", "of another dictionary")
    if values.get("client") != client:
        raise InvalidInput("message", f"client {_short(values.get('client'))}", f"this node is client {client}")
    if values.get("exchange") != exchange:
        found = _short(values.get("exchange"))
        raise InvalidInput("message", f"exchange {found}", f"expected exchange {exchange}")
    part = envelope.part("request")
    wanted = require_array(part, "wanted", (1, len(catalogue)), "b")
    holding = require_array(part, "holding", (1, len(catalogue)), "i")
    needed = copies * int(wanted[0] @ catalogue.storage)
    if needed > budget:
        raise InvalidInput("message", f"{needed} bytes wanted", f"the device has {budget}")
    upload = int(wanted[0] @ catalogue.upload)
    if bandwidth is not None and upload > bandwidth:
        raise InvalidInput("message", f"{upload} bytes to upload", f"the bandwidth is {bandwidth}")
    held = values.get("held_bytes")
    if not isinstance(held, int) or not 0 <= held <= max(budget, most_held or 0):
        raise InvalidInput("message", f"{_short(held)} bytes held", f"the device has {budget}")
    return Requests(exchange, np.array([client]), wanted, holding)


def most_loss(policy: Policy, schedule: Schedule) -> float | None:
    """The largest possible loss of a model in an exchange where the server learns from losses, else None."""
    if not (policy.reports_losses or policy.reports_use):
        return None
    return (MOST_LOSS if policy.loss_bound == "raw" else 1) * _MOST_LABELS * schedule.interval


def read_answer(
    envelope: Envelope,
    grants: Grants,
    catalogue: Catalogue,
    tensors: Sequence[Tensors],
    trainable: Sequence[Sequence[str]],
    *,
    largest_update: float,
    most_loss: float | None,
    only_updated: bool,
    compared: Flags | None,
) -> Answer:
    """Read the report and the updates of a client to whom `grants` were sent.

    Parameters
    ----------
    largest_update
        The largest norm of an update before importance weighting, relative to that of the parameters that it updates.
    most_loss
        The largest possible loss of a model in an exchange where the server learns from losses, else None.
    only_updated
        Whether losses are those of the models that the client fine-tuned, not of all that it held.
    compared
        [1, K] the models of which they are what fine-tuning lost against first versions: shares of one number from -1
        to 1, whatever `most_loss` is; None if they are losses.
    """
    models = len(catalogue)
    part = envelope.part("report")
    updated = require_array(part, "updated", (1, models), "b").copy()
    losses = None
    if most_loss is not None:
        losses = require_array(part, "losses", (1, models), "f").astype(np.float64)
        expected = updated & grants.held if only_updated else grants.held
        if compared is not None:
            expected = compared
            _require_comparisons(losses[expected])
        elif not ((losses[expected] >= 0) & (losses[expected] <= most_loss)).all():
            which = "fine-tuned" if only_updated else "held"
            raise InvalidInput("message", "losses", f"they must be from 0 to {most_loss:g} for all models {which}")
        losses = np.where(expected, losses, np.nan)
    reports = Reports(grants.exchange, grants.client, losses, updated, _left_out(part, updated, grants))
    refused, updates = [], {}
    try:
        deltas = envelope.by_model("delta")
    except ValueError:
        raise InvalidInput("message", "an update", "it does not name a model") from None
    for model in sorted(deltas.keys() | set(np.flatnonzero(updated[0]).tolist())):
        try:
            if not 0 <= model < models:
                raise InvalidInput("model", model, f"unknown; the dictionary has {models} models")
            updates[model] = _read_update(envelope, model, deltas.get(model, {}), grants, tensors, trainable)
            _require_moderate(updates[model], model, grants, tensors, largest_update)
        except InvalidInput as error:
            updates.pop(model, None)
            refused.append(f"update rejected: {error}")
            if len(refused) > _MOST_LINES:
                raise InvalidInput("message", f"{len(deltas)} updates", "too many of them are invalid") from None
            if 0 <= model < models:
                updated[0, model] = False
    return Answer(replace(reports, updated=updated), updates, tuple(refused))


def _require_comparisons(own: Floats) -> None:
    """Reject comparisons that no correct device reports: all devices count alike, so a larger one outvotes them."""
    # A comparison of NaN is no share either: written so that it is rejected.
    if not float(np.abs(own).sum()) <= _MOST_COMPARED + _ROUNDING:
        raise InvalidInput("message", "losses", "comparisons with first versions must be shares of a number up to 1")


def _left_out(part: Mapping[str, AnyArray], updated: Flags, grants: Grants) -> Flags:
    """[1, K] the models that the device was to upload and whose update is not finite; earlier ones do not say."""
    if "left_out" not in part:
        return np.zeros(updated.shape, dtype=np.bool_)
    return require_array(part, "left_out", updated.shape, "b") & grants.held & grants.uploads[:, None] & ~updated


def _read_update(
    envelope: Envelope,
    model: int,
    delta: Mapping[str, AnyArray],
    grants: Grants,
    tensors: Sequence[Tensors],
    trainable: Sequence[Sequence[str]],
) -> Update:
    if not (grants.held[0, model] and grants.uploads[0]):
        raise InvalidInput("model", model, "this device was not granted its upload")
    if not envelope.part("report")["updated"][0, model]:
        raise InvalidInput("model", model, "the report does not list it")
    version = _value(envelope, "versions", model)
    if version != int(grants.version[model]):
        raise InvalidInput("model", model, f"version {version} instead of the granted {int(grants.version[model])}")
    if set(delta) != set(trainable[model]):
        raise InvalidInput("model", model, "its parameters are not the fine-tuned ones")
    for name, array in delta.items():
        expected = tensors[model][name]
        if array.shape != tuple(expected.shape) or array.dtype != expected.numpy().dtype:
            raise InvalidInput("model", model, f"{name} is {list(array.shape)}, not {list(expected.shape)}")
        if not np.isfinite(array).all():
            raise InvalidInput("model", model, f"{name} is not finite")
    weight = _value(envelope, "weights", model)
    if not isinstance(weight, float):
        raise InvalidInput("model", model, "its weight is missing")
    return Update(
        weight,
        {name: torch.from_numpy(np.array(array)).to(tensors[model][name].dtype) for name, array in delta.items()},
    )


def _require_moderate(
    update: Update, model: int, grants: Grants, tensors: Sequence[Tensors], largest_update: float
) -> None:
    # A model is held with a probability of at least 1/K: a correct weight is at most α·K.
    most = grants.groups * grants.held.shape[1]
    if not 0 < update.weight <= most:
        raise InvalidInput("model", model, f"its weight is {update.weight:g}; at most {most} is possible")
    norm = math.sqrt(sum(float(delta.double().square().sum()) for delta in update.delta.values()))
    own = math.sqrt(sum(float(tensors[model][name].double().square().sum()) for name in update.delta))
    if norm > largest_update * own:
        raise InvalidInput("model", model, f"its norm {norm:g} exceeds {largest_update:g} times the model's {own:g}")


def _short(value: object) -> str:
    """Untrusted text, truncated for the log."""
    return str(value)[:40]


def _value(envelope: Envelope, field: str, model: int) -> object:
    values = envelope.values.get(field)
    return values.get(str(model)) if isinstance(values, dict) else None
