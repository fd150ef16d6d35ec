"""Dictionaries in another dtype than float32 are refused before they are deployed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import ofms
from ofms.coordinator.coordinator import Coordinator
from ofms.coordinator.keys import make_deployment
from ofms.models.zoo import build_module

ARCHITECTURES = {f"net{index}": ("mlp", {"inputs": 2, "hidden": [4], "outputs": 1}) for index in range(4)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_another_dtype_than_float32_is_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    modules = {name: build_module(*each) for name, each in ARCHITECTURES.items()}
    modules["net2"] = modules["net2"].to(dtype)
    dictionary = ofms.Dictionary.from_modules(modules, task="regression", architectures=ARCHITECTURES)
    dictionary.write(tmp_path / "models")
    message = rf"net2: 0\.(weight|bias) = {dtype}: devices compute in float32"
    with pytest.raises(ofms.InvalidInput, match=message):
        Coordinator(dictionary, budgets=np.array([10_000]), bandwidth=10_000)
    with pytest.raises(ofms.InvalidInput, match=message):
        make_deployment(tmp_path / "fleet", "here:9092", tmp_path / "models")
    assert not (tmp_path / "fleet").exists()
    modules["net2"] = modules["net2"].float()
    ofms.Dictionary.from_modules(modules, task="regression", architectures=ARCHITECTURES).require_deployable()
