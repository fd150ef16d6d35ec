"""Streams that drift: classes by phase, rows by site, angles, changes; what cannot drift is rejected."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ofms
from ofms.core.errors import InvalidInput
from ofms.core.typing import Floats
from ofms.data import load_dataset
from ofms.data.drift import Drift, changes_of, make_stream, rotate, sources_by_round
from ofms.data.images import image_stream
from ofms.data.sites import Rows, drifting_site_stream, site_stream
from ofms.data.stream import Stream, Task, TrainingSet
from ofms.data.table import TableSource

CONCEPTS: dict[Drift, list[int]] = {"switch": [0, 1, 2], "recurring": [0, 1, 0, 1], "gradual": [0, 1, 2]}


def digits(drift: Drift | None, *, clients: int = 12, rounds: int = 600, seed: int = 0) -> Stream:
    return make_stream(load_dataset("digits"), clients=clients, rounds=rounds, seed=seed, drift=drift)


@pytest.mark.parametrize("drift", ["switch", "recurring"])
def test_a_client_moves_to_the_next_classes(drift: Drift) -> None:
    stream = digits(drift)
    edges = [0, *stream.changes, 600]
    for client in range(12):
        for phase, (first, end) in enumerate(pairwise(edges)):
            counts = np.bincount(stream.y[client, first:end], minlength=10) / (end - first)
            majority = (client + (1 + client // 10) * CONCEPTS[drift][phase]) % 10
            assert counts[majority] == pytest.approx(0.775, abs=0.1)
            assert np.delete(counts, majority).max() < 0.08


def test_a_gradual_change_is_linear_and_centred_on_its_round() -> None:
    source = sources_by_round(np.tile([0, 1, 2], (4000, 1)), 120, "gradual", seed=3)
    for number, change in enumerate(changes_of("gradual", 120)):
        assert (source[:, change - 20 : change - 10] == number).all()
        assert (source[:, change + 10 : change + 20] == number + 1).all()
        share = (source[:, change - 10 : change + 10] == number + 1).mean(axis=0)
        assert share == pytest.approx((np.arange(20) + 0.5) / 20, abs=0.04)


@pytest.mark.parametrize("drift", get_args(Drift))
def test_drift_is_determined_by_the_seed(drift: Drift) -> None:
    first, again, other = (digits(drift, clients=4, rounds=30, seed=seed) for seed in (1, 1, 2))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    more = digits(drift, clients=7, rounds=30, seed=1)
    assert (more.x[:4] == first.x).all(), "more clients do not change the streams of others"
    assert first.changes == ((7, 15, 22) if drift == "recurring" else (10, 20))
    assert first.part(4, 12).changes == ((7,) if drift == "recurring" else (10,))


def test_no_stream_changes_without_drift() -> None:
    stream = digits(None, rounds=50)
    assert stream.changes == ()
    assert stream.fingerprint() == load_dataset("digits").stream(clients=12, rounds=50, seed=0).fingerprint()
    assert Stream(stream.x, stream.y, stream.task, (5,)).fingerprint() != stream.fingerprint()


class Sites:
    """Two sites whose rows are numbered: 0, 1, … and 1000, 1001, …; the scale is 1/1999."""

    name = "sites"
    task: Task = "regression"
    summary = "made up"

    def fetch(self) -> None: ...

    def check(self) -> str:
        return "sites"

    def stream(self, *, clients: int, rounds: int, seed: int) -> Stream:
        rows: dict[str, Rows] = {
            name: (np.full((1000, 1), 2.0), first + np.arange(1000.0)) for name, first in (("a", 0), ("b", 1000))
        }
        return site_stream(rows, clients=clients, rounds=rounds)

    def drifting_stream(self, *, clients: int, rounds: int, seed: int, drift: Drift) -> Stream:
        return drifting_site_stream(self, clients=clients, rounds=rounds, seed=seed, drift=drift)

    def training_sets(self, *, seed: int) -> list[TrainingSet]:
        return []


def rows_seen(drift: Drift, clients: int, rounds: int) -> Floats:
    stream = make_stream(Sites(), clients=clients, rounds=rounds, seed=0, drift=drift)
    return np.round(stream.y * 1999).astype(np.float64)


def test_clients_see_the_rows_of_the_other_site_at_the_same_rounds() -> None:
    assert rows_seen("switch", 4, 6).tolist() == [
        [0, 1, 1002, 1003, 4, 5],
        [6, 7, 1008, 1009, 10, 11],
        [1000, 1001, 2, 3, 1004, 1005],
        [1006, 1007, 8, 9, 1010, 1011],
    ]
    assert rows_seen("recurring", 3, 4).tolist() == [[0, 1001, 2, 1003], [4, 1005, 6, 1007], [1000, 1, 1002, 3]]


@given(st.sampled_from(["switch", "gradual", "recurring"]), st.integers(1, 7), st.integers(4, 60))
def test_no_client_sees_a_row_twice(drift: Drift, clients: int, rounds: int) -> None:
    seen = rows_seen(drift, clients, rounds)
    assert all(np.unique(row).size == rounds for row in seen)
    if drift != "gradual" and clients % 2 == 0:
        assert np.unique(seen).size == clients * rounds, "nor do two clients see the same row"


def test_images_move_between_clients() -> None:
    labels = np.arange(10_000) % 10
    images = np.zeros((10_000, 1, 2, 2), dtype=np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.divmod(np.arange(10_000), 256)

    def stream(**more: int | Drift) -> Stream:
        size = {"clients": 50, "rounds": 200, "seed": 0, "majority": 155, "others": 5, "name": "images"}
        return image_stream(images, labels, **(size | more))  # type: ignore[arg-type]

    still, switched = stream(), stream(drift="switch")
    assert switched.changes == (66, 133)
    blocks, moved = (each.x.reshape(5, 10, 200, -1) for each in (still, switched))
    for number, (first, end) in enumerate([(0, 66), (66, 133), (133, 200)]):
        for block, step in enumerate([1, 2, 3, 4, 1]):
            expected = np.roll(blocks[block], -number * step, axis=0)
            assert (moved[block, :, first:end] == expected[:, first:end]).all()
    numbers = np.round(switched.x[:, :, 0, 0] * 255) @ np.array([256, 1])
    assert np.unique(numbers).size == 10_000, "each image is seen once"
    few = stream(drift="switch", clients=3)
    assert (few.x == switched.x[:3]).all()
    turned = stream(drift="rotate", clients=2, rounds=20)
    assert turned.x.shape == (2, 20, 1, 2, 2)
    assert (turned.x[:, 0] == still.x[:2, 0]).all()
    with pytest.raises(InvalidInput, match=r"clients × rounds = 51 × 200"):
        stream(drift="switch", clients=51)


def test_images_rotate_to_45_degrees() -> None:
    still, turned = digits(None, clients=2, rounds=31), digits("rotate", clients=2, rounds=31)
    assert (turned.y == still.y).all()
    assert (turned.x[:, 0] == still.x[:, 0]).all()
    for step in (10, 30):
        expected = rotate(still.x[:, step].reshape(2, 8, 8), step * 1.5)
        assert (turned.x[:, step] == expected.reshape(2, 64)).all()
    image = np.random.default_rng(0).random((3, 5, 5), dtype=np.float32)
    assert rotate(image, 90) == pytest.approx(np.rot90(image, axes=(1, 2)), abs=1e-6)
    dot = np.zeros((9, 9), dtype=np.float32)
    dot[4, 7] = 1
    centre = np.array(np.unravel_index(rotate(dot, 45).argmax(), (9, 9))) - 4
    assert centre.tolist() == [-2, 2], "counter-clockwise"
    assert rotate(np.ones((9, 9), dtype=np.float32), 30)[3:6, 3:6] == pytest.approx(1)


def test_what_cannot_drift_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=r"drift = rotate: the inputs of sites are not images"):
        make_stream(Sites(), clients=2, rounds=6, seed=0, drift="rotate")
    monkeypatch.delattr(Sites, "drifting_stream")
    with pytest.raises(InvalidInput, match=r"drift = switch: dataset sites has no `drifting_stream`"):
        make_stream(Sites(), clients=2, rounds=6, seed=0, drift="switch")
    with pytest.raises(InvalidInput, match=r"drift = recurring: it has 4 phases"):
        digits("recurring", rounds=3)
    with pytest.raises(InvalidInput, match=r"drift = sudden: use one of switch, gradual, recurring, rotate"):
        ofms.simulate("digits", drift="sudden")
    x = np.zeros((2, 6, 3), dtype=np.float32)
    with pytest.raises(InvalidInput, match=r"stream changes = \(4, 2\): give ascending rounds from 1 to 5"):
        Stream(x, x[..., 0], "regression", (4, 2)).require_sound()


TABLE = """
summary = "pumps"
budget = "2"
bandwidth = "100%"
drift = "switch"

