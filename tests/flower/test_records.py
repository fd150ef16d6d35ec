"""Envelopes in Flower's records, and malformed records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

import ofms
from ofms.flower.opaque import PROTOCOL
from ofms.flower.records import from_record, to_record
from ofms.storage.envelope import Envelope, encode
from tests.flower.messages import flower_message


@pytest.mark.parametrize("sizes", [[], [10], [100_000], [100_000, 0, 5, 70_000, 16 * 1024]])
def test_bytes_survive_a_round_trip(sizes: list[int]) -> None:
    random = np.random.default_rng(0)
    arrays = {str(place): random.integers(0, 255, size).astype(np.uint8) for place, size in enumerate(sizes)}
    content = encode(Envelope("grant", {"exchange": 3}, arrays))
    assert from_record(to_record(content, wait=2.5)) == (content, 2.5)


def test_a_message_is_one_record_however_many_arrays_it_has() -> None:
    arrays = {f"model.{place}": np.zeros(50_000, dtype=np.uint8) for place in range(9)}
    record = to_record(encode(Envelope("grant", {}, arrays)))
    assert len(get_all_nested_objects(flower_message(record, "exchange"))) == 3


def test_records_without_an_envelope_are_refused() -> None:
    whole: dict[str, Any] = {"protocol": PROTOCOL, "wait": 1.0, "content": b"x"}
    for record in (
        RecordDict(),
        RecordDict({"other": ConfigRecord(whole)}),
        RecordDict({"message": ConfigRecord(whole | {"protocol": 99})}),
        RecordDict({"message": ConfigRecord(whole | {"wait": "long"})}),
        RecordDict({"message": ConfigRecord(whole | {"content": "text"})}),
        *(RecordDict({"message": ConfigRecord({k: v for k, v in whole.items() if k != key})}) for key in whole),
    ):
        with pytest.raises(ofms.InvalidInput):
            from_record(record)
