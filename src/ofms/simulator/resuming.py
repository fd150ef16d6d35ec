"""From a run in the middle to a checkpoint, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray
from ofms.core.version import __version__
from ofms.runs.checkpoint import Checkpoints, Latest, read_checkpoint
from ofms.simulator.fused import FusedSimulation
from ofms.simulator.metrics import Measurement


def save_checkpoint(
    checkpoints: Checkpoints,
    simulation: FusedSimulation,
    measurement: Measurement,
    revision: str,
    fingerprint: str,
    seconds: float,
) -> None:
    """Write how far a run got."""
    arrays: dict[str, AnyArray] = {}
    values: dict[str, Any] = {"seconds": seconds}
    for part, whole in (("simulation", simulation), ("measurement", measurement)):
        some_arrays, some_values = whole.flatten()
        arrays |= {f"{part}.{name}": np.ascontiguousarray(array) for name, array in some_arrays.items()}
        values |= {f"{part}.{name}": value for name, value in some_values.items()}
    checkpoints.write(
        Latest(
            version=__version__,
            rounds=measurement.rounds,
            exchange=simulation.next_exchange,
            revision=revision,
            stream=fingerprint,
            values=values,
            file=f"{measurement.rounds}.safetensors",
        ),
        arrays,
    )


def go_on(
    run: Path, simulation: FusedSimulation, measurement: Measurement, revision: str, fingerprint: str
) -> tuple[int, float]:
    """Bring a run to its last checkpoint; how many rounds that is, and how many seconds they took."""
    found = read_checkpoint(run)
    if found is None:
        return 0, 0.0
    latest, arrays = found
    for name, then, now in (("dictionary", latest.revision, revision), ("stream", latest.stream, fingerprint)):
        if then != now:
            raise InvalidInput("resume", run, f"its {name} was another one; give the same again")
    try:
        for part, whole in (("simulation", simulation), ("measurement", measurement)):
            prefix = f"{part}."
            whole.unflatten(
                {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)},
                {name.removeprefix(prefix): value for name, value in latest.values.items() if name.startswith(prefix)},
            )
        return latest.rounds, float(latest.values["seconds"])
    except (KeyError, ValueError, TypeError) as error:
        raise InvalidInput("resume", run, f"its checkpoint does not fit the run ({error}); start it again") from None
