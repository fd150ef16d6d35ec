"""Configuration: default < preset < experiment < what the caller sets."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from ofms.core.errors import InvalidInput
from ofms.policies import MODULES
from ofms.runs.config import Experiment, RunConfig, available, load_experiment, load_preset, resolve


def experiment(**changes: object) -> Experiment:
    fields = {"summary": "", "dataset": "digits", "clients": 3, "rounds": 9, "budget": "5", "bandwidth": "50%"}
    return msgspec.convert(fields | changes, Experiment)


def test_layers_win_in_their_order() -> None:
    plain = resolve(experiment(), "x", task="regression")
    assert plain.settings["window"] == 51, "the preset's, for the task"
    assert plain.settings["importance_cap"] == 20
    own = experiment(settings={"window": 7})
    assert resolve(own, "x", task="regression").settings["window"] == 7
    assert resolve(own, "x", task="regression", given={"window": 3}).settings["window"] == 3
    assert (
        resolve(own, "x", task="regression", given={"importance_cap": "none"}).policy_settings().importance_cap is None
    )
    assert resolve(own, "x", task="regression", given={"importance_cap": None}).policy_settings().importance_cap is None
    theory = resolve(experiment(), "x", task="classification", given={"preset": "theory"})
    assert theory.policy_settings().loss_bound == "saturate"
    assert theory.policy_settings().learning_rate == "tuned"


def test_a_preset_reaches_each_policy_as_far_as_it_has_the_setting() -> None:
    settings = resolve(experiment(), "x", task="regression", policy="mab").settings
    assert settings == {"learning_rate": "10/sqrt(T)", "loss_bound": "raw", "exploration": 0.0}


@pytest.mark.parametrize("policy", MODULES)
@pytest.mark.parametrize("preset", ["theory", "published"])
def test_every_preset_fits_every_policy(policy: str, preset: str) -> None:
    for name in available("experiments"):
        for task in ("regression", "classification"):
            resolve(load_experiment(name), name, task=task, policy=policy, given={"preset": preset})
    assert load_preset(preset).summary


def test_a_resolved_configuration_repeats_itself() -> None:
    config = resolve(experiment(), "x", task="regression", given={"seed": 4, "learning_rate": 0.25})
    again = msgspec.convert(tomllib.loads(config.to_toml()), RunConfig)
    assert again == config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"colour": 1}, "set = colour: policy ofms-ft has no such setting; there are .*window"),
        ({"window": "wide"}, "window = wide: expected 'int', got 'str'"),
        ({"rounds": 0}, "rounds = 0: give at least 1"),
        ({"clients": 0}, "clients = 0: give at least 1"),
        ({"interval": -1}, "interval = -1"),
        ({"seed": -1}, "seed = -1"),
        ({"preset": "fancy"}, "preset = fancy: use one of published, theory"),
        ({"dtype": "float16"}, "dtype = float16"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        resolve(experiment(), "x", task="regression", given=given)


def test_experiments_of_ones_own_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('summary = "mine"\ndataset = "digits"\nclients = 2\nrounds = 3\nbudget = "5"\nbandwidth = "50%"\n')
    assert load_experiment(str(path)).clients == 2
    path.write_text("summary = ")
    with pytest.raises(InvalidInput, match="not valid TOML"):
        load_experiment(str(path))
    path.write_text('summary = "mine"\n')
    with pytest.raises(InvalidInput, match="missing required field"):
        load_experiment(str(path))
    with pytest.raises(InvalidInput, match="experiment"):
        load_experiment(str(tmp_path / "nothing.toml"))
    with pytest.raises(InvalidInput, match="experiment = nothing: use one of air, cifar10, digits"):
        load_experiment("nothing")
