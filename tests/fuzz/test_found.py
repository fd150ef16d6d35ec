"""What the fuzzers have found, one test for each kind of fault."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from ofms.coordinator.checkpoint import Checkpoint
from ofms.coordinator.deployment import Deployment
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.core.errors import InvalidInput
from ofms.data.table import TableSource
from ofms.device.device import Device
from ofms.flower.records import from_record, to_record
from ofms.models.dictionary import Dictionary
from ofms.storage.archives import read_npz
from ofms.storage.checksums import with_checksum, without_checksum
from ofms.storage.envelope import Envelope, decode, encode
from ofms.storage.parsing import parse_json, parse_toml
from tests.deployments import make_fleet
from tests.devices import budgets_for, coordinator_for, problem
from tests.fuzz.archives import VALID, archive, declared
from tests.fuzz.holding import command
from tests.tampering import changed


def test_messages_do_not_control_the_terminal() -> None:
    error = InvalidInput("name", "\x1b[2J\u2028\n" + "x" * 5000, "give\tanother")
    assert str(error).isprintable()
    assert len(str(error)) < 1000
    assert "thousands of digits" in str(InvalidInput("rounds", 16**5000, "give less"))


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "9" * 5000, f"a = 0x{'f' * 100}", "a = \xff"])
def test_toml_that_cannot_be_represented_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not valid TOML"):
        parse_toml(text.encode("latin-1"))


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(b"[" * 5000, object)


@pytest.mark.parametrize("content", [declared("(32000000000,)"), declared("(" * 500), b"text"], ids=str)
def test_an_array_is_not_allocated_before_it_is_known_to_exist(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "stream.npz").write_bytes(archive(VALID | {"x.npy": content}))
    with pytest.raises(ValueError, match=r".+"):
        read_npz(tmp_path / "stream.npz")


def test_a_network_is_not_allocated_before_its_file_is_known_to_fit(tmp_path: Path) -> None:
    problem()[0].write(tmp_path / "models")
    path = tmp_path / "models" / "dictionary.json"
    path.write_text(path.read_text().replace('"inputs": 3', '"inputs": 1000000000000', 1))
    with pytest.raises(InvalidInput, match="expects"):
        Dictionary.read(tmp_path / "models")


def test_clients_with_the_same_name_as_text_are_not_merged(tmp_path: Path) -> None:
    table = pandas.DataFrame({"name": ["1", "1", 1, 1], "a": [0.0] * 4, "y": [0.0] * 4})
    source = TableSource("stream.parquet", "regression", target="y", client="name")
    with pytest.raises(InvalidInput, match="two clients have this name"):
        source._groups(table, table)


def test_classes_beyond_whole_numbers_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "stream.npz", x=np.zeros((1, 2, 1)), y=np.array([[0, 1e30]]))
    with pytest.raises(InvalidInput, match="classes must be integers"):
        TableSource(str(tmp_path / "stream.npz"), "classification").read()


@pytest.mark.parametrize("wait", [float("nan"), float("inf"), -1.0])
def test_a_carrier_does_not_wait_for_ever(wait: float) -> None:
    record = to_record(encode(Envelope("grant")), wait=wait)
    with pytest.raises(InvalidInput, match="number of seconds"):
        from_record(record)


@pytest.mark.parametrize("field", ["name", "key"])
def test_devices_that_occur_twice_are_refused(field: str, tmp_path: Path) -> None:
    from ofms.coordinator.roster import read_roster, write_roster

    roster = read_roster(make_fleet(tmp_path / "fleet"))
    setattr(roster.devices[1], field, getattr(roster.devices[0], field))
    write_roster(tmp_path / "fleet", roster)
    with pytest.raises(InvalidInput, match="two devices"):
        read_roster(tmp_path / "fleet")


@pytest.mark.parametrize("change", [{"interval": 0}, {"task": "both"}, {"client": -1}, {"models": []}], ids=str)
def test_a_refused_welcome_leaves_the_device_as_it_was(change: dict[str, Any], tmp_path: Path) -> None:
    dictionary, stream = problem()
    coordinator = coordinator_for(dictionary, "ofms-ft")
    with Device(tmp_path, budget=int(budgets_for(dictionary)[0]), mail=False) as device:
        welcome = coordinator.welcome(0)
        device.receive(welcome)
        before = device.collect()
        with pytest.raises(InvalidInput, match="message = welcome"):
            device.receive(encode(changed(decode(welcome), deployment="other", **change)))
        assert device.collect() == before
        device.receive(coordinator.run_exchange({0: before or b""})[0])
        assert device.predict(stream.x[0, 0]).id == 0


@pytest.mark.parametrize(
    "change",
    [{"members": 3}, {"members": [7]}, {"budgets": [[1], 2, 3]}, {"budgets": [-1, 2, 3]}],
)
def test_a_checkpoint_with_values_of_other_types_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    folder = make_fleet(tmp_path / "fleet")
    with contextlib.closing(PersistentCoordinator(Deployment(folder))) as persistence:
        persistence.save()
        path = Checkpoint(folder).path
    envelope = decode(without_checksum(path.read_bytes()))
    path.write_bytes(with_checksum(encode(Envelope(envelope.kind, {**envelope.values, **change}, envelope.arrays))))
    with pytest.raises(InvalidInput, match=r"it cannot be read .* to start over"):
        PersistentCoordinator(Deployment(folder))


@pytest.mark.parametrize("words", [["deploy", "dashboard"], ["run", "--out"], ["report", "run", "--out"]], ids=" ".join)
def test_a_name_that_is_too_long_is_refused_as_input(words: list[str], tmp_path: Path) -> None:
    outcome = command(*words, tmp_path / ("x" * 400), writes=[tmp_path])
    assert outcome.status == 2
