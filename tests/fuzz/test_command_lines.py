"""Command lines of every subcommand: any arguments are obeyed, or refused with status 2 and one line."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ofms.cli import cli
from ofms.core.errors import InvalidInput
from tests.fuzz.amounts import inputs
from tests.fuzz.holding import command
from tests.fuzz.mutations import NUMBERS, TEXTS, misspelt
from tests.fuzz.places import Place

Words = list[str]


def leaves(group: click.Group, before: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    """All subcommands, by their words."""
    found: dict[tuple[str, ...], click.Command] = {}
    for name, each in group.commands.items():
        found |= leaves(each, (*before, name)) if isinstance(each, click.Group) else {(*before, name): each}
    return found


COMMANDS = leaves(cli)
PROGRAM = "/usr/bin/ofms"
SMALL = ["--models", "models", "--rounds", "4", "--clients", "2", "--budget", "3"]
# Complete command lines, one for each subcommand; they take the files of the working folder.
VALID: dict[tuple[str, ...], Words] = {
    ("advise",): [
        "own.toml",
        "--models",
        "models",
        "--rounds",
        "5",
        "--clients",
        "2",
        "--workers",
        "1",
        "--out",
        "a.png",
    ],
    ("bounds",): ["own.toml", *SMALL, "--distance", "1", "--gradient", "1", "--json"],
    ("check",): ["models", "--json"],
    ("compare",): ["own.toml", "--policy", "mab", "--seeds", "1", *SMALL, "--workers", "1", "--out", "out"],
    ("completion",): ["bash"],
    ("data",): ["digits"],
    ("list",): [],
    ("models", "export"): ["run", "out"],
    ("pretrain",): ["own.toml", "--out", "out"],
    ("report",): ["run", "--out", "page.html"],
    ("reproduce",): ["digits", "--show", "--seeds", "1", "--column", "digits", "--out", "out"],
    ("run",): ["own.toml", "--policy", "mab", *SMALL, "--set", "learning_rate=0.1", "--workers", "1", "--out", "out"],
    ("deploy", "demo"): [],
    ("deploy", "device"): ["fleet/devices/device-0", "--store", "store"],
    ("deploy", "export"): ["fleet", "out"],
    ("deploy", "freeze"): ["fleet", "--off"],
    ("deploy", "keys"): [
        "new",
        "--server",
        "localhost:9000",
        "--models",
        "models",
        "--device",
        "a=5",
        "--set",
        "window=3",
    ],
    ("deploy", "rollback"): ["fleet", "--to", "1"],
    ("deploy", "server"): ["fleet", "--listen", "127.0.0.1"],
    ("deploy", "status"): ["fleet"],
    ("deploy", "dashboard"): ["page.json"],
    ("deploy", "units"): ["out", "--program", PROGRAM],
    ("deploy", "watch"): ["fleet", "--port", "0"],
    ("deploy", "set"): ["fleet", "--interval", "3"],
    ("deploy", "models", "add"): ["fleet", "models"],
    ("deploy", "models", "retire"): ["fleet", "net0"],
    ("deploy", "models", "rollback"): ["fleet", "net0", "--to", "0"],
}
SETTINGS = [
    "window=5",
    "window=0",
    "window=1e9",
    "loss_bound=raw",
    "learning_rate=tuned",
    "aggregation=clipped:2",
    "aggregation=median",
    "aggregation=trimmed-mean:0.9",
    "attack=largest:0.5",
    "attack=sign-flip:2",
    "doubling=3",
    "drift=switch",
    "seed=3",
    "history=0",
    "history=1e9",
    "interval=3",
    "shards=2",
    "dtype=float64",
    "device=cpu",
    "hindsight=false",
    "policy=mab",
    "budget={ pump = 2, '*' = 3 }",
    "events=[{ exchange = 2, retire = ['net0'] }]",
    "events=[{ exchange = 1, policy = 'os:system' }]",
    "events=[{}]",
    "a.b=1",
    "=",
    "x=",
    "=x",
    "a=[",
    "a='",
]
TYPICAL = [
    *("own.toml", "changing.toml", "drifting.toml", "models", "run", "fleet", "digits", "stream.csv", "out"),
    *("mab", "ofms-ft", "late-hedge", "theory", "switch", "rotate", "pump=2,*=3", "50%", "64MiB", "a=b", "pumps"),
]
VALUES = (
    st.sampled_from(NUMBERS).map(str)
    | st.sampled_from(TEXTS).filter(lambda text: "\0" not in text)
    | st.sampled_from(SETTINGS)
    | st.sampled_from(TYPICAL)
    | st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=6)
)


@st.composite
def command_lines(draw: st.DrawFn) -> Words:
    """A valid command line with words left out, replaced, misspelt or added; options of its command with values."""
    name = draw(st.sampled_from(sorted(VALID)))
    words = list(VALID[name])
    options = [each for parameter in COMMANDS[name].params for each in parameter.opts if each.startswith("-")]
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(words)))
        kind = draw(st.sampled_from(["option", "option", "replace", "replace", "drop", "misspell", "add"]))
        if kind == "option" and options:
            words[place:place] = [draw(st.sampled_from(options)), draw(VALUES)]
        elif kind == "add":
            words.insert(place, draw(VALUES))
        elif place < len(words):
            changed: dict[str, Any] = {"drop": st.just([]), "misspell": misspelt(words[place]).map(lambda word: [word])}
            words[place : place + 1] = draw(changed.get(kind, VALUES.map(lambda value: [value])))
    return [*name, *words]


@pytest.fixture(autouse=True)
def _without_long_work(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of what needs a network, other processes or minutes: nothing. What precedes it is real."""
    # `ofms completion --install` writes there.
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(place.work))

    def refuse(*given: Any, **options: Any) -> Any:
        raise InvalidInput("network", "none", "there is none here")

    monkeypatch.setattr("ofms.data.download.Archive.fetch", refuse)
    monkeypatch.setattr("ofms.runs.dictionaries.pretrain", refuse)
    monkeypatch.setattr("ofms.coordinator.watch.server.WatchServer.wait", lambda self: None)
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    monkeypatch.setattr("ofms.flower.demo.run_demo", lambda echo: 0)
    monkeypatch.setattr("ofms.flower.processes.keep_node", lambda *given: None)
    monkeypatch.setattr("ofms.flower.supervisor.Supervisor.__enter__", refuse)
    monkeypatch.setattr("ofms.report.page.write_report", lambda *given: Path("none"))


