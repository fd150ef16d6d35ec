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
from tests.fuzz.places import EXPERIMENTS, POLICIES, PRETRAINING, Place

TEXTS = [tomli_w.dumps(each) for each in EXPERIMENTS]
TEXT = TEXTS[0]
DEEP = "a = " + "[" * 3000


@pytest.fixture(autouse=True)
def _without_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The charts of a report take most of a small run's time."""
    monkeypatch.setattr(page, "write_report", lambda *given: Path("none"))


@pytest.mark.parametrize("text", TEXTS, ids=["plain", "changing", "drifting"])
@pytest.mark.parametrize("policy", [*POLICIES, None], ids=str)
def test_the_experiments_before_any_change_are_run(place: Place, text: str, policy: str | None) -> None:
    work = place.fresh("models", "stream.csv")
    (work / "own.toml").write_text(text)
    assert command("run", "own.toml", *(("--policy", policy) if policy else ()), writes=[work]).status == 0


@inputs("experiments")
@given(
    st.sampled_from(EXPERIMENTS).flatmap(mutated).map(as_toml)
    | st.sampled_from(TEXTS).flatmap(mutated_text).map(str.encode)
    | mutated_bytes(TEXT.encode()),
    st.sampled_from(POLICIES) | st.none(),
)
@example(DEEP.encode(), "mab")
@example(f"{TEXT}\nrounds = {'9' * 5000}\n".encode(), "mab")
@example(TEXT.replace("interval = 1", f"interval = 0x{'f' * 5000}").encode(), "mab")
def test_any_experiment_is_run_or_refused(place: Place, content: bytes, policy: str | None) -> None:
    work = place.fresh("models", "stream.csv")
    (work / "own.toml").write_bytes(content)
    named = () if policy is None else ("--policy", policy)
    if command("run", "own.toml", *named, "--out", "run", writes=[work]).status == 2:
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
