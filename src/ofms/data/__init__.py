"""Datasets: what each client sees, round by round, and what models are pre-trained on. One file a dataset."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from ofms.core.errors import InvalidInput
from ofms.data.stream import Dataset

MODULES = {
    "digits": "ofms.data.digits",
    "mnist": "ofms.data.mnist",
    "cifar10": "ofms.data.cifar10",
    "air": "ofms.data.air",
    "wec": "ofms.data.wec",
    "wec-synthetic": "ofms.data.wec_synthetic",
}


def load_dataset(name: str) -> Dataset:
    """A dataset by name."""
    if name not in MODULES:
        raise InvalidInput("dataset", name, f"use one of {', '.join(MODULES)}")
    return cast("Dataset", import_module(MODULES[name]).dataset)
