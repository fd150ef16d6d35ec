"""The state of a device besides its models, and its serialisation."""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ofms.core.messages import Plan
from ofms.core.states import flatten, unflatten
from ofms.core.typing import AnyArray, Floats
from ofms.storage.envelope import Envelope


@dataclass(eq=False, slots=True)
class Waiting:
    """An input waiting for its label.

    Attributes
    ----------
    exchange, since
        The exchange and the time at which it arrived.
    outputs
        Outputs by model: of those that predicted, and of those no longer held.
    """

    x: AnyArray
    exchange: int
    since: float
    outputs: dict[int, AnyArray] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Outgoing:
    """A message for the server.

    Attributes
    ----------
    exchange
        The exchange that it requests.
    parts
        Its bytes until the store has them; a report is as large as the models, so its parts share their memory.
    file
        The name of its file in the store, once it is written.
    """

    exchange: int
    parts: Sequence[bytes | memoryview] | None
    file: str | None = None


@dataclass(frozen=True, eq=False)
class Before:
    """The policy's client state before the last request."""

    policy: Any


@dataclass(eq=False)
class Memory:
    """A device's state between two events.

    Attributes
    ----------
    state
        The policy's client state.
    before
        The policy's part of it before the last request, if nothing was learnt since: an event in the fleet makes the
        device request again.
    plans
        By exchange: the current plan, and those with inputs waiting for labels.
    exchange, open
        The exchange whose models are held (-1 before the first), and whether it still accepts labels.
    opening
        The id of the grant of that exchange, echoed by the report.
    versions
        Versions of the models held.
    shape
        Shape of the inputs, None before the first.
    samples, sampled
        The last labelled samples, for fine-tuning and late losses, and the number of all so far.
    own
        Fine-tuned parameters of the device's own copy of `ClientPolicy.own_model`; empty before they were fine-tuned.
    losses, labelled
        [K] selection losses of the open exchange, summed, and the number of labels.
    scored, score
        Labels since the last report, and the sum of their predictions' scores: 1 for a right class, or squared errors.
    outgoing, requested_exchange
        The message to be sent to the server, and the exchange that the last one requested.
    welcome
        The encoded welcome of the fleet.
    program
        A random name of the running program, by which a server notices two of them with one key; not stored.
    """

    state: Any = None
    before: Before | None = None
    plans: dict[int, Plan] = field(default_factory=dict)
    exchange: int = -1
    open: bool = False
    opening: str = ""
    versions: dict[int, int] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None
    waiting: OrderedDict[int, Waiting] = field(default_factory=OrderedDict)
    samples: deque[tuple[AnyArray, float | int]] = field(default_factory=deque)
    sampled: int = 0
    own: dict[str, AnyArray] = field(default_factory=dict)
    losses: Floats = field(default_factory=lambda: np.zeros(0))
    labelled: int = 0
    scored: int = 0
    score: float = 0.0
    next_id: int = 0
    dropped: int = 0
    outgoing: Outgoing | None = None
    requested_exchange: int = -1
    welcome: bytes | None = None
    program: str = field(default_factory=lambda: secrets.token_hex(8))

    def forget_plans(self) -> None:
        """Drop plans that no waiting input needs."""
        needed = {waiting.exchange for waiting in self.waiting.values()} | {self.exchange}
        self.plans = {exchange: plan for exchange, plan in self.plans.items() if exchange in needed}

    def write(self) -> Envelope:
        """Serialise all state in the message format."""
        arrays, state_values = flatten(self.state, "state.") if self.state is not None else ({}, {})
        before_arrays, before_values = ({}, None) if self.before is None else flatten(self.before, "before.")
        arrays |= before_arrays
        for exchange, plan in self.plans.items():
            arrays |= {f"plan.{exchange}.{name}": getattr(plan, name) for name in Plan.by_model}
            if plan.offset is not None:
                arrays[f"plan.{exchange}.offset"] = plan.offset
        waiting = {}
        for number, each in self.waiting.items():
            arrays[f"waiting.{number}"] = each.x
            arrays |= {f"output.{number}.{model}": output for model, output in each.outputs.items()}
            waiting[str(number)] = [each.exchange, each.since]
        for place, (x, _) in enumerate(self.samples):
            arrays[f"sample.{place}"] = x
        if self.welcome is not None:
            arrays["welcome"] = np.frombuffer(self.welcome, dtype=np.uint8)
        arrays |= {f"own.{name}": array for name, array in self.own.items()}
        arrays["losses"] = self.losses
        values = {
            "state": state_values,
            "before": before_values,
            "plans": list(self.plans),
            "waiting": waiting,
            "labels": [y for _, y in self.samples],
            "exchange": self.exchange,
            "open": self.open,
            "opening": self.opening,
            "labelled": self.labelled,
            "scored": self.scored,
            "score": self.score,
            "sampled": self.sampled,
            "next_id": self.next_id,
            "dropped": self.dropped,
            "versions": {str(model): version for model, version in self.versions.items()},
            "requested_exchange": self.requested_exchange,
            "outgoing": None if self.outgoing is None else self.outgoing.file,
            "shape": self.shape,
        }
        return Envelope("snapshot", values, arrays)

    @classmethod
    def read(cls, snapshot: Envelope, template: Any) -> Memory:
        """Deserialise; `template` is the initial client state, None before a welcome."""
        values, arrays = snapshot.values, snapshot.arrays
        memory = cls(
            exchange=int(values["exchange"]),
            open=bool(values["open"]),
            opening=str(values["opening"]),
            versions={int(model): int(version) for model, version in values["versions"].items()},
            own={name: array.copy() for name, array in snapshot.part("own").items()},
            losses=arrays["losses"].copy(),
            labelled=int(values["labelled"]),
            scored=int(values.get("scored", 0)),
            score=float(values.get("score", 0.0)),
            sampled=int(values.get("sampled", len(values["labels"]))),
            next_id=int(values["next_id"]),
            dropped=int(values["dropped"]),
            outgoing=_outgoing(snapshot),
            welcome=arrays["welcome"].tobytes() if "welcome" in arrays else None,
            requested_exchange=int(values["requested_exchange"]),
            shape=None if values.get("shape") is None else tuple(int(size) for size in values["shape"]),
        )
        if template is not None:
            # Snapshots before 0.3.0 have neither recent samples nor offsets: their policies have none.
            nothing, _ = flatten(template.recent, "state.recent.")
            nothing |= flatten(template.offsets, "state.offsets.")[0]
            memory.state = unflatten(template, nothing | dict(arrays), dict(values["state"]), "state.")
            if values.get("before") is not None:
                memory.before = unflatten(Before(template.policy), dict(arrays), dict(values["before"]), "before.")
        for exchange in values["plans"]:
            memory.plans[int(exchange)] = Plan(**snapshot.part(f"plan.{exchange}"))
        for number, (exchange, since) in values["waiting"].items():
            outputs = {int(model): array for model, array in snapshot.part(f"output.{number}").items()}
            x = arrays[f"waiting.{number}"]
            memory.waiting[int(number)] = Waiting(x, int(exchange), float(since), outputs)
        for place, label in enumerate(values["labels"]):
            memory.samples.append((arrays[f"sample.{place}"], label))
        return memory


def _outgoing(snapshot: Envelope) -> Outgoing | None:
    exchange, file = int(snapshot.values["requested_exchange"]), snapshot.values.get("outgoing")
    if file is not None:
        return Outgoing(exchange, None, str(file))
    # Snapshots of earlier versions have the message in them.
    content = snapshot.arrays.get("outgoing")
    return None if content is None else Outgoing(exchange, [content.tobytes()])
