"""Model files: any bytes are read as the tensors of their network, or refused in one line."""

from __future__ import annotations

import pytest
from hypothesis import example, given

from ofms.storage.tensors import encode_tensors
from tests.devices import problem
from tests.fuzz.amounts import inputs
from tests.fuzz.holding import command
from tests.fuzz.mutations import mutated_bytes
from tests.fuzz.places import Place
from tests.fuzz.tensor_files import mutated_tensors

CONTENT = encode_tensors(problem()[0].models[0].tensors)


@inputs("safetensors")
@given(mutated_tensors(CONTENT) | mutated_bytes(CONTENT))
@example(b"")
@example((2**63).to_bytes(8, "little") + CONTENT[8:])
@example((2**40).to_bytes(8, "little") + CONTENT[8:])
def test_any_model_file_is_read_or_refused(place: Place, content: bytes) -> None:
    (place.fresh("models") / "models" / "net0.safetensors").write_bytes(content)
    command("check", "models")


@pytest.mark.parametrize("kind", ["link", "missing", "folder"])
def test_a_model_file_may_be_no_file(place: Place, kind: str) -> None:
    path = place.fresh("models") / "models" / "net0.safetensors"
    path.unlink()
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "folder":
        path.mkdir()
    assert command("check", "models").status == 2