[stream]
file = "pumps.csv"
task = "regression"
target = "load"
client = "pump"
site = "town"
"""


def write_pumps(folder: Path, towns: str, experiment: str = TABLE) -> Path:
    rows = [f"{pump},{town},{10 * pump + step},0.1" for pump, town in enumerate(towns) for step in range(6)]
    (folder / "pumps.csv").write_text("\n".join(["pump,town,load,heat", *rows]))
    (folder / "own.toml").write_text(experiment)
    return folder / "own.toml"


def test_clients_of_a_table_move_to_the_next_sites(tmp_path: Path) -> None:
    write_pumps(tmp_path, "abcaa")
    source = TableSource(str(tmp_path / "pumps.csv"), "regression", target="load", client="pump", site="town")
    stream = source.read_drifting(clients=4, rounds=6, seed=0, drift="switch")
    assert stream.x.shape == (4, 6, 1), "the site is not a feature"
    assert stream.changes == (2, 4)
    assert stream.y.tolist() == [
        [0, 1, 12, 13, 24, 25],
        [10, 11, 22, 23, 4, 5],
        [20, 21, 2, 3, 14, 15],
        [30, 31, 12, 13, 24, 25],
    ]


@pytest.mark.parametrize(
    ("towns", "change", "message"),
    [
        ("aaa", ("", ""), "stream.site = town: all clients have the same site"),
        ("12", ('site = "town"\n', ""), "drift = switch: name the table's column of sites"),
        ("ab", ("town", "city"), "stream.site = city: the file has no such column"),
        ("ab", ("switch", "rotate"), "drift = rotate: a table has no images"),
    ],
)
def test_a_table_without_sites_is_refused(towns: str, change: tuple[str, str], message: str, tmp_path: Path) -> None:
    path = write_pumps(tmp_path, towns, TABLE.replace(*change))
    models = ofms.Dictionary.from_modules({name: nn.Linear(1, 1) for name in "abc"}, task="regression")
    with pytest.raises(InvalidInput, match=message) as refusal:
        ofms.simulate(str(path), models=models)
    assert len(str(refusal.value).splitlines()) == 1
