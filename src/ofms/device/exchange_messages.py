"""The letters of an exchange: what a device reports and asks for, and what it is granted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ofms.compute.local import Tensors
from ofms.core.draws import Draws
from ofms.core.errors import InvalidInput
from ofms.core.messages import Grants
from ofms.core.typing import AnyArray
from ofms.device.held_models import HeldModels
from ofms.device.memory import Memory
from ofms.storage.envelope import Envelope, encode, message_arrays


@dataclass(frozen=True)
class Granted:
    """A grant that fits: the message, the models that are to be held with their versions, and those that came."""

    grants: Grants
    versions: Mapping[int, int]
    sent: Mapping[int, Tensors]


def read_grant(letter: Envelope, held_models: HeldModels, memory: Memory, budget: int) -> Granted | None:
    """What a letter grants; None where it came before, a refusal where it is not what was asked for or does not fit."""
    membership, catalogue = held_models.membership, held_models.membership.fleet.catalogue
    if (letter.values["deployment"], letter.values["revision"]) != (membership.deployment, catalogue.revision):
        raise InvalidInput("letter", letter.values["revision"], "it is for another dictionary; ask for a welcome")
    exchange = int(letter.values["exchange"])
    if exchange <= memory.exchange:
        return None
    if exchange != memory.letter_exchange:
        raise InvalidInput("letter", f"exchange {exchange}", f"this device asked for {memory.letter_exchange}")
    arrays = {name: np.asarray(array) for name, array in letter.part("grant").items()}
    arrays |= {"exchange": np.asarray(exchange), "groups": np.asarray(int(letter.values["groups"]))}
    grants = Grants.from_arrays(arrays)
    versions = {int(model): int(grants.version[model]) for model in np.flatnonzero(grants.held[0])}
    needed = held_models.bytes_of(versions)
    if needed > budget:
        raise InvalidInput("letter", f"{needed} bytes", f"the grant does not fit the budget of {budget} bytes")
    sent = {model: held_models.read(model, arrays) for model, arrays in letter.by_model("model").items()}
    for model, version in versions.items():
        if model not in sent and memory.versions.get(model) != version:
            raise InvalidInput("letter", f"model {model}", "it is granted but neither sent nor here")
    return Granted(grants, versions, {model: tensors for model, tensors in sent.items() if model in versions})


def write_request(
    held_models: HeldModels,
    memory: Memory,
    exchange: int,
    *,
    report: Mapping[str, AnyArray] | None = None,
    deltas: Mapping[int, Tensors] | None = None,
    weights: Mapping[int, float] | None = None,
    anew: bool = False,
) -> None:
    """Put the letter that asks for an exchange into memory, with the report of the one before where there is one.

    `anew` asks for all models again: their versions say nothing to this server.
    """
    membership, deltas = held_models.membership, deltas or {}
    memory.state, requests = membership.session.request(memory.state, Draws(membership.seed, exchange))
    if anew:
        requests = replace(requests, holding=np.full_like(requests.holding, -1))
    arrays = message_arrays(requests, "request") | dict(report or {})
    for model, delta in deltas.items():
        arrays |= {f"delta.{model}.{name}": tensor.numpy() for name, tensor in delta.items()}
    values = {
        "deployment": membership.deployment,
        "revision": membership.fleet.catalogue.revision,
        "client": membership.client,
        "exchange": exchange,
        "held_bytes": held_models.bytes_of(held_models),
        "versions": {str(model): memory.versions[model] for model in deltas},
        "weights": {str(model): weight for model, weight in (weights or {}).items()},
    }
    memory.letter, memory.letter_exchange = encode(Envelope("request", values, arrays)), exchange
