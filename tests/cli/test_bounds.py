"""`ofms bounds`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import QUICK, assert_refused, printed_record, run


def test_bounds_are_those_of_the_theorems(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bounds", "--models", models, *QUICK, "--distance", "1", "--gradient", "1", "--json") == 0
    bounds = printed_record(capsys)
    row = bounds["clients"][0]
    mu, rate = row["fewest_clusters"][1], row["learning_rate"]
    assert row["theorem"] == pytest.approx(np.log(6) / rate + rate * mu * 12)
    assert bounds["server"]["sharp"] <= bounds["server"]["theorem"]


def test_by_use_the_servers_bound_is_over_all_models(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--distance", "2", "--gradient", "3", "--set", "gradient_weight=use", "--set", "importance_cap=20")
    assert run("bounds", "--models", models, *QUICK, *given, "--json") == 0
    printed = capsys.readouterr().out
    server = json.loads(printed.splitlines()[-1])["server"]
    rate, groups = server["fine_tuning_rate"], server["most_groups"]
    assert server["by_use"] == pytest.approx(6 * 4 / (2 * rate) + rate * groups * 9 * 12 / 2)
    assert server["by_use_best_of_run"] == pytest.approx(server["by_use"] + 2 * 3 * np.sqrt(6 * groups * 12))
    assert "on what clients use, all models together" in printed


def test_bounds_are_given_only_where_the_theorems_apply(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = ("--distance", "1", "--gradient", "1")
    assert run("bounds", "--models", models, *QUICK, *server, "--preset", "published") == 0
    printed = capsys.readouterr().out
    assert "not covered: the selection loss is not bounded (a1)" in printed
    assert "server's regret: not covered: the selection loss is not bounded" in printed
    assert run("bounds", "--models", models, *QUICK, *server, "--set", "window=5") == 0
    assert "not covered: the fine-tuning loss averages a window" in capsys.readouterr().out
    assert run("bounds", "--models", models, *QUICK, "--set", "learning_rate=0") == 0
    assert "not covered: a learning rate of 0 never learns" in capsys.readouterr().out
    assert_refused(
        capsys, run("bounds", "--models", models, *QUICK, "--distance", "nan", "--gradient", "1"), "distance = nan"
    )