def test_every_subcommand_has_a_valid_line() -> None:
    assert VALID.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", sorted(VALID), ids=" ".join)
def test_valid_lines_are_obeyed(place: Place, name: tuple[str, ...]) -> None:
    status = run(place, [*name, *VALID[name]])
    # Without a network and without other models, these are refused.
    refused = (("pretrain",), ("deploy", "server"), ("deploy", "models", "add"))
    assert status == (2 if name in refused else 0)


@inputs("command lines")
@given(command_lines() | st.lists(VALUES, max_size=4))
@example(["run", "--set", f"window={'9' * 5000}"])
@example(["run", "--set", f"window={'[' * 5000}"])
@example(["run", "--set", "window=1\nb=2", "own.toml"])
@example(["check", "a\udcff"])
def test_any_command_line_is_obeyed_or_refused(place: Place, words: Words) -> None:
    run(place, words)


def run(place: Place, words: Words) -> int:
    # As an output folder, it would be written to, elsewhere.
    words = ["out" if word == PROGRAM and before != "--program" else word for before, word in pairwise(["", *words])]
    # Reproduction at its full size takes days, also if it is a valid word of the line.
    if words[:1] == ["reproduce"] and not {"--show", "--help", "-h"} & set(words):
        words = [*words, "--show"]
    needed = {"deploy": ["fleet"], "models": ["run"], "report": ["run"]}.get(words[0] if words else "", [])
    work = place.fresh("models", "own.toml", "changing.toml", "drifting.toml", "stream.csv", *needed)
    return command(*words, writes=[work]).status
