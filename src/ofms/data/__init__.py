"""Datasets: the clients' samples, and the samples that models are pre-trained on. One file per dataset."""

from __future__ import annotations

from typing import cast

from ofms.core.choices import suggest
from ofms.core.errors import InvalidInput
from ofms.data.stream import Dataset, Stream, TrainingSet
from ofms.plugins import NO_TRUST, SYNTAX, Trust, is_reference, load_object

__all__ = ["Dataset", "Stream", "TrainingSet", "load_dataset"]

_OURS = Trust(("ofms.data",))
_PARTS = ("name", "task", "fetch", "check", "stream", "training_sets")

MODULES = {
    "digits": "ofms.data.digits:dataset",
    "mnist": "ofms.data.mnist:dataset",
    "cifar10": "ofms.data.cifar10:dataset",
    "air": "ofms.data.air:dataset",
    "wec": "ofms.data.wec:dataset",
    "wec-synthetic": "ofms.data.wec_synthetic:dataset",
}


def load_dataset(name: str, trust: Trust = NO_TRUST) -> Dataset:
    """A built-in dataset by name, or a user-defined one as `package.module:name` if its package is trusted.

    >>> load_dataset("digits").stream(clients=2, rounds=3, seed=0)
    Stream(classification, 2 clients × 3 rounds, inputs of shape (64,))
    """
    if name in MODULES:
        return cast("Dataset", load_object(MODULES[name], field="dataset", trusted=_OURS))
    if not is_reference(name):
        raise InvalidInput("dataset", name, f"{suggest(name, MODULES)}, or your own as {SYNTAX}")
    found = load_object(name, field="dataset", trusted=trust)
    missing = [part for part in _PARTS if not hasattr(found, part)]
    if missing:
        raise InvalidInput("dataset", name, f"it lacks {', '.join(missing)}; see ofms.data.stream.Dataset")
    return cast("Dataset", found)
