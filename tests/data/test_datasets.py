"""Digits, Air, and streams in general."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray
from ofms.data import air, load_dataset
from ofms.data.folder import VerifiedFiles, md5_of
from ofms.data.stream import Stream

HEADER = "No,year,month,day,hour,PM2.5,PM10,SO2,NO2,CO,O3,TEMP,PRES,DEWP,RAIN,wd,WSPM,station"
SITES = ("Aotizhongxin", "Changping", "Dongsi", "Dingling")


def test_most_samples_of_a_digits_client_are_of_one_class() -> None:
    stream = load_dataset("digits").stream(clients=12, rounds=200, seed=0)
    assert stream.x.shape == (12, 200, 64)
    for client in range(12):
        counts = np.bincount(stream.y[client], minlength=10)
        assert counts[client % 10] == 155
        assert set(np.delete(counts, client % 10)) == {5}
    assert stream.x.min() >= 0
    assert stream.x.max() <= 1


def test_digits_streams_and_training_sets_are_disjoint() -> None:
    digits = load_dataset("digits")
    stream = digits.stream(clients=20, rounds=400, seed=1)
    seen = {row.tobytes() for row in stream.x.reshape(-1, 64)}
    trained = {row.tobytes() for each in digits.training_sets(seed=0) for row in each.x}
    assert not seen & trained


def test_training_sets_are_biased_towards_their_class() -> None:
    sets = load_dataset("digits").training_sets(seed=0)
    assert [each.label for each in sets] == [f"class{digit}" for digit in range(10)]
    counts = np.bincount(sets[3].y, minlength=10)
    assert counts[3] > 80
    assert set(np.delete(counts, 3)) == {4}


def test_more_clients_do_not_change_the_streams_of_others() -> None:
    digits = load_dataset("digits")
    few, more = (digits.stream(clients=clients, rounds=30, seed=4) for clients in (3, 8))
    assert (few.x == more.x[:3]).all()


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small files in the real format, taken as the published ones; every third row lacks a value."""
    monkeypatch.setenv("OFMS_DATA", str(tmp_path))
    folder, published = tmp_path / "air", {}
    folder.mkdir()
    winds = ["NW", "N", "SE"]
    for number, site in enumerate(SITES):
        lines = [HEADER]
        for row in range(30):
            no2 = "NA" if row % 3 == 2 else str(10 * number + row)
            wind = winds[(row + number) % 3]
            lines.append(f"{row},2013,3,{row % 28},5,1,2,3,{no2},300,7,8,1000,10,0,{wind},1.5,{site}")
        path = folder / f"PRSA_Data_{site}_20130301-20170228.csv"
        path.write_text("\n".join(lines))
        published[path.name] = md5_of(path.read_bytes())
    monkeypatch.setattr(air, "_FILES", VerifiedFiles("air", published))
    return folder


@pytest.mark.usefixtures("sites")
def test_air_is_prepared_as_in_the_papers_experiments() -> None:
    stream = load_dataset("air").stream(clients=4, rounds=5, seed=0)
    assert stream.x.shape == (4, 5, 14)
    # Complete rows of a site: 0, 1, 3, 4, 6, ...; the target is scaled over both sites: 0 .. 28 and 10 .. 38.
    complete = [row for row in range(30) if row % 3 != 2]
    assert stream.y[0] == pytest.approx(np.array(complete[:5]) / 38)
    assert stream.y[3] == pytest.approx((10 + np.array(complete[5:10])) / 38)
    # Wind by order of first appearance in the complete rows: NW, N (SE is in dropped rows only).
    raw = np.array([3, 0, 5, 1, 2, 3, 300, 7, 8, 1000, 10, 0, 0, 1.5])
    norm = np.linalg.norm(np.array([3, 28, 5, 1, 2, 3, 300, 7, 8, 1000, 10, 0, 0, 1.5]))
    assert stream.x[0, 0] == pytest.approx(raw / np.linalg.norm(raw) * np.linalg.norm(raw) / norm, rel=1e-3)
    assert np.linalg.norm(stream.x, axis=-1).max() <= 1 + 1e-6
    winds = np.round(stream.x[..., 12] / stream.x[..., 2] * 5)
    assert np.unique(winds).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("damage", ["another column", "a column moved", "half", "no rows", "missing"])
@pytest.mark.parametrize("site", ["Aotizhongxin", "Dongsi"])
def test_a_changed_file_is_refused(sites: Path, damage: str, site: str) -> None:
    path = sites / f"PRSA_Data_{site}_20130301-20170228.csv"
    text = path.read_text()
    changed = {
        "another column": text.replace("NO2", "NO3"),
        "a column moved": text.replace("NO2,CO", "CO,NO2"),
        "half": text[: len(text) // 2],
        "no rows": HEADER,
    }
    if damage == "missing":
        path.unlink()
    else:
        path.write_text(changed[damage])
    message = "No such file" if damage == "missing" else r"its MD5 is [0-9a-f]{32}, not the published"
    dataset = load_dataset("air")
    with pytest.raises(InvalidInput, match=rf"file = .*{site}.*: {message}.* 'ofms data air'") as refusal:
        dataset.stream(clients=2, rounds=5, seed=0) if site == "Aotizhongxin" else dataset.training_sets(seed=0)
    assert len(str(refusal.value).splitlines()) == 1
    with pytest.raises(InvalidInput, match=message):
        dataset.check()


@pytest.mark.usefixtures("sites")
def test_more_rounds_than_there_are_rows_are_refused() -> None:
    with pytest.raises(InvalidInput, match="Aotizhongxin has 20 complete rows"):
        load_dataset("air").stream(clients=2, rounds=21, seed=0)


def test_the_real_air_data_are_complete(data_folder: Path) -> None:
    assert "4 sites" in load_dataset("air").check()
    stream = load_dataset("air").stream(clients=100, rounds=200, seed=0)
    assert stream.x.shape == (100, 200, 14)
    assert np.linalg.norm(stream.x, axis=-1).max() == pytest.approx(1)
    assert (stream.y.min(), stream.y.max()) == (0, 1)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.full((2, 3, 1), np.nan), np.zeros((2, 3)), "stream inputs = not finite: see client 0, round 1"),
        (
            np.zeros((2, 3, 1)),
            np.array([[0, 0, 0], [0, np.inf, 0]]),
            "stream targets = not finite: see client 1, round 2",
        ),
        (np.zeros((0, 3, 1)), np.zeros((0, 3)), "at least one client"),
        (np.zeros((2, 3, 1)), np.zeros((2, 4)), "inputs are"),
    ],
)
def test_a_broken_stream_is_refused(x: AnyArray, y: AnyArray, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Stream(x.astype(np.float32), y, "regression").require_sound()
