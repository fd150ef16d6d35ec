"""`ofms check --edge` and `ofms deploy keys --edge`: dictionaries for devices without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ofms.models.dictionary import Dictionary
from ofms.models.zoo import build_module, mlp
from ofms.plugins import Trust
from tests.cli.commands import assert_refused, printed_record, run
from tests.edge_fleets import dictionary_of

OWN = """
from torch import nn

def convolution(width):
    return nn.Sequential(nn.Conv1d(1, width, 3), nn.Flatten(), nn.Linear(62 * width, 10))
"""


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One network of the zoo, and one whose input is not known."""
    (tmp_path / "edge_networks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    named: tuple[str, dict[str, Any]] = ("edge_networks:convolution", {"width": 2})
    modules = {"mlp": mlp(64, [4], 10), "own": build_module(*named, Trust(("edge_networks",)))}
    architectures: dict[str, tuple[str, dict[str, Any]]] = {
        "mlp": ("mlp", {"inputs": 64, "hidden": [4], "outputs": 10}),
        "own": named,
    }
    Dictionary.from_modules(modules, task="classification", architectures=architectures).write(tmp_path / "own")
    return tmp_path / "own"


def test_check_names_what_needs_pytorch(own_models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", own_models, "--trust", "edge_networks", "--edge", "--json") == 0
    *lines, _ = output = capsys.readouterr().out.splitlines()
    assert lines[-3:-1] == ["deployable: yes", "on devices without PyTorch: no"]
    assert lines[-1].startswith("  own (edge_networks:convolution): the shape of its input is not known")
    assert '"needing_torch":[{"name":"own"' in output[-1].replace(" ", "")


def test_a_deployment_of_such_a_dictionary_is_refused(
    own_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[str | Path] = ["--server", "here:1", "--models", own_models, "--trust", "edge_networks"]
    status = run("deploy", "keys", tmp_path / "fleet", *given, "--edge", "--device", "a=5")
    assert_refused(capsys, status, "edge = own: edge_networks:convolution needs devices with PyTorch")
    assert not (tmp_path / "fleet").exists()


def test_keys_export_the_networks_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models, fleet = tmp_path / "models", tmp_path / "fleet"
    dictionary_of("values").write(models)
    assert run("deploy", "keys", fleet, "--server", "here:1", "--models", models, "--device", "a=3") == 0
    assert not (fleet / "graphs").exists(), "only if it is asked for"
    capsys.readouterr()
    assert run("deploy", "keys", fleet, "--edge") == 0
    assert capsys.readouterr().out.splitlines() == ["exporting the network of net0"]
    assert len(list((fleet / "graphs").glob("*.onnx"))) == 2
    assert run("deploy", "keys", fleet, "--edge", "--device", "b=3") == 0
    assert "exporting" not in capsys.readouterr().out
    assert run("check", models, "--json") == 0
    assert "needing_torch" not in printed_record(capsys)
