"""Advice about budget, interval and bandwidth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ofms
from ofms.models.zoo import build_module
from ofms.report.advice import Limits, Option, choose
from tests.cli.commands import assert_refused, run

OPTION = st.builds(
    Option,
    budget=st.integers(1, 100),
    interval=st.just(1),
    bandwidth=st.just(1),
    bound=st.none(),
    error=st.none() | st.floats(0.01, 1),
    held=st.floats(1, 100),
    up=st.floats(0, 100),
    down=st.floats(0, 100),
)


def written_problem(folder: Path) -> Path:
    """An experiment of ten clients whose samples are predicted by one of four models of two sizes."""
    options = [{"inputs": 3, "hidden": [4 * (1 + index % 2)], "outputs": 1} for index in range(4)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        modules = {f"net{index}": build_module("mlp", each) for index, each in enumerate(options)}
    architectures = {name: ("mlp", options[index]) for index, name in enumerate(modules)}
    ofms.Dictionary.from_modules(modules, task="regression", architectures=architectures).write(folder / "models")
    x = np.random.default_rng(0).normal(size=(10, 40, 3)).astype(np.float32)
    with torch.no_grad():
        y = np.stack([modules[f"net{client % 4}"](torch.from_numpy(x[client])).numpy()[:, 0] for client in range(10)])
    np.savez(folder / "data.npz", x=x, y=y)
    path = folder / "own.toml"
    path.write_text(
        'summary = "x"\nbudget = "3"\nbandwidth = "100%"\nmodels = "models"\n'
        '[stream]\nfile = "data.npz"\ntask = "regression"\n'
    )
    return path


def test_advice_for_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = written_problem(tmp_path)
    fleet = ("--devices", "500", "--uplink", "1MB/s", "--every", "2")
    arguments = (
        *fleet,
        "--clients",
        "6",
        "--rounds",
        "30",
        "--json",
        "--models",
        tmp_path / "models",
        "--set",
        "history=3",
    )
    assert run("advise", experiment, *arguments, "--out", tmp_path / "advice.png", "-q") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert (tmp_path / "advice.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads(printed.out.splitlines()[-1])
    options, take = record["options"], record["take"]
    catalogue = ofms.Dictionary.read(tmp_path / "models").catalogue()
    assert {option["interval"] for option in options} == {1, 5}, "20 would leave two exchanges"
    budgets = sorted({option["budget"] for option in options})
    assert budgets[0] == sum(sorted(catalogue.storage.tolist())[-2:]), "the two largest models together"
    assert budgets[-1] == catalogue.storage.sum()
    for option in options:
        assert option["bandwidth"] == min(500 * option["budget"], 2_000_000 * option["interval"])
        assert option["held"] <= option["budget"]
        assert option["error"] > 0
    assert take["error"] <= 1.05 * min(option["error"] for option in options)
    assert (record["limits"]["devices"], record["clients"], record["rounds"]) == (500, 6, 30)
    frozen = [option["bound"] for option in options if option["interval"] == 1]
    assert frozen == sorted(frozen, reverse=True), "more memory, a smaller bound"

    # The command that it prints runs with the same budget and interval.
    (command,) = [line for line in printed.out.splitlines() if line.startswith("try it: ofms run")]
    assert f"--budget {take['budget']}B" in command
    assert f"interval={take['interval']}" in command


def test_an_option_is_what_a_run_of_it_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = written_problem(tmp_path)
    assert (
        run("advise", experiment, "--json", "-q", "--out", tmp_path / "a.png", "--clients", "10", "--rounds", "40") == 0
    )
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    option = record["options"][1]
    result = ofms.simulate(
        experiment,
        budget=f"{option['budget']}B",
        bandwidth=f"{option['bandwidth']}B",
        interval=option["interval"],
        hindsight=False,
    )
    assert option["error"] == pytest.approx(result.mean)
    assert option["up"] == pytest.approx(result.clients["up"].mean() / 40)
    assert option["noise"] == pytest.approx(result.score.std(ddof=1) / 10**0.5)


def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = written_problem(tmp_path)
    for arguments, message in (
        (("--budget", "10B"), "budget = 10B: it must hold the two largest models together"),
        (("--uplink", "10"), "uplink = 10: write bytes per second"),
        (("--uplink", "1B/s", "--rounds", "5", "--clients", "2"), "no option can run: the uplink is too small"),
        (("--every", "0"), "every = 0.0: give a number above 0"),
    ):
        assert_refused(capsys, run("advise", experiment, *arguments, "-q", "--out", tmp_path / "a.png"), message)
    assert not (tmp_path / "a.png").exists()


@given(st.lists(OPTION, min_size=1, max_size=8), st.floats(0.001, 0.5))
def test_the_cheapest_of_the_good_options_is_taken(options: list[Option], tolerance: float) -> None:
    errors = [option.error for option in options if option.error is not None]
    if not errors:
        with pytest.raises(ofms.InvalidInput):
            choose(options, tolerance)
        return
    best, take = choose(options, tolerance)
    assert best.error == min(errors)
    assert take.error is not None
    assert take.error <= min(errors) * (1 + tolerance)
    for option in options:
        if option.error is not None and option.error <= min(errors) * (1 + tolerance):
            cheaper = option.held < take.held and option.up + option.down < take.up + take.down
            assert not cheaper, "nothing as good is cheaper in both"


def test_the_uplink_limits_what_is_uploaded_between_exchanges() -> None:
    limits = Limits(devices=10, budget=100, uplink=7, every=3.0)
    assert limits.bandwidth(100, 5) == 105
    assert limits.bandwidth(2, 5) == 20, "at most all that devices hold"
    assert replace(limits, uplink=None).bandwidth(100, 5) == 1000
