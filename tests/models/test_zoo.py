"""Architectures of the zoo, and factories of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ofms.core.errors import InvalidInput
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import build_module
from ofms.plugins import Trust

CIFAR = {"image": [3, 32, 32], "dense": 128, "classes": 10, "batch_norm": True}
PAPER: dict[str, tuple[dict[str, Any], int]] = {
    "MNIST, one block": ({"image": [1, 28, 28], "blocks": [[32, 32]], "dense": 50, "classes": 10}, 240_528),
    "MNIST, two blocks": ({"image": [1, 28, 28], "blocks": [[32], [64, 64]], "dense": 100, "classes": 10}, 159_254),
    "CIFAR-10, two blocks": (CIFAR | {"blocks": [[32, 32], [64, 64]], "dropout": [0.2, 0.3, 0.4]}, 273_066),
    "CIFAR-10, three blocks": (
        CIFAR
        | {
            "blocks": [[32, 32], [64, 64], [128, 128]],
            "pool": [True, True, False],
            "dropout": [0.2, 0.3, 0.4, 0.4],
        },
        307_114,
    ),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_networks_have_the_published_number_of_values(name: str) -> None:
    options, values = PAPER[name]
    modules = {each: build_module("vgg", options) for each in ("one", "two")}
    dictionary = Dictionary.from_modules(modules, task="classification")
    assert dictionary.models[0].values == values
    assert dictionary.models[0].storage == 4 * values
    with torch.no_grad():
        assert modules["one"](torch.zeros(2, *options["image"])).shape == (2, 10)


def test_parameters_are_named_by_position() -> None:
    names = list(build_module("mlp", {"inputs": 2, "hidden": [3], "outputs": 1}).state_dict())
    assert names == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize(
    ("architecture", "options", "message"),
    [
        ("resnet", {}, "architecture = resnet: use mlp or vgg, or package.module:name for your own"),
        ("no.such.module:make", {}, "architecture = no.such.module:make"),
        ("ofms.models.zoo:nothing", {}, "architecture = ofms.models.zoo:nothing"),
        ("collections:OrderedDict", {}, "must return a torch.nn.Module"),
        ("mlp", {"inputs": 2}, "options = .* does not accept them"),
        ("vgg", {"image": [1, 4, 4], "blocks": [[4, 4]], "dense": 2, "classes": 2}, "too small"),
        ("vgg", {"image": [1, 9, 9], "blocks": [[4]], "dense": 2, "classes": 2, "pool": []}, "pool"),
        ("vgg", {"image": [1, 9, 9], "blocks": [[4]], "dense": 2, "classes": 2, "dropout": [0.1]}, "dropout"),
    ],
)
def test_an_architecture_that_cannot_be_built_is_refused(
    architecture: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        build_module(architecture, options, Trust(("no", "ofms", "collections")))


def test_an_own_factory_is_called() -> None:
    options = {"in_features": 2, "out_features": 1}
    assert isinstance(build_module("torch.nn:Linear", options, Trust(("torch",))), torch.nn.Linear)


def test_a_factory_outside_the_zoo_needs_trust(tmp_path: Path) -> None:
    remedy = r"architecture = os:system: it would run code from os, which is not trusted; .* add --trust os"
    with pytest.raises(InvalidInput, match=remedy):
        build_module("os:system", {"command": f"touch {tmp_path / 'touched'}"})
    assert not list(tmp_path.iterdir())
