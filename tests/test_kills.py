"""A process that is killed with SIGKILL at any moment loses nothing: the repeated command makes the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.killing import assert_kills_change_nothing
from tests.repeated_tasks import TASKS


@pytest.mark.parametrize("task", TASKS)
def test_two_kills(task: str, tmp_path: Path) -> None:
    assert_kills_change_nothing(task, tmp_path, 2, seed=1, pages=False)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_forty_kills(task: str, tmp_path: Path) -> None:
    assert_kills_change_nothing(task, tmp_path, 40, seed=2, pages=False)


@pytest.mark.slow
def test_kills_also_while_a_page_is_written(tmp_path: Path) -> None:
    assert_kills_change_nothing("run", tmp_path, 5, seed=3, pages=True)
