"""Pre-training learns, and does not depend on the number of workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ofms.core.errors import InvalidInput, NotFinite
from ofms.models import pretrain as pretrain_module
from ofms.models.pretrain import pretrain
from ofms.models.training import Recipe, train


def recipes(rate: float = 0.05) -> list[Recipe]:
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 2)).astype(np.float32)
    options = {"inputs": 2, "hidden": [16], "outputs": 1}
    plain = [
        Recipe(f"net{index}", "mlp", options, x, x[:, index], epochs=20, batch_size=20, rate=rate) for index in (0, 1)
    ]
    return [plain[0], replace(plain[1], initialisation="glorot-normal")]


def test_models_learn_their_own_target_whatever_the_number_of_workers() -> None:
    dictionaries = [
        pretrain(recipes(), task="regression", seed=3, workers=workers, progress=False) for workers in (1, 2)
    ]
    assert dictionaries[0].revision() == dictionaries[1].revision()
    x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    for index, model in enumerate(dictionaries[0].models):
        with torch.no_grad():
            assert float((model.module(x)[:, 0] - x[:, index]).square().mean()) < 0.02


def test_dropout_and_a_last_batch_of_one_train_alike_whatever_the_number_of_workers() -> None:
    random = np.random.default_rng(0)
    x, y = random.random((33, 1, 8, 8)).astype(np.float32), random.integers(0, 3, 33)
    options = {"image": [1, 8, 8], "blocks": [[4]], "dense": 6, "classes": 3, "batch_norm": True, "dropout": [0.3, 0.3]}
    several = [Recipe(f"net{index}", "vgg", options, x, y, epochs=3, batch_size=16) for index in range(4)]
    dictionaries = [pretrain(several, task="classification", workers=workers, progress=False) for workers in (1, 2, 4)]
    assert len({dictionary.revision() for dictionary in dictionaries}) == 1
    module = dictionaries[0].models[0].module
    with torch.no_grad():
        assert torch.equal(module(torch.zeros(2, 1, 8, 8)), module(torch.zeros(2, 1, 8, 8))), "dropout is off again"


def test_seeds_give_different_models() -> None:
    revisions = {pretrain(recipes(), task="regression", seed=seed, progress=False).revision() for seed in (0, 1)}
    assert len(revisions) == 2


def test_training_that_diverges_says_so() -> None:
    with pytest.raises(NotFinite, match=r"pre-training net0: .* lower the rate"):
        pretrain(recipes(rate=1e6), task="regression", progress=False)


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(InvalidInput, match="recipes"):
        pretrain([], task="regression")


def test_pretraining_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, keep = recipes(), tmp_path / "keep"
    with pytest.raises(NotFinite):
        pretrain([good[0], replace(good[1], rate=1e6)], task="regression", seed=3, workers=1, progress=False, keep=keep)
    assert [path.name for path in keep.iterdir()] == ["net0.safetensors"]

    trained = []

    def recorded(module: nn.Module, recipe: Recipe, *rest: Any) -> None:
        trained.append(recipe.name)
        train(module, recipe, *rest)

    monkeypatch.setattr(pretrain_module, "train", recorded)
    resumed = pretrain(good, task="regression", seed=3, workers=2, progress=False, keep=keep)
    assert trained == ["net1"], "what was done is not done again"
    assert resumed.revision() == pretrain(good, task="regression", seed=3, progress=False).revision()

    trained.clear()
    pretrain([replace(good[0], epochs=2), good[1]], task="regression", seed=3, progress=False, keep=keep)
    assert trained == ["net0"], "what is made in another way is made anew"
    (keep / "net1.safetensors").write_bytes(b"damaged")
    trained.clear()
    pretrain(good, task="regression", seed=3, progress=False, keep=keep)
    assert sorted(trained) == ["net0", "net1"]
