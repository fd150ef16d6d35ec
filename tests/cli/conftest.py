"""A dictionary for the digits experiment."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ofms.models.dictionary import Dictionary
from ofms.models.zoo import mlp


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A dictionary for digits, untrained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        modules = {f"net{index}": mlp(64, [8 + 4 * (index % 2)], 10) for index in range(6)}
    architectures = {
        name: ("mlp", {"inputs": 64, "hidden": [8 + 4 * (index % 2)], "outputs": 10})
        for index, name in enumerate(modules)
    }
    Dictionary.from_modules(modules, task="classification", architectures=architectures).write(tmp_path / "models")
    return tmp_path / "models"
