"""Stores and journals of devices: whatever they hold, the device opens and predicts, or is refused in one line."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ofms.device.device import Device
from ofms.device.errors import NotReady
from ofms.device.journal import _read_records
from ofms.storage.checksums import without_checksum
from ofms.storage.envelope import decode
from tests.devices import budgets_for, label_samples, problem
from tests.fuzz.amounts import inputs
from tests.fuzz.fleets import changed_message
from tests.fuzz.holding import refusing
from tests.fuzz.mutations import mutated_bytes
from tests.fuzz.places import Place
from tests.fuzz.tensor_files import mutated_tensors

DICTIONARY, STREAM = problem()
BUDGET = int(budgets_for(DICTIONARY)[0])


def use(store: Path) -> None:
    """Open the device, predict, learn and report; then open it once more."""
    for _ in range(2):
        with refusing(store, other=NotReady), Device(store, budget=BUDGET, mail=False) as device:
            for number in list(device.waiting)[:3]:
                device.feedback(number, 0.5)
            label_samples(device, STREAM.x[0], STREAM.y[0], range(2))
            device.collect(now=True)


@inputs("stores")
@given(st.data())
def test_any_store_is_opened_or_refused(place: Place, data: st.DataObject) -> None:
    store = place.fresh("stores") / "stores" / "0"
    paths = sorted([store / "snapshot.safetensors", *store.glob("models/*")])
    path = data.draw(st.sampled_from([paths[-1], *paths]))
    content = path.read_bytes()
    if data.draw(st.integers(0, 9)) == 0:
        path.unlink()
    elif path.name == "snapshot.safetensors":
        path.write_bytes(data.draw(changed_message(decode(without_checksum(content)))))
    else:
        path.write_bytes(data.draw(mutated_tensors(without_checksum(content)) | mutated_bytes(content)))
    use(store)


RECORD = struct.Struct("<cQdB")


@st.composite
def records(draw: st.DrawFn, valid: list[bytes]) -> bytes:
    """Records with correct checksums, whatever they say."""
    number: Any = st.sampled_from([0, 1, 5, 6, 7, 2**31, 2**63, 2**64 - 1])
    made = st.one_of(
        st.sampled_from(valid),
        st.sampled_from(valid).flatmap(mutated_bytes),
        st.builds(
            lambda kind, id, y: struct.pack("<cQd", kind, id, y), st.sampled_from([b"v", b"c"]), number, st.floats()
        ),
        st.builds(lambda id, y: struct.pack("<cQq", b"c", id, y), number, st.integers(-(2**63), 2**63 - 1)),
        st.builds(
            lambda id, since, shape, x: (
                RECORD.pack(b"p", id, since, len(shape)) + struct.pack(f"<{len(shape)}I", *shape) + x
            ),
            number,
            st.floats(),
            st.lists(st.sampled_from([0, 1, 3, 2**16, 2**32 - 1]), max_size=4),
            st.binary(max_size=16),
        ),
        st.binary(max_size=20),
    )
    return b"".join(struct.pack("<II", len(each), zlib.crc32(each)) + each for each in draw(st.lists(made, max_size=5)))


@inputs("journals")
@given(st.data())
def test_any_journal_is_replayed_or_refused(place: Place, data: st.DataObject) -> None:
    store = place.fresh("stores") / "stores" / "0"
    (path,) = store.glob("journal-*")
    content, valid = path.read_bytes(), _read_records(path)
    assert valid
    path.write_bytes(data.draw(records(valid) | records(valid).map(content.__add__) | mutated_bytes(content)))
    use(store)
