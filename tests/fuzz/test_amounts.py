"""The fuzzers together try as many inputs as the documentation says, and every door has one."""

from __future__ import annotations

import re
from pathlib import Path

from tests.fuzz.amounts import INPUTS


def test_enough_inputs() -> None:
    assert sum(few for few, _ in INPUTS.values()) >= 500
    assert sum(many for _, many in INPUTS.values()) >= 10_000


def test_every_door_is_fuzzed() -> None:
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    used = [door for text in texts for door in re.findall(r'@inputs\("(.*)"\)', text)]
    assert sorted(used) == sorted(INPUTS)
