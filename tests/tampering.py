"""Messages of a device, changed as an attacker or a broken program might."""

from __future__ import annotations

from typing import Any

import numpy as np

from ofms.core.typing import AnyArray
from ofms.storage.envelope import Envelope


def changed(envelope: Envelope, arrays: dict[str, AnyArray] | None = None, **values: Any) -> Envelope:
    return Envelope(envelope.kind, {**envelope.values, **values}, {**envelope.arrays, **(arrays or {})})


def first_delta(envelope: Envelope) -> tuple[int, str]:
    """The model and the array's name of the first parameter that an answer updates."""
    key = min(key for key in envelope.arrays if key.startswith("delta."))
    return int(key.split(".")[1]), key


def without_deltas(envelope: Envelope) -> Envelope:
    """The same answer without updates."""
    arrays = {key: array for key, array in envelope.arrays.items() if not key.startswith("delta.")}
    arrays["report.updated"] = np.zeros_like(arrays["report.updated"])
    return Envelope(envelope.kind, envelope.values, arrays)


def tampered(envelope: Envelope) -> dict[str, tuple[Envelope, str]]:
    """Messages with an update that must be refused, by its fault; with a part of the reason."""
    _, key = first_delta(envelope)
    deltas = {each: array for each, array in envelope.arrays.items() if each.startswith("delta.")}
    not_finite = {each: np.full_like(array, np.nan) for each, array in deltas.items()}
    unknown = {each.replace("delta.", "delta.9", 1): array for each, array in deltas.items()}
    versions = dict.fromkeys(envelope.values["versions"], 7)
    weights = envelope.values["weights"]
    huge = {each: 1e6 * array for each, array in deltas.items()}
    incomplete = {each: array for each, array in envelope.arrays.items() if each != key}
    return {
        "not finite": (changed(envelope, not_finite), "is not finite"),
        "a wrong shape": (changed(envelope, {key: np.zeros((2, 2, 2), np.float32)}), r"is \[2, 2, 2\], not"),
        "a stale version": (changed(envelope, versions=versions), "version 7 instead of the granted 0"),
        "an unknown model": (changed(without_deltas(envelope), unknown), "unknown; the dictionary has 6"),
        "too large": (changed(envelope, huge), "its norm"),
        "no weight": (changed(envelope, weights={}), "its weight is missing"),
        "too much weight": (changed(envelope, weights=dict.fromkeys(weights, 1e9)), "is possible"),
        "another dtype": (
            changed(envelope, {each: array.astype(np.float64) for each, array in deltas.items()}),
            r"is \[.*\], not",
        ),
        "an infinite weight": (changed(envelope, weights=dict.fromkeys(weights, 10**400)), "is missing"),
        "a weight of NaN": (changed(envelope, weights=dict.fromkeys(weights, float("nan"))), "is possible"),
        "a missing parameter": (Envelope(envelope.kind, envelope.values, incomplete), "not the fine-tuned ones"),
        "an update without a report": (
            changed(envelope, {"report.updated": np.zeros_like(envelope.arrays["report.updated"])}),
            "the report does not list it",
        ),
    }
