"""Messages of an exchange, as a device reads and writes them: grant in, request with report out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ofms.compute.client import Arrays
from ofms.core.draws import Draws
from ofms.core.errors import InvalidInput
from ofms.core.messages import Grants
from ofms.core.typing import AnyArray
from ofms.device.held_models import HeldModels
from ofms.device.memory import Before, Memory, Outgoing
from ofms.storage.envelope import Envelope, decode, encode, message_arrays, parts_of, require_array

_MOST_EXCHANGES = 2**62


@dataclass(frozen=True, eq=False)
class SentModel:
    """A model sent with a grant: its bytes, as written to the store, and its tensors, which share their memory."""

    content: AnyArray
    tensors: Arrays


@dataclass(frozen=True, eq=False)
class Granted:
    """A valid grant.

    Attributes
    ----------
    opening
        The server's id of this grant, echoed by the report.
    versions
        Versions of the models to hold.
    sent
        Those of them that were sent with the grant.
    """

    grants: Grants
    opening: str
    versions: Mapping[int, int]
    sent: Mapping[int, SentModel]


def require_own_fleet(envelope: Envelope, held_models: HeldModels) -> None:
    """Reject a grant of another deployment or dictionary."""
    membership = held_models.membership
    known = (membership.deployment, membership.catalogue.revision)
    if (envelope.values["deployment"], envelope.values["revision"]) != known:
        found = str(envelope.values["revision"])[:40]
        raise InvalidInput("message", found, "it belongs to another dictionary; request a welcome")


def read_grant(envelope: Envelope, held_models: HeldModels, memory: Memory, budget: int) -> Granted:
    """Read a grant of the requested exchange or a later one; reject it if it is inconsistent or exceeds the budget.

    It is a later one if the server opened the requested one without this device.
    """
    exchange, requested = envelope.values["exchange"], memory.requested_exchange
    if type(exchange) is not int or not 0 <= exchange < _MOST_EXCHANGES:
        raise InvalidInput("message", f"exchange {exchange}"[:40], "it is not the number of an exchange")
    if exchange < requested or requested < 0:
        raise InvalidInput("message", f"exchange {exchange}", f"this device requested {requested}")
    if memory.open and exchange != memory.exchange:
        raise InvalidInput("message", f"exchange {exchange}", f"this device has not answered {memory.exchange}")
    grants = _read_arrays(envelope, exchange, held_models)
    versions = {int(model): int(grants.version[model]) for model in np.flatnonzero(grants.held[0])}
    needed = held_models.bytes_of(versions)
    if needed > budget:
        raise InvalidInput("message", f"{needed} bytes", f"the grant exceeds the budget of {budget} bytes")
    contents = {int(model): array for model, array in envelope.part("model").items()}
    sent = {model: SentModel(each, held_models.read(model, each.data)) for model, each in contents.items()}
    for model, version in versions.items():
        if model not in sent and memory.versions.get(model) != version:
            raise InvalidInput("message", f"model {model}", "it is granted but neither sent nor held")
    needed_models = {model: each for model, each in sent.items() if model in versions}
    return Granted(grants, str(envelope.values["opening"]), versions, needed_models)


def _read_arrays(envelope: Envelope, exchange: int, held_models: HeldModels) -> Grants:
    """The arrays of a grant; rejected unless they are those of this client and its models."""
    # They are kept, and must not keep the rest of the message.
    part = {name: array.copy() for name, array in envelope.part("grant").items()}
    models = len(held_models.membership.catalogue)
    groups, client = int(envelope.values["groups"]), require_array(part, "client", (1,), "i")
    weights = None
    if "prediction_weights" in part:
        weights = require_array(part, "prediction_weights", (1, models), "f").astype(np.float64)
    version = require_array(part, "version", (models,), "i")
    if groups < 1 or version.min() < 0 or client[0] != held_models.membership.client:
        raise InvalidInput("message", "grant", "its groups, versions or client are not those of this device")
    return Grants(
        exchange=exchange,
        client=client,
        held=require_array(part, "held", (1, models), "b"),
        sent=require_array(part, "sent", (1, models), "b"),
        prediction_weights=weights,
        uploads=require_array(part, "uploads", (1,), "b"),
        groups=groups,
        version=version,
    )


def write_request(
    held_models: HeldModels,
    memory: Memory,
    exchange: int,
    *,
    report: Mapping[str, AnyArray] | None = None,
    deltas: Mapping[int, Arrays] | None = None,
    weights: Mapping[int, float] | None = None,
    statistics: Mapping[str, Any] | None = None,
    anew: bool = False,
) -> None:
    """Write the request for an exchange to memory, with the report of the previous one if there is one.

    `anew` requests all models again, because this server does not know the versions held.
    """
    membership, deltas = held_models.membership, deltas or {}
    memory.before = Before(memory.state.policy)
    memory.state, requests = membership.session.request(memory.state, Draws(membership.seed, exchange))
    if anew:
        requests = replace(requests, holding=np.full_like(requests.holding, -1))
    arrays = message_arrays(requests, "request") | dict(report or {})
    for model, delta in deltas.items():
        arrays |= {f"delta.{model}.{name}": array for name, array in delta.items()}
    values: dict[str, Any] = {
        "deployment": membership.deployment,
        "revision": membership.catalogue.revision,
        "client": membership.client,
        "exchange": exchange,
        "changed": str(membership.changed),
        "program": memory.program,
        "opening": memory.opening,
        "held_bytes": held_models.bytes_of(held_models),
        "versions": {str(model): memory.versions[model] for model in deltas},
        "weights": {str(model): weight for model, weight in (weights or {}).items()},
    }
    if statistics is not None:
        values["statistics"] = dict(statistics)
    memory.outgoing = Outgoing(exchange, parts_of(Envelope("request", values, arrays)))
    memory.requested_exchange = exchange


def without_report(content: bytes, opening: str) -> bytes:
    """A request without its report, because the server reopened the exchange.

    The report was computed under another grant, so its weights are wrong under this one.
    """
    request = decode(content)
    arrays = {f"request.{name}": array for name, array in request.part("request").items()}
    values = {**request.values, "opening": opening, "versions": {}, "weights": {}}
    return encode(Envelope(request.kind, values, arrays))
