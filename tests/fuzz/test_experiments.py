"""Experiment files: any text is run, or refused in one line before anything is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import example, given
from hypothesis import strategies as st

from ofms.models.pretrain import pretrain
from ofms.report import page
from tests.fuzz.amounts import inputs
from tests.fuzz.holding import command
from tests.fuzz.mutations import as_toml, mutated, mutated_bytes, mutated_text
from tests.fuzz.places import EXPERIMENT, POLICIES, PRETRAINING, Place

TEXT = tomli_w.dumps(EXPERIMENT)
DEEP = "a = " + "[" * 3000


@pytest.fixture(autouse=True)
def _without_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The charts of a report take most of a small run's time."""
    monkeypatch.setattr(page, "write_report", lambda *given: Path("none"))


@inputs("experiments")
@given(
    mutated(EXPERIMENT).map(as_toml) | mutated_text(TEXT).map(str.encode) | mutated_bytes(TEXT.encode()),
    st.sampled_from(POLICIES),
)
@example(DEEP.encode(), "mab")
@example(f"{TEXT}\nrounds = {'9' * 5000}\n".encode(), "mab")
@example(TEXT.replace("interval = 1", f"interval = 0x{'f' * 5000}").encode(), "mab")
def test_any_experiment_is_run_or_refused(place: Place, content: bytes, policy: str) -> None:
    work = place.fresh("models", "stream.csv")
    (work / "own.toml").write_bytes(content)
    if command("run", "own.toml", "--policy", policy, "--out", "run", writes=[work]).status == 2:
        assert not (work / "run").exists(), "a refused run leaves nothing"


@inputs("pretraining")
@given(mutated(PRETRAINING).map(as_toml))
def test_any_pretraining_is_done_or_refused(place: Place, content: bytes) -> None:
    def quick(recipes: list[Any], **given: Any) -> Any:
        """Pre-training of an epoch: a file may ask for as many as it likes."""
        return pretrain([replace(each, epochs=min(each.epochs, 1)) for each in recipes], **given)

    work = place.fresh()
    (work / "own.toml").write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ofms.runs.dictionaries.pretrain", quick)
        if command("pretrain", "own.toml", "--out", "models", "--workers", "1", writes=[work]).status == 2:
            assert not (work / "models").exists(), "refused pre-training leaves no dictionary"
