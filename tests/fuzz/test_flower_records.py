"""Flower's messages: whatever a record holds, the carrier answers with a refusal, and the server gets a reply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from ofms.coordinator.transport import Kind
from ofms.flower.opaque import PROTOCOL
from ofms.flower.records import from_record, to_record
from ofms.storage.envelope import Envelope, decode, encode
from tests.flower.messages import carry_record
from tests.fuzz.amounts import inputs
from tests.fuzz.fleets import changed_message
from tests.fuzz.holding import accepted, refusing
from tests.fuzz.places import Place

ENVELOPE = Envelope("grant", {"exchange": 1, "deployment": "a", "opening": "b"})
KINDS: list[Kind] = ["join", "exchange"]


@st.composite
def records(draw: st.DrawFn) -> RecordDict:
    content = draw(st.just(encode(ENVELOPE)) | changed_message(ENVELOPE))
    values: dict[str, Any] = {"protocol": PROTOCOL, "wait": 0.0, "content": content}
    if draw(st.booleans()):
        values["protocol"] = draw(st.sampled_from([1, 2, str(PROTOCOL), PROTOCOL + 0.5]))
    if draw(st.booleans()):
        values["wait"] = draw(st.sampled_from([-1.0, "a", float("nan"), [1.0], True]))
    if draw(st.booleans()):
        values["content"] = draw(st.sampled_from(["text", 1, [1.0], b""]))
    for name in draw(st.lists(st.sampled_from(list(values)), max_size=1)):
        del values[name]
    record: Any = RecordDict({draw(st.sampled_from(["message", "message", "other"])): ConfigRecord(values)})
    return record  # type: ignore[no-any-return]


@inputs("Flower's records")
@given(records(), st.sampled_from(KINDS))
def test_any_record_is_answered(place: Place, record: RecordDict, kind: Kind) -> None:
    found = accepted(from_record, record)
    if found is not None:
        accepted(to_record, found[0])
    store = place.fresh() / "store"
    with refusing(Path(store)):
        assert decode(carry_record(record, kind, store)).kind in ("refusal", "nothing")
