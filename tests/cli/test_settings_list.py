"""Settings explain themselves: `ofms list --settings`, the page of settings, typed options."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ofms
from ofms.cli.settings_text import find_settings, settings_page
from ofms.policies import MODULES
from ofms.policies.options import policy_of
from ofms.policies.registry import settings_type
from ofms.runs.loading import available
from tests.cli.commands import assert_refused, run
from tests.problems import regression_problem

ROOT = Path(__file__).parents[2]


def test_every_setting_has_a_meaning_a_default_and_its_values() -> None:
    for each in find_settings("all"):
        assert each.rows
        for row in each.rows:
            assert row.meaning.endswith((".", ")")), f"{each.title}.{row.name} has no meaning"
            assert row.default
            assert row.values
    for policy in MODULES:
        (found,) = find_settings(policy)
        assert [row.name for row in found.rows] == [field.name for field in fields(settings_type(policy))]


def test_the_page_of_settings_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--markdown") == 0
    printed = capsys.readouterr().out
    assert printed == settings_page()
    assert (ROOT / "docs" / "settings.md").read_text() == printed, "ofms list --markdown > docs/settings.md"
    labels = (ROOT / "docs" / "algorithm.md").read_text()
    cited = set(
        re.findall(r"\((\w*\d\w*)\)|(th:\d)", " ".join(row.equation for row in find_settings("ofms-ft")[0].rows))
    )
    assert cited
    assert all(one in labels for pair in cited for one in pair)


def test_settings_are_printed_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--settings", "ofms-ft") == 0
    printed = capsys.readouterr().out
    assert "learning_rate = tuned\n    η_i, the learning rate" in printed
    assert "values: a number above 0 or none" in printed
    assert "equation: (1r2); tuned: 1/√(α n T · mean μ)" in printed
    assert "Preset `published`: `learning_rate = 10/sqrt(T)`" in printed
    for name in (*available("experiments"), "deployment", "experiment", "run"):
        assert run("list", "--settings", name) == 0
    printed = capsys.readouterr().out
    assert "clients = 50\n    N, the number of clients." in printed, "an experiment with its values"
    assert "deadline = 60\n" in printed
    (tmp_path / "own.toml").write_text(
        'summary = "x"\nbudget = "7"\nbandwidth = "50%"\ndataset = "air"\nclients = 2\nrounds = 3\n'
    )
    assert run("list", "--settings", tmp_path / "own.toml") == 0
    assert "budget = 7\n" in capsys.readouterr().out
    (tmp_path / "own.toml").write_text(
        'budget = "7"\nbandwidth = "50%"\nmodels = "models"\n'
        '[stream]\nfile = "pumps.csv"\ntask = "regression"\ntarget = "y"\n'
    )
    assert run("list", "--settings", tmp_path / "own.toml") == 0
    printed = capsys.readouterr().out
    assert "stream: `[stream]` of an experiment: your own samples" in printed
    assert "target = y\n    The column to predict." in printed, "with the file's values"
    assert "site = none\n" in printed
    assert "pretraining: " not in printed, "the file has no such table"
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet/server.toml").write_text(
        'address = "fleet.example.com:9092"\nmodels = "models"\nquorum = 0.7\n[watch]\nport = 9191\n'
    )
    for name in ("fleet", "fleet/server.toml"):
        assert run("list", "--settings", tmp_path / name) == 0
        printed = capsys.readouterr().out
        assert printed.startswith("fleet: `server.toml`")
        assert "quorum = 0.7\n" in printed, "a deployment with its values"
        assert "port = 9191\n" in printed
    assert run("list", "--settings", "examples.epsilon_greedy:algorithm") == 0
    assert "epsilon = 0.1\n" in capsys.readouterr().out
    assert_refused(capsys, run("list", "--settings", "nothing"), "settings = nothing: use one of late-hedge")


def test_typed_options_are_all_settings_of_a_policy() -> None:
    dictionary, stream = regression_problem(rounds=8)
    inputs: dict[str, Any] = {"models": dictionary, "stream": stream, "budget": "3", "bandwidth": "60%"}
    typed = ofms.simulate(policy=ofms.OFMSFT(learning_rate=0.5, fine_tuning_rate=0.01), **inputs)
    by_name = ofms.simulate(
        policy="ofms-ft", **inputs, **{field.name: getattr(ofms.OFMSFT(), field.name) for field in fields(ofms.OFMSFT)}
        | {"learning_rate": 0.5, "fine_tuning_rate": 0.01}
    )  # fmt: skip
    np.testing.assert_array_equal(typed.score, by_name.score)
    assert typed.config == by_name.config
    assert typed.config.settings["warm_up"] == 0, "the preset does not change options"
    assert ofms.simulate(policy=ofms.LateHedge(), **inputs).config.policy == "late-hedge"


def test_options_are_checked_before_anything_runs() -> None:
    dictionary, stream = regression_problem(rounds=8)
    inputs: dict[str, Any] = {"models": dictionary, "stream": stream, "budget": "3", "bandwidth": "60%"}
    for given, message in (
        ({"policy": ofms.MAB(exploration=5)}, "exploration = 5: give a number from 0 to 1"),
        ({"policy": ofms.MAB(), "exploration": 0.1}, r"exploration = 0.1: MAB\(...\) has all settings"),
        ({"policy": ofms.MAB(), "preset": "theory"}, "preset = theory: MAB"),
        ({"policy": 3}, "policy = int: give its name"),
    ):
        with pytest.raises(ofms.InvalidInput, match=message):
            ofms.simulate(**inputs, **given)


@pytest.mark.parametrize("policy", MODULES)
def test_every_policy_has_options(policy: str) -> None:
    name, settings = policy_of(settings_type(policy)())
    assert name == policy
    assert getattr(ofms, settings_type(policy).__name__) is settings_type(policy)
    assert settings.keys() == {field.name for field in fields(settings_type(policy))}


def test_policy_seed_and_history_of_an_experiment(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=regression_problem(rounds=8)[1].x, y=regression_problem(rounds=8)[1].y)
    text = 'summary = "x"\nbudget = "3"\nbandwidth = "60%"\npolicy = "mab"\nseed = 4\nhistory = 2\n'
    path = tmp_path / "own.toml"
    path.write_text(text + '[stream]\nfile = "data.npz"\ntask = "regression"\n')
    result = ofms.simulate(path, models=regression_problem()[0])
    assert (result.config.policy, result.config.seed, result.config.history) == ("mab", 4, 2)
    assert result.history["score"].shape == (8, 2)
    changed = ofms.simulate(path, models=regression_problem()[0], policy="late-hedge", seed=5, history=0)
    assert (changed.config.policy, changed.config.seed, changed.history) == ("late-hedge", 5, {})
    for line, message in (
        ('policy = "none-such"', "policy = none-such: use one of"),
        ("seed = -1", "seed = -1: give a whole number from 0"),
        ("history = -1", "history = -1: give the number of clients"),
    ):
        path.write_text(
            f'summary = "x"\nbudget = "3"\nbandwidth = "60%"\n{line}\n'
            '[stream]\nfile = "data.npz"\ntask = "regression"\n'
        )
        with pytest.raises(ofms.InvalidInput, match=message):
            ofms.simulate(path, models=regression_problem()[0])


def test_a_policy_that_only_a_file_names_must_be_trusted_there(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        'summary = "x"\nbudget = "3"\nbandwidth = "60%"\ndataset = "digits"\nclients = 2\nrounds = 3\n'
        'policy = "examples.epsilon_greedy:algorithm"\n'
    )
    with pytest.raises(ofms.InvalidInput, match="trust"):
        ofms.simulate(path, models=regression_problem()[0])
