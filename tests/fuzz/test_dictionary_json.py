"""`dictionary.json`: any index of a dictionary is read, or refused in one line."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.devices import problem
from tests.fuzz.amounts import inputs
from tests.fuzz.holding import command
from tests.fuzz.mutations import VALUES, mutated, mutated_bytes
from tests.fuzz.places import Place

MLP = {"inputs": 3, "hidden": [8, 8], "outputs": 1}
INDEX: dict[str, Any] = {
    "format": "ofms-dictionary/1",
    "task": "regression",
    "models": [
        {"name": "net0", "architecture": "mlp", "options": MLP, "file": "net0.safetensors"},
        {
            "name": "net1",
            "architecture": "mlp",
            "options": MLP | {"hidden": [5]},
            "file": "net1.safetensors",
            "storage": 1000,
            "upload": 500,
            "trainable": ["2.*"],
        },
    ],
}
VGG = {
    "name": "net0",
    "architecture": "vgg",
    "options": {"image": [1, 8, 8], "blocks": [[2]], "dense": 2, "classes": 2, "pool": [True], "dropout": [0.1, 0.2]},
    "file": "net0.safetensors",
}
SIZES = st.sampled_from([2**20, 2**31, 2**40, 2**62]) | VALUES
CONTENTS = (
    mutated(INDEX).map(json.dumps).map(str.encode)
    | mutated(INDEX | {"models": [VGG, *INDEX["models"]]}, values=SIZES).map(json.dumps).map(str.encode)
    | mutated_bytes(json.dumps(INDEX, indent=1).encode())
    | st.sampled_from([b"[" * 5000, b'{"models": ' * 1500, b"", b"null", b"[]", b'"a"'])
)


def test_the_valid_index_is_accepted(place: Place) -> None:
    assert json.loads((place.valid / "models" / "dictionary.json").read_text())["models"][0] == INDEX["models"][0]
    assert len(problem()[0]) == 6
    (place.fresh("models") / "models" / "dictionary.json").write_text(json.dumps(INDEX))
    assert command("check", "models").status == 0


@inputs("dictionary.json")
@given(CONTENTS)
def test_any_index_is_read_or_refused(place: Place, content: bytes) -> None:
    (place.fresh("models") / "models" / "dictionary.json").write_bytes(content)
    command("check", "models")
