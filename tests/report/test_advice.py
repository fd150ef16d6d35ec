"""Advice about budget, interval and bandwidth."""

from __future__ import annotations

import json
import shlex
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

CHOSEN = ("budget", "bandwidth", "interval")
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
    assert [option["bandwidth"] for option in options[:-2]] == [
        min(500 * option["budget"], 2_000_000 * option["interval"]) for option in options[:-2]
    ]
    for option in options:
        assert option["held"] <= option["budget"]
        assert option["error"] > 0
    assert take["error"] <= 1.05 * min(option["error"] for option in options)
    assert (record["limits"]["devices"], record["clients"], record["rounds"]) == (500, 6, 30)
    frozen = [option["bound"] for option in options[:-2] if option["interval"] == 1]
    assert frozen == sorted(frozen, reverse=True), "more memory, a smaller bound"


def test_the_choice_is_also_tried_with_less_bandwidth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = written_problem(tmp_path)
    arguments = ("--rounds", "20", "--devices", "100", "--json", "-q", "--out", tmp_path / "a.svg")
    assert run("advise", experiment, *arguments) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    *others, quarter, sixteenth = record["options"]
    (full,) = [
        option
        for option in others
        if (option["budget"], option["interval"]) == (quarter["budget"], quarter["interval"])
    ]
    assert all(option["bandwidth"] == 100 * option["budget"] for option in others)
    assert quarter["bandwidth"] == full["bandwidth"] // 4
    assert sixteenth["bandwidth"] == full["bandwidth"] // 16
    assert sixteenth["enlarged"], "ten clients of a hundred have less than one client's upload"
    assert 0 < sixteenth["up"] < quarter["up"] <= full["up"]
    assert record["take"] in record["options"]


def test_the_printed_command_runs_with_all_that_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = written_problem(tmp_path)
    (tmp_path / "models").rename(tmp_path / "my models")
    monkeypatch.chdir(tmp_path)
    # So many devices share the uplink that the share of ten clients is less than one client's upload.
    arguments = ("--devices", "500", "--uplink", "2kB/s", "--clients", "4", "--rounds", "20", "--models", "my models")
    settings = ("--policy", "ofms-ft", "--set", "learning_rate=1/sqrt(T)", "--seed", "3", "--trust", "pumps")
    assert run("advise", experiment, *arguments, *settings, "--out", "advice.png", "-q", "--json") == 0
    *_, command, last = capsys.readouterr().out.splitlines()
    record = json.loads(last)
    assert command == f"try it: {record['command']}"
    program, *words = shlex.split(record["command"])
    assert program == "ofms"
    assert run(*words, "--out", "chosen", "-q") == 0, capsys.readouterr().err
    config = ofms.load("chosen").config
    assert (config.policy, config.seed, config.interval) == ("ofms-ft", 3, record["take"]["interval"])
    assert (config.settings["learning_rate"], config.trusted().packages) == ("1/sqrt(T)", ("pumps",))
    assert config.budget == f"{record['take']['budget']}B"
    assert (config.clients, config.rounds) == (10, 40), "those of the experiment"


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
        *((("--set", f"{name}=5"), f"{name} = 5: it is what this command chooses") for name in CHOSEN),
    ):
        assert_refused(capsys, run("advise", experiment, *arguments, "-q", "--out", tmp_path / "a.png"), message)
    assert not (tmp_path / "a.png").exists()


def test_what_cannot_become_a_picture_is_refused_before_any_simulation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ofms.report.advice.advise", lambda *_, **__: pytest.fail("it was simulated"))
    (tmp_path / "notes.png").write_text("my notes")
    (tmp_path / "folder.png").mkdir()
    for name, message in (
        ("pic", "name a picture: its end must be one of .png"),
        ("a.txt", "name a picture: its end must be one of .png"),
        ("notes.png", "it is a file of another kind; name another"),
        ("folder.png", "it is not a regular file; name another"),
    ):
        assert_refused(capsys, run("advise", "digits", "--out", tmp_path / name), message)
    assert (tmp_path / "notes.png").read_text() == "my notes"


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
