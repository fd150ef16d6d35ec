"""How many inputs each door gets: some in `make test`, many and other ones each time in `make test-all`."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Set by `make test-all`.
MANY = os.environ.get("OFMS_FUZZ") == "many"
# By door: inputs in `make test`, and in `make test-all`.
INPUTS: dict[str, tuple[int, int]] = {
    "experiments": (45, 800),
    "pretraining": (10, 100),
    "dictionary.json": (40, 1000),
    "safetensors": (35, 900),
    "csv": (35, 1000),
    "parquet": (20, 500),
    "npz": (30, 900),
    "command lines": (60, 900),
    "finished runs": (20, 350),
    "interrupted runs": (20, 300),
    "models of runs": (10, 200),
    "cells": (15, 250),
    "stores": (25, 350),
    "journals": (25, 350),
    "envelopes": (35, 1200),
    "arrays of envelopes": (15, 400),
    "messages to the server": (40, 900),
    "messages to a device": (30, 450),
    "Flower's records": (10, 150),
    "devices.toml": (15, 150),
    "server.toml": (15, 200),
    "device.toml": (10, 150),
    "server state": (20, 300),
}
# An input that takes longer counts as one that hangs. Generous: other processes may use the machine.
_LONGEST = timedelta(seconds=60)
_TEST_SECONDS = 3600


def inputs(door: str) -> Callable[[Any], Any]:
    """Decorator of a test with `@given`: the number of its inputs, and how long one may take."""
    number = INPUTS[door][MANY]
    configure = settings(
        max_examples=number,
        deadline=_LONGEST,
        derandomize=not MANY,
        database=None,
        suppress_health_check=[*HealthCheck],
        print_blob=True,
    )

    def decorate(test: Any) -> Any:
        return pytest.mark.timeout(_TEST_SECONDS)(configure(test))

    return decorate
