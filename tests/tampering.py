"""Messages of a device, changed as an attacker or a broken program might."""

from __future__ import annotations

from typing import Any

import numpy as np

from ofms.storage.envelope import Envelope


def changed(envelope: Envelope, arrays: dict[str, np.ndarray] | None = None, **values: Any) -> Envelope:
    return Envelope(envelope.kind, {**envelope.values, **values}, {**envelope.arrays, **(arrays or {})})


def a_delta(envelope: Envelope) -> tuple[int, str]:
    key = min(key for key in envelope.arrays if key.startswith("delta."))
    return int(key.split(".")[1]), key


def without_deltas(envelope: Envelope) -> Envelope:
    """The same message of a device that does not fine-tune."""
    arrays = {key: array for key, array in envelope.arrays.items() if not key.startswith("delta.")}
    arrays["report.updated"] = np.zeros_like(arrays["report.updated"])
    return Envelope(envelope.kind, envelope.values, arrays)


def tampered(envelope: Envelope) -> dict[str, tuple[Envelope, str]]:
    """Messages with an update that must not count, by what is wrong with it."""
    _, key = a_delta(envelope)
    deltas = {each: array for each, array in envelope.arrays.items() if each.startswith("delta.")}
    everything = {each: np.full_like(array, np.nan) for each, array in deltas.items()}
    nowhere = {each.replace("delta.", "delta.9", 1): array for each, array in deltas.items()}
    versions = dict.fromkeys(envelope.values["versions"], 7)
    weights = envelope.values["weights"]
    huge = {each: 1e6 * array for each, array in deltas.items()}
    only = {each: array for each, array in envelope.arrays.items() if each != key}
    return {
        "not finite": (changed(envelope, everything), "is not finite"),
        "a wrong shape": (changed(envelope, {key: np.zeros((2, 2, 2), np.float32)}), r"is \[2, 2, 2\], not"),
        "a stale version": (changed(envelope, versions=versions), "of version 7, granted was 0"),
        "an unknown model": (changed(without_deltas(envelope), nowhere), "unknown; the dictionary has 6"),
        "too large": (changed(envelope, huge), "its norm is"),
        "no weight": (changed(envelope, weights={}), "its weight is missing"),
        "too much weight": (changed(envelope, weights=dict.fromkeys(weights, 1e9)), "is possible"),
        "another kind of number": (
            changed(envelope, {each: array.astype(np.float64) for each, array in deltas.items()}),
            r"is \[.*\], not",
        ),
        "a weight beyond all numbers": (changed(envelope, weights=dict.fromkeys(weights, 10**400)), "is missing"),
        "a weight that is no number": (changed(envelope, weights=dict.fromkeys(weights, float("nan"))), "is possible"),
        "a parameter too few": (Envelope(envelope.kind, envelope.values, only), "not those that are fine-tuned"),
        "no report": (
            changed(envelope, {"report.updated": np.zeros_like(envelope.arrays["report.updated"])}),
            "the report does not list it",
        ),
    }
