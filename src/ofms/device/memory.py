"""What a device remembers besides its models, and how that is written down."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ofms.core.messages import Plan
from ofms.core.states import flatten, unflatten
from ofms.core.typing import AnyArray, Floats
from ofms.storage.envelope import Envelope


@dataclass(eq=False, slots=True)
class Waiting:
    """An input that waits for its label: when it came, in which exchange, and outputs of models that have gone."""

    x: AnyArray
    exchange: int
    since: float
    outputs: dict[int, AnyArray] = field(default_factory=dict)


@dataclass(eq=False)
class Memory:
    """A device between two events.

    Attributes
    ----------
    state
        The policy's, of this one client.
    plans
        By exchange: the current one's, and those whose inputs still wait for labels.
    exchange, open
        The exchange whose models are held (-1 before the first), and whether it still takes labels.
    versions
        Of the models held.
    shape
        Of inputs, once there was one.
    samples
        The last labelled ones, for fine-tuning.
    losses, labelled
        [K] selection losses of the open exchange, and over how many labels.
    letter, letter_exchange
        What waits for the server, and the exchange that it asks for.
    welcome
        The letter that said in whose fleet the device is.
    """

    state: Any = None
    plans: dict[int, Plan] = field(default_factory=dict)
    exchange: int = -1
    open: bool = False
    versions: dict[int, int] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None
    waiting: OrderedDict[int, Waiting] = field(default_factory=OrderedDict)
    samples: deque[tuple[AnyArray, float | int]] = field(default_factory=deque)
    losses: Floats = field(default_factory=lambda: np.zeros(0))
    labelled: int = 0
    next_id: int = 0
    dropped: int = 0
    letter: bytes | None = None
    letter_exchange: int = -1
    welcome: bytes | None = None

    def forget_plans(self) -> None:
        """Drop the plans that no input waits for any more."""
        needed = {waiting.exchange for waiting in self.waiting.values()} | {self.exchange}
        self.plans = {exchange: plan for exchange, plan in self.plans.items() if exchange in needed}

    def write(self) -> Envelope:
        """Everything, as a letter to oneself."""
        arrays, state_values = flatten(self.state, "state.") if self.state is not None else ({}, {})
        for exchange, plan in self.plans.items():
            arrays |= {f"plan.{exchange}.{name}": getattr(plan, name) for name in Plan.__dataclass_fields__}
        waiting = {}
        for number, each in self.waiting.items():
            arrays[f"waiting.{number}"] = each.x
            arrays |= {f"output.{number}.{model}": output for model, output in each.outputs.items()}
            waiting[str(number)] = [each.exchange, each.since]
        for place, (x, _) in enumerate(self.samples):
            arrays[f"sample.{place}"] = x
        for name, content in (("letter", self.letter), ("welcome", self.welcome)):
            if content is not None:
                arrays[name] = np.frombuffer(content, dtype=np.uint8)
        arrays["losses"] = self.losses
        values = {
            "state": state_values,
            "plans": list(self.plans),
            "waiting": waiting,
            "labels": [y for _, y in self.samples],
            "exchange": self.exchange,
            "open": self.open,
            "labelled": self.labelled,
            "next_id": self.next_id,
            "dropped": self.dropped,
            "versions": {str(model): version for model, version in self.versions.items()},
            "letter_exchange": self.letter_exchange,
            "shape": self.shape,
        }
        return Envelope("snapshot", values, arrays)

    @classmethod
    def read(cls, letter: Envelope, template: Any) -> Memory:
        """What was written; `template` is a new client's state, None where no welcome came yet."""
        values, arrays = letter.values, letter.arrays
        memory = cls(
            exchange=int(values["exchange"]),
            open=bool(values["open"]),
            versions={int(model): int(version) for model, version in values["versions"].items()},
            losses=arrays["losses"].copy(),
            labelled=int(values["labelled"]),
            next_id=int(values["next_id"]),
            dropped=int(values["dropped"]),
            letter=arrays["letter"].tobytes() if "letter" in arrays else None,
            welcome=arrays["welcome"].tobytes() if "welcome" in arrays else None,
            letter_exchange=int(values["letter_exchange"]),
            shape=None if values.get("shape") is None else tuple(int(size) for size in values["shape"]),
        )
        if template is not None:
            memory.state = unflatten(template, dict(arrays), dict(values["state"]), "state.")
        for exchange in values["plans"]:
            memory.plans[int(exchange)] = Plan(**letter.part(f"plan.{exchange}"))
        for number, (exchange, since) in values["waiting"].items():
            outputs = {int(model): array for model, array in letter.part(f"output.{number}").items()}
            x = arrays[f"waiting.{number}"]
            memory.waiting[int(number)] = Waiting(x, int(exchange), float(since), outputs)
        for place, label in enumerate(values["labels"]):
            memory.samples.append((arrays[f"sample.{place}"], label))
        return memory
