"""Valid files for all fuzzers, made once per process; each runs in the working folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.fuzz.places import Place


@pytest.fixture(scope="session")
def _valid(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(scope="module")
def place(_valid: Place) -> Iterator[Place]:
    before = os.getcwd()
    os.chdir(_valid.fresh())
    yield _valid
    os.chdir(before)
