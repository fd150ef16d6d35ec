"""Envelopes in Flower's records, and malformed records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import ofms
from ofms.flower.records import from_record, to_record
from ofms.storage.envelope import PROTOCOL, Envelope, encode


@pytest.mark.parametrize("sizes", [[], [10], [100_000], [100_000, 0, 5, 70_000, 16 * 1024]])
def test_bytes_survive_a_round_trip(sizes: list[int]) -> None:
    random = np.random.default_rng(0)
    arrays = {str(place): random.integers(0, 255, size).astype(np.uint8) for place, size in enumerate(sizes)}
    content = encode(Envelope("grant", {"exchange": 3}, arrays))
    assert from_record(to_record(content, wait=2.5)) == (content, 2.5)


def test_a_model_in_two_grants_is_one_object_for_flower() -> None:
    model = np.random.default_rng(0).integers(0, 255, 100_000).astype(np.uint8)
    records = [
        to_record(encode(Envelope("grant", {"opening": opening}, {"grant.held": np.ones(3), "model.0": model})))
        for opening in ("one", "another")
    ]
    ids = [{array.object_id for array in record.array_records["content"].values()} for record in records]
    assert len(ids[0] & ids[1]) == 1


def pieces(**data: Any) -> ArrayRecord:
    return ArrayRecord({name: Array("uint8", (1,), "bytes", each) for name, each in data.items()})


def test_records_without_an_envelope_are_refused() -> None:
    head: dict[str, Any] = {"protocol": PROTOCOL, "wait": 1.0}
    for content in (
        RecordDict(),
        RecordDict({"message": ConfigRecord(head)}),
        RecordDict({"message": ConfigRecord(head | {"protocol": 99}), "content": pieces()}),
        RecordDict({"message": ConfigRecord(head | {"wait": "long"}), "content": pieces()}),
        RecordDict({"message": ConfigRecord({"protocol": PROTOCOL}), "content": pieces()}),
    ):
        with pytest.raises(ofms.InvalidInput):
            from_record(content)
