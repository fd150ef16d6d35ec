"""The folder of a dictionary: written, read, and refused if it is faulty."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from ofms.core.errors import InvalidInput
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import mlp
from ofms.plugins import Trust

OPTIONS = {"inputs": 2, "hidden": [3], "outputs": 1}


def small() -> Dictionary:
    modules = {name: mlp(2, [3], 1) for name in ("a", "b", "c")}
    return Dictionary.from_modules(modules, task="regression", architectures=dict.fromkeys(modules, ("mlp", OPTIONS)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small().write(tmp_path / "models")
    return tmp_path / "models"


def edit(folder: Path, **changes: Any) -> None:
    """Change keys of the index, or of its first model."""
    index = json.loads((folder / "dictionary.json").read_text())
    for key, value in changes.items():
        (index if key in index else index["models"][0])[key] = value
    (folder / "dictionary.json").write_text(json.dumps(index))


def test_a_dictionary_is_read_as_it_was_written(tmp_path: Path) -> None:
    dictionary = small()
    dictionary.write(tmp_path / "models")
    again = Dictionary.read(tmp_path / "models")
    assert again.catalogue().names == ("a", "b", "c")
    assert again.revision() == dictionary.revision()
    assert sorted(os.listdir(tmp_path)) == ["models"], "nothing else is left behind"


def test_batch_norm_counts_are_not_stored_and_statistics_are(tmp_path: Path) -> None:
    modules: dict[str, nn.Module] = {name: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for name in "ab"}
    dictionary = Dictionary.from_modules(modules, task="regression")
    assert set(dictionary.models[0].tensors) == {
        *("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var")
    }
    assert dictionary.models[0].storage == 4 * (4 + 2 + 2 + 2 + 2 + 2)


def test_costs_and_trainable_parameters_can_be_declared(folder: Path) -> None:
    edit(folder, storage=1000, trainable=["2.*"])
    first = Dictionary.read(folder).models[0]
    assert (first.storage, first.upload, first.trainable) == (1000, 16, ("2.weight", "2.bias"))
    again = folder.parent / "again"
    Dictionary.read(folder).write(again)
    assert Dictionary.read(again).models[0].upload == 16


def test_own_networks_without_an_architecture_cannot_be_written(tmp_path: Path) -> None:
    dictionary = Dictionary.from_modules({name: nn.Linear(1, 1) for name in "ab"}, task="regression")
    with pytest.raises(InvalidInput, match="models = a: to write it, say how it is built"):
        dictionary.write(tmp_path / "models")
    assert not list(tmp_path.iterdir())


def test_a_description_that_builds_another_network_is_refused() -> None:
    """What is written could not be read."""
    described = {name: ("mlp", {"inputs": 3, "hidden": [], "outputs": 1}) for name in "ab"}
    reason = r"architectures = a: mlp: it builds a network whose 0.bias is \[1\], the given one's is missing; describe"
    with pytest.raises(InvalidInput, match=reason):
        Dictionary.from_modules({name: nn.Linear(3, 1) for name in "ab"}, task="regression", architectures=described)


def test_a_folder_that_is_not_empty_is_not_overwritten(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="it already exists"):
        small().write(folder)


def broken_missing(folder: Path) -> None:
    (folder / "a.safetensors").unlink()


def broken_truncated(folder: Path) -> None:
    content = (folder / "a.safetensors").read_bytes()
    (folder / "a.safetensors").write_bytes(content[:-8])


def broken_shape(folder: Path) -> None:
    tensors = safetensors.torch.load_file(folder / "a.safetensors")
    tensors["0.weight"] = torch.zeros(4, 2)
    safetensors.torch.save_file(tensors, folder / "a.safetensors")


def broken_not_finite(folder: Path) -> None:
    tensors = safetensors.torch.load_file(folder / "a.safetensors")
    tensors["0.weight"][0, 0] = np.nan
    safetensors.torch.save_file(tensors, folder / "a.safetensors")


def broken_extra_tensor(folder: Path) -> None:
    tensors = safetensors.torch.load_file(folder / "a.safetensors")
    safetensors.torch.save_file(tensors | {"9.weight": torch.zeros(1)}, folder / "a.safetensors")


def broken_json(folder: Path) -> None:
    (folder / "dictionary.json").write_text("{")


def broken_field(folder: Path) -> None:
    edit(folder, options=3)


def broken_key(folder: Path) -> None:
    edit(folder, colour="blue")


def broken_format(folder: Path) -> None:
    edit(folder, format="ofms-dictionary/9")


def broken_path(folder: Path) -> None:
    edit(folder, file="../models/a.safetensors")


def broken_name(folder: Path) -> None:
    edit(folder, name="b")


def broken_pattern(folder: Path) -> None:
    edit(folder, trainable=["7.*"])


def broken_cost(folder: Path) -> None:
    edit(folder, storage=0)


def broken_single(folder: Path) -> None:
    index = json.loads((folder / "dictionary.json").read_text())
    edit(folder, models=index["models"][:1])


def broken_task(folder: Path) -> None:
    edit(folder, task="both")


BROKEN = {
    broken_missing: "a.safetensors: model 'a' has no such file",
    broken_truncated: "not a complete safetensors file",
    broken_shape: r"0.weight = \[4, 2\]: architecture 'mlp' expects \[3, 2\]",
    broken_not_finite: "a: 0.weight = not finite",
    broken_extra_tensor: "9.weight",
    broken_json: "fix the file",
    broken_task: "task = both: use classification or regression",
    broken_field: "options",
    broken_key: "colour",
    broken_format: "format = ofms-dictionary/9",
    broken_path: "name a file in the same folder",
    broken_name: "name = b: .* two models have this name",
    broken_pattern: "no parameter matches",
    broken_cost: "a: storage = 0",
    broken_single: "models = 1",
}


@pytest.mark.parametrize("breaking", BROKEN, ids=lambda breaking: breaking.__name__)
def test_a_broken_dictionary_is_refused_in_one_line(folder: Path, breaking: Any) -> None:
    breaking(folder)
    with pytest.raises(InvalidInput, match=BROKEN[breaking]) as refusal:
        Dictionary.read(folder)
    assert "\n" not in str(refusal.value)


def test_a_folder_without_a_dictionary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="it has no readable dictionary"):
        Dictionary.read(tmp_path)


def test_factories_of_untrusted_packages_are_never_imported(
    folder: Path, write_module: Callable[[str, str], Trust]
) -> None:
    """A dictionary may name any function; only the zoo and trusted packages are used."""
    touched = folder.parent / "touched"
    edit(folder, architecture="os:system", options={"command": f"touch {touched}"})
    with pytest.raises(InvalidInput, match=r"architecture = os:system: .*--trust os"):
        Dictionary.read(folder)
    trust = write_module(
        "side_effects",
        f"open({str(touched)!r}, 'w').close()\n"
        "from torch import nn\n"
        "def net():\n    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))\n",
    )
    edit(folder, architecture="side_effects:net", options={})
    with pytest.raises(InvalidInput, match=r"architecture = side_effects:net: .*--trust side_effects") as refusal:
        Dictionary.read(folder, trust=["os"])
    assert "\n" not in str(refusal.value)
    assert "side_effects" not in sys.modules
    assert not touched.exists()
    assert len(Dictionary.read(folder, trust=trust)) == 3
    assert touched.exists()
