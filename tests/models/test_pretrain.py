"""Pre-training: convergence, determinism, continuation."""

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


def test_models_learn_their_target_with_any_number_of_workers() -> None:
    dictionaries = [
        pretrain(recipes(), task="regression", seed=3, workers=workers, progress=False) for workers in (1, 2)
    ]
    assert dictionaries[0].revision() == dictionaries[1].revision()
    x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    for index, model in enumerate(dictionaries[0].models):
        with torch.no_grad():
            assert float((model.module(x)[:, 0] - x[:, index]).square().mean()) < 0.02


def test_dropout_and_a_last_batch_of_one_do_not_depend_on_the_number_of_workers() -> None:
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


def test_diverging_training_is_reported() -> None:
    with pytest.raises(NotFinite, match=r"pre-training net0: .* lower the rate"):
        pretrain(recipes(rate=1e6), task="regression", progress=False)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"inputs": 2**31}, "does not accept samples of shape"),
        ({"hidden": [2**40]}, "do not fit this machine's memory"),
        ({"hidden": [2**31, 2**40]}, "do not fit this machine's memory|does not accept them"),
        ({"outputs": 2**33}, "outputs do not match the targets"),
    ],
    ids=str,
)
def test_a_network_is_not_allocated_before_it_is_known_to_fit(
    option: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(*given: Any) -> nn.Module:
        raise AssertionError(given)

    monkeypatch.setattr(pretrain_module, "build_module", allocate)
    first, second = recipes()
    with pytest.raises(InvalidInput, match=f"options = .*({reason})"):
        pretrain([first, replace(second, options={**second.options, **option})], task="regression", progress=False)


def test_an_empty_list_of_recipes_is_refused() -> None:
    with pytest.raises(InvalidInput, match="recipes"):
        pretrain([], task="regression")


def test_interrupted_pretraining_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert trained == ["net1"], "a trained network is not trained again"
    assert resumed.revision() == pretrain(good, task="regression", seed=3, progress=False).revision()

    trained.clear()
    pretrain([replace(good[0], epochs=2), good[1]], task="regression", seed=3, progress=False, keep=keep)
    assert trained == ["net0"], "a network with another recipe is trained again"
    (keep / "net1.safetensors").write_bytes(b"damaged")
    trained.clear()
    pretrain(good, task="regression", seed=3, progress=False, keep=keep)
    assert sorted(trained) == ["net0", "net1"]
