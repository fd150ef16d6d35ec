"""The graphs of a deployment: exported once for each architecture, and sent with the welcome."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

import ofms
from ofms.coordinator.coordinator import Coordinator
from ofms.coordinator.graphs import export_missing, read_graphs, write_graphs
from ofms.device.device import Device
from ofms.models.dictionary import Dictionary
from ofms.storage.envelope import decode
from tests.edge_fleets import MODELS, coordinator_of, dictionary_of


def test_an_architecture_is_exported_once_for_all_its_models(tmp_path: Path) -> None:
    dictionary = dictionary_of("values")
    lines: list[str] = []
    write_graphs(tmp_path / "graphs", export_missing(tmp_path / "graphs", dictionary, lines.append))
    assert lines == ["exporting the network of net0"]
    files = sorted(path.name.partition(".")[2] for path in (tmp_path / "graphs").iterdir())
    assert files == ["gradient.onnx", "outputs.onnx"]
    assert export_missing(tmp_path / "graphs", dictionary, lines.append) == []
    assert len(lines) == 1, "the second time nothing is missing"
    graphs = read_graphs(tmp_path / "graphs", dictionary)
    assert list(graphs) == list(range(MODELS))
    budget = 2 * int(dictionary.catalogue().storage.max())
    coordinator = Coordinator(
        dictionary, budgets=np.array([budget]), bandwidth=budget, interval=5, graphs=lambda _: graphs
    )
    with Device(tmp_path / "store", budget=budget, mail=False, backend="onnx") as device:
        device.receive(coordinator.welcome(0))
        assert device.collect() is not None


def test_a_welcome_without_graphs_is_that_of_before() -> None:
    coordinator, _ = coordinator_of("values", graphs=False)
    welcome = decode(coordinator.welcome(0))
    assert not welcome.arrays
    assert all("graphs" not in model for model in welcome.values["models"])


def test_the_graphs_of_another_dictionary_are_not_used(tmp_path: Path) -> None:
    graphs = tmp_path / "graphs"
    graphs.mkdir()
    (graphs / "0123456789abcdef.outputs.onnx").write_bytes(b"")
    assert read_graphs(graphs, dictionary_of("values")) == {}
    assert read_graphs(tmp_path / "nowhere", dictionary_of("values")) == {}


def test_a_network_that_cannot_be_exported_is_named(tmp_path: Path) -> None:
    modules = {name: nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten()) for name in ("a", "b")}
    dictionary = Dictionary.from_modules(modules, task="classification")
    with pytest.raises(ofms.InvalidInput, match=r"edge = a: .*needs devices with PyTorch .*; omit --edge"):
        export_missing(tmp_path / "graphs", dictionary, lambda line: None)
