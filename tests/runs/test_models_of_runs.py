"""The models of a run: in its result, in its folder, at its checkpoint, and as plain PyTorch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import ofms
from ofms.models.zoo import build_module, mlp
from ofms.runs.exporting import export_models
from ofms.runs.interrupt import RunInterrupted
from tests.problems import image_problem, regression_problem
from tests.stopping import stop_after

PAGE = Path(__file__).parents[2] / "docs" / "your-own.md"
TUNED: dict[str, Any] = {"policy": "ofms-ft", "budget": "3", "bandwidth": "60%", "learning_rate": 0.5, "seed": 3}
TUNED |= {"fine_tuning_rate": 0.05, "warm_up": 0}


def stored_problem(folder: Path) -> tuple[Path, ofms.Stream]:
    """A dictionary's folder and a stream for it."""
    options = [{"inputs": 3, "hidden": [width], "outputs": 1} for width in (4, 6, 8, 5)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        modules = {f"net{number}": build_module("mlp", each) for number, each in enumerate(options)}
    architectures = {f"net{number}": ("mlp", each) for number, each in enumerate(options)}
    ofms.Dictionary.from_modules(modules, task="regression", architectures=architectures).write(folder)
    return folder, regression_problem(rounds=12)[1]


def assert_equal(one: ofms.Dictionary, other: ofms.Dictionary) -> None:
    assert [model.name for model in one.models] == [model.name for model in other.models]
    for model, its in zip(one.models, other.models, strict=True):
        assert model.tensors.keys() == its.tensors.keys()
        for name, tensor in model.tensors.items():
            assert torch.equal(tensor, its.tensors[name]), f"{model.name}: {name}"
            assert tensor.dtype == its.tensors[name].dtype


@pytest.mark.parametrize("loopback", [False, True])
def test_a_result_has_the_fine_tuned_models_and_its_folder_too(loopback: bool, tmp_path: Path) -> None:
    folder, stream = stored_problem(tmp_path / "models")
    result = ofms.simulate(
        models=folder, stream=stream, out=tmp_path / "run", save_models=True, loopback=loopback, **TUNED
    )
    first = ofms.Dictionary.read(folder)
    assert result.models.revision() != first.revision(), "fine-tuned"
    assert_equal(ofms.load(tmp_path / "run").models, result.models)
    assert_equal(ofms.Dictionary.read(tmp_path / "run" / "models"), result.models)
    assert (tmp_path / "run" / "report.html").read_text().startswith("<!DOCTYPE html>")
    again = ofms.simulate(models=tmp_path / "run" / "models", stream=stream, **(TUNED | {"fine_tuning_rate": 0}))
    assert_equal(again.models, result.models)
    expected = ofms.simulate(models=result.models, stream=stream, **(TUNED | {"fine_tuning_rate": 0}))
    np.testing.assert_array_equal(again.score, expected.score)


def test_networks_of_a_result_have_its_parameters(tmp_path: Path) -> None:
    """Also with batch norm, whose count of batches is not stored, and in float64."""
    dictionary, stream = image_problem()
    result = ofms.simulate(models=dictionary, stream=stream, dtype="float64", **TUNED)
    for model, (name, network) in zip(result.models.models, result.models.modules().items(), strict=True):
        assert model.name == name
        assert not network.training
        for key, tensor in network.state_dict().items():
            assert key.endswith("num_batches_tracked") or torch.equal(tensor, model.tensors[key])
            assert tensor.dtype == dictionary.models[0].module.state_dict().get(key, tensor).dtype
    with pytest.raises(ofms.InvalidInput, match=r"models = net0: to write it, say how it is built: from_mod"):
        ofms.simulate(models=dictionary, stream=stream, out=tmp_path / "run", save_models=True, **TUNED)
    assert not (tmp_path / "run").exists(), "nothing half-written"
    with pytest.raises(ofms.InvalidInput, match="it needs a run that is written"):
        ofms.simulate(models=dictionary, stream=stream, save_models=True, **TUNED)


def test_a_result_is_saved_with_its_page_and_models(tmp_path: Path) -> None:
    folder, stream = stored_problem(tmp_path / "models")
    result = ofms.simulate(models=folder, stream=stream, **TUNED)
    result.save(tmp_path / "plain")
    assert (tmp_path / "plain" / "report.html").exists()
    with pytest.raises(ofms.InvalidInput, match="did not save its models; run it again with --save-models"):
        _ = ofms.load(tmp_path / "plain").models
    result.save(tmp_path / "whole", models=True)
    assert_equal(ofms.load(tmp_path / "whole").models, result.models)


def test_models_are_exported_at_a_checkpoint_and_at_the_end(tmp_path: Path) -> None:
    folder, stream = stored_problem(tmp_path / "models")
    arguments: dict[str, Any] = {"models": folder, "stream": stream, **TUNED}
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 8)
        with pytest.raises(RunInterrupted):
            ofms.simulate(out=tmp_path / "run", save_models=True, **arguments)
    assert export_models(tmp_path / "run", tmp_path / "middle") == 8
    shorter = ofms.simulate(**(arguments | {"rounds": 8}))
    assert_equal(ofms.Dictionary.read(tmp_path / "middle"), shorter.models)
    with pytest.raises(ofms.InvalidInput, match="already exists; name a new"):
        export_models(tmp_path / "run", tmp_path / "middle")

    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 2)
        objects = arguments | {"models": ofms.Dictionary.read(folder)}
        with pytest.raises(RunInterrupted):
            ofms.simulate(out=tmp_path / "objects", **objects)
    with pytest.raises(ofms.InvalidInput, match="the models with which it began are not there; restore them"):
        export_models(tmp_path / "objects", tmp_path / "none")
    assert not (tmp_path / "none").exists()

    whole = ofms.simulate(resume=tmp_path / "run", models=folder, stream=stream)
    assert export_models(tmp_path / "run", tmp_path / "end") == 12, "a resumed run still saves its models"
    assert_equal(ofms.Dictionary.read(tmp_path / "end"), whole.models)
    assert (tmp_path / "run" / "report.html").exists()


def test_the_two_lines_of_the_documentation_load_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, stream = stored_problem(tmp_path / "models")
    settings = TUNED | {"save_models": True, "report": False}
    result = ofms.simulate(models=folder, stream=stream, out=tmp_path / "run", **settings)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\nimport safetensors.torch\n[^`]*\n\n(network = [^`]*)```", PAGE.read_text())
    assert len([line for line in code.splitlines() if line]) == 2
    names: dict[str, Any] = {"mlp": mlp, "safetensors": safetensors}
    # The page has a network of the digits; this run has smaller ones.
    for given, own in (
        ("mlp(inputs=64, hidden=[32], outputs=10)", "mlp(inputs=3, hidden=[4], outputs=1)"),
        ("tuned/models/digits-class0-mlp1", "run/models/net0"),
    ):
        assert given in code
        code = code.replace(given, own)
    exec(code, names)
    for key, tensor in names["network"].state_dict().items():
        assert torch.equal(tensor, result.models.models[0].tensors[key])


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_damaged_models_are_not_exported(damage: str, tmp_path: Path) -> None:
    folder, stream = stored_problem(tmp_path / "models")
    ofms.simulate(models=folder, stream=stream, out=tmp_path / "run", save_models=True, **TUNED)
    path = tmp_path / "run/models/net1.safetensors"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-4])
    else:
        path.unlink()
    with pytest.raises(ofms.InvalidInput, match=r"net1\.safetensors: .*; copy or train it again"):
        export_models(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()
