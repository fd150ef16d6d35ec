"""What a device computes for a report while predictions continue."""

from __future__ import annotations

from dataclasses import dataclass

from ofms.compute.client import Arrays
from ofms.core.messages import Plan
from ofms.core.typing import Flags
from ofms.device.held_models import Sample


@dataclass(frozen=True, eq=False)
class TuningTask:
    """Inputs of an exchange's fine-tuning: copies, so that predictions continue meanwhile."""

    exchange: int
    plan: Plan
    tensors: dict[int, Arrays]
    samples: list[Sample]


@dataclass(frozen=True, eq=False)
class LateTask:
    """[R, K] which models are to be evaluated on which of the last R samples, and the samples so far."""

    unknown: Flags
    samples: list[Sample]
    sampled: int
