"""Configuration: defaults < preset < experiment < the caller's values; the file of a run repeats it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ofms.core.errors import InvalidInput
from ofms.plugins import Trust
from ofms.policies import DEFAULT
from ofms.runs.config import Experiment, RunConfig, available, load_experiment, load_preset, load_run
from ofms.runs.resolution import change, resolve

OWN_POLICY = """
from dataclasses import dataclass
from ofms.policies.protocol import Algorithm

@dataclass(frozen=True)
class Settings:
    warm_up: int = 7
    epsilon: float = 0.1

algorithm = Algorithm(Settings, object, lambda settings, fleet: None)
"""
HEAD = 'summary = "mine"\ndataset = "digits"\nclients = 2\nrounds = 3\nbudget = "5"\nbandwidth = "50%"\n'


def experiment(**changes: object) -> Experiment:
    fields = {"summary": "", "dataset": "digits", "clients": 3, "rounds": 9, "budget": "5", "bandwidth": "50%"}
    return msgspec.convert(fields | changes, Experiment)


def experiment_file(folder: Path, text: str = "") -> str:
    path = folder / "mine.toml"
    path.write_text(HEAD + text)
    return str(path)


def test_later_layers_override_earlier_ones() -> None:
    plain = resolve(experiment(), "x", task="regression", policy="ofms-ft")
    assert plain.settings["window"] == 51, "from the preset, for the task"
    assert plain.settings["importance_cap"] == 20
    own = experiment(policies={"ofms-ft": {"window": 7}, "rms-ft": {"window": 8}})
    assert resolve(own, "x", task="regression", policy="ofms-ft").settings["window"] == 7
    assert resolve(own, "x", task="regression", policy="rms-ft").settings["window"] == 8
    assert resolve(own, "x", task="regression", policy="fed-omd").settings["window"] == 51
    given: dict[str, object] = {"window": 3}
    assert resolve(own, "x", task="regression", policy="ofms-ft", given=given).settings["window"] == 3
    for nothing in ("none", None):
        given = {"importance_cap": nothing, "window": None}
        changed = resolve(own, "x", task="regression", policy="ofms-ft", given=given)
        assert changed.policy_settings().importance_cap is None
        assert changed.settings["window"] == 7, "None counts as not given"
    theory = resolve(experiment(), "x", task="classification", policy="ofms-ft", given={"preset": "theory"})
    assert theory.policy_settings().loss_bound == "saturate"
    assert theory.policy_settings().learning_rate == "tuned"


# SHA-256 of the configurations of all experiments, presets and tasks: published figures are made with them.
RESOLVED = {
    "b-fed-omft": "7e7a38792c0b",
    "budgeted-experts": "d4f920c9599d",
    "fed-omd": "ed17bd2cfc8b",
    "mab": "01e9088ff0a0",
    "non-fed-oms": "0556bfed9913",
    "ofms-ft": "bdee80f0583b",
    "perfedavg": "c2ad929d65e4",
    "rms-ft": "22ad087697af",
}


@pytest.mark.parametrize("policy", RESOLVED)
def test_built_in_experiments_resolve_as_in_the_published_figures(policy: str) -> None:
    configs = {}
    for name in available("experiments"):
        for preset in available("presets"):
            for task in ("classification", "regression"):
                given = {"preset": preset, "history": 0, "seed": 3}
                config = resolve(load_experiment(name), name, task=task, policy=policy, given=given)
                configs[f"{name} {preset} {task}"] = config.identity()
    content = msgspec.json.encode(configs, order="deterministic")
    assert hashlib.sha256(content).hexdigest()[:12] == RESOLVED[policy], configs
    assert all(load_preset(preset).summary for preset in available("presets"))


@pytest.mark.parametrize("policy", ["ofms-ft", "b-fed-omft"])
def test_an_added_setting_identifies_a_run_only_if_it_is_not_at_its_default(policy: str) -> None:
    """Figures that were published before the setting existed are found again."""
    plain = resolve(experiment(), "x", task="regression", policy=policy)
    assert "gradient_weight" in plain.settings
    assert "gradient_weight" not in plain.identity()["settings"]
    assert plain.identity()["settings"]["window"] == 51
    by_use = resolve(experiment(), "x", task="regression", policy=policy, given={"gradient_weight": "use"})
    assert by_use.identity()["settings"]["gradient_weight"] == "use"


def test_presets_do_not_apply_to_an_own_policy(write_module: Callable[[str, str], Trust]) -> None:
    trust = write_module("own_policy", OWN_POLICY)
    config = resolve(experiment(), "x", task="regression", policy="own_policy:algorithm", trust=trust)
    assert config.settings == {"warm_up": 7, "epsilon": 0.1}
    own = experiment(policies={"own_policy:algorithm": {"epsilon": 0.5}})
    config = resolve(own, "x", task="regression", policy="own_policy:algorithm", trust=trust)
    assert config.settings == {"warm_up": 7, "epsilon": 0.5}
    own = experiment(policies={"own_policy:algorithm": {"epsilom": 0.5}})
    with pytest.raises(
        InvalidInput,
        match=r"epsilom: policy own_policy:algorithm has .* did you mean 'epsilon'\? use epsilon or warm_up",
    ):
        resolve(own, "x", task="regression", policy="own_policy:algorithm", trust=trust)


def test_tables_of_other_policies_are_checked_without_importing_them(
    tmp_path: Path, write_module: Callable[[str, str], Trust]
) -> None:
    write_module("own_policy", OWN_POLICY)
    name = experiment_file(tmp_path, '[policies."own_policy:algorithm"]\nno_such_setting = 1\n')
    assert resolve(load_experiment(name), name, task="classification").policy == DEFAULT
    assert "own_policy" not in sys.modules


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[settings]\nwindow = 7\n", r"settings = .*mine\.toml: .* such as \[policies\.ofms-ft\]"),
        (
            "[policies.mab]\nwindow = 7\n",
            r"policies\.mab = window: .* use one of exploration, learning_rate, loss_bound",
        ),
        (
            "[policies.ofms]\nwindow = 7\n",
            r"policies = ofms: did you mean 'ofms-ft'\? use one of late-hedge, ofms-ft, .*, or your own as package",
        ),
        ("[policies.pkg.mod]\nwindow = 7\n", r"policies = pkg: use one of"),
        ("[trust]\npackage = ['a']\n", r"trust\.package = .*unknown key 'package'; did you mean 'packages'"),
        ("[trust]\npackages = ['./a']\n", r"trust = \./a: name a package"),
        ("colour = 1\n", r"unknown key 'colour'; use one of summary"),
        ("seed = 'a'\n", r"seed = a: give a whole number from 0 to 2⁶³ - 1, not text"),
        ("interval = 1.5\n", r"interval = 1\.5: give a whole number of at least 1, not a decimal number"),
        ("[trust]\npackages = 'a'\n", r"trust\.packages = a: give a list, each text, not text"),
        ("[[events]]\nexchange = 'a'\n", r"events\[0\]\.exchange = a: give a whole number, not text"),
    ],
)
def test_an_invalid_experiment_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    name = experiment_file(tmp_path, text)
    with pytest.raises(InvalidInput, match=message) as refusal:
        resolve(load_experiment(name), name, task="classification")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("budget", "written"), [("2", "2"), ("2.5", "2.5"), ("[2, '3MiB']", "2,3MiB"), ("{ '*' = 3 }", "*=3")]
)
def test_budgets_and_bandwidths_of_a_file_may_be_numbers(tmp_path: Path, budget: str, written: str) -> None:
    name = experiment_file(tmp_path)
    text = Path(name).read_text().replace('"5"', budget).replace('"50%"', "4")
    Path(name).write_text(text)
    config = resolve(load_experiment(name), name, task="classification")
    assert (config.budget, config.bandwidth) == (written, "4")


def test_an_unknown_experiment_says_that_it_may_be_a_file() -> None:
    with pytest.raises(InvalidInput, match=r"did you mean 'digits'\? use one of .*, or a TOML file: your own, or conf"):
        load_experiment("digit")


@pytest.mark.parametrize(
    ("policy", "given", "message"),
    [
        ("ofms-ft", {"colour": 1}, "set = colour: policy ofms-ft has no such setting; use one of .*window"),
        ("ofms-ft", {"window": "wide"}, "window = wide: give a whole number of at least 1, not text"),
        ("ofms-ft", {"rounds": 0}, "rounds = 0: give a number of at least 1"),
        ("ofms-ft", {"clients": 0}, "clients = 0: give a number of at least 1"),
        ("ofms-ft", {"interval": -1}, "interval = -1"),
        ("ofms-ft", {"seed": -1}, "seed = -1"),
        ("ofms-ft", {"preset": "fancy"}, "preset = fancy: use published or theory"),
        ("ofms-ft", {"dtype": "float16"}, r"dtype = float16: did you mean 'float64'\? use float32 or float64"),
        ("ofms-ft", {"loss_bound": "soft"}, "loss_bound = soft: use one of clip, saturate, raw"),
        ("ofms-ft", {"server_step": "M"}, "server_step = M: use N, or a number"),
        ("mab", {"loss_bound": "soft"}, "loss_bound = soft: use one of clip, saturate, raw"),
        ("non-fed-oms", {"feedback": "two"}, "feedback = two: use one or all"),
        ("b-fed-omft", {"subset": "last"}, "subset = last: use random or first, or a list"),
        ("rms-ft", {"gradient_weight": "two"}, "gradient_weight = two: use one of inverse, one"),
        ("budgeted-experts", {"prediction": "all"}, "prediction = all: use one or mean"),
        (
            "ofms",
            {},
            r"policy = ofms: did you mean 'ofms-ft'\? use one of late-hedge, ofms-ft, mab, .*, or your own as package",
        ),
        ("examples.epsilon_greedy", {}, "policy = examples.epsilon_greedy: .* or your own as package.module:name"),
        ("json:dumps", {}, "policy = json:dumps: it is a function; name an Algorithm"),
    ],
)
def test_an_invalid_value_is_refused(policy: str, given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refusal:
        resolve(experiment(), "x", task="regression", policy=policy, given=given)
    assert "\n" not in str(refusal.value)


def test_a_wrong_choice_in_a_file_is_named_with_the_possible_ones(tmp_path: Path) -> None:
    name = experiment_file(tmp_path, '[stream]\nfile = "x.csv"\ntask = "both"\n')
    with pytest.raises(InvalidInput, match=r"stream\.task = both: use classification or regression"):
        load_experiment(name)
    table = "[pretraining]\nepochs = 1\nbatch_size = 1\n"
    network = '{ name = "a", architecture = "mlp", options = {}, optimizer = "newton" }'
    loaded = load_experiment(experiment_file(tmp_path, f"{table}networks = [{network}]\n"))
    assert loaded.pretraining is not None
    with pytest.raises(InvalidInput, match="optimizer = newton: use sgd or adam"):
        loaded.pretraining.kinds()


def test_an_own_experiment_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    assert load_experiment(experiment_file(tmp_path)).clients == 2
    path.write_text("summary = ")
    with pytest.raises(InvalidInput, match="not valid TOML"):
        load_experiment(str(path))
    path.write_text('summary = "mine"\n')
    with pytest.raises(InvalidInput, match="budget = …: it is missing; give it a value"):
        load_experiment(str(path))
    with pytest.raises(InvalidInput, match="experiment"):
        load_experiment(str(tmp_path / "nothing.toml"))
    with pytest.raises(InvalidInput, match="experiment = nothing: use one of air, cifar10, digits"):
        load_experiment("nothing")


def written(config: RunConfig, folder: Path) -> str:
    path = folder / "config.toml"
    path.write_text(config.to_toml())
    return str(path)


def test_a_written_configuration_is_read_back(tmp_path: Path) -> None:
    given = {"seed": 4, "learning_rate": 0.25}
    config = resolve(experiment(), "x", task="regression", policy="ofms-ft", given=given)
    again = load_run(written(config, tmp_path))
    assert again == config
    assert change(again, {}) == config
    assert change(again, {"seed": 5, "clients": None}).clients == config.clients


def test_paths_in_a_runs_configuration_are_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_module: Callable[[str, str], Trust]
) -> None:
    trust = write_module("own_policy", OWN_POLICY)
    (tmp_path / "there").mkdir()
    head = HEAD.replace('dataset = "digits"\n', 'models = "nets"\n')
    (tmp_path / "there" / "mine.toml").write_text(
        f'{head}[stream]\nfile = "a.csv"\ntask = "regression"\n[trust]\npackages = ["nets"]\n'
    )
    monkeypatch.chdir(tmp_path)
    name = os.path.join("there", "mine.toml")
    config = resolve(load_experiment(name), name, task="regression", policy="own_policy:algorithm", trust=trust)
    assert config.stream is not None
    assert config.trust is not None
    there = str(tmp_path / "there")
    assert [config.experiment, config.models, config.stream.file] == [
        os.path.join(there, part) for part in ("mine.toml", "nets", "a.csv")
    ]
    assert config.trust.packages == ("nets", "own_policy")
    assert config.trust.folders == (there, *trust.folders)
    path = written(config, tmp_path)
    monkeypatch.chdir(tmp_path / "there")
    again = load_run(path)
    assert again is not None
    assert change(again, {}) == config
    assert change(again, {"models": "others"}).models == os.path.join(there, "others")


FIRST_FORMAT = """
experiment = "digits"
dataset = "digits"
policy = "ofms-ft"
preset = "theory"
seed = 0
clients = 50
rounds = 400
interval = 3
budget = "3:60%,5:40%"
bandwidth = "50%"
dtype = "float32"
hindsight = true
history = 10

[settings]
learning_rate = "tuned"
fine_tuning_rate = "tuned"
server_step = 1.0
loss_bound = "saturate"
window = 1
warm_up = 0
"""


def test_the_format_of_a_run_has_a_version(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(FIRST_FORMAT)
    first = load_run(str(path))
    assert first is not None
    given = {"preset": "theory", "interval": 3, "budget": "3:60%,5:40%"}
    digits = load_experiment("digits")
    assert change(first, {}) == resolve(digits, "digits", task="classification", policy="ofms-ft", given=given)
    assert first.to_toml().startswith('format = "ofms-run/2"\n')
    path.write_text(f'format = "ofms-run/3"\n{FIRST_FORMAT}')
    with pytest.raises(InvalidInput, match=r"format = ofms-run/3: .*config\.toml: this version reads up to ofms-run/2"):
        load_run(str(path))


def test_a_policy_that_a_file_names_needs_trust(tmp_path: Path, write_module: Callable[[str, str], Trust]) -> None:
    trust = write_module("own_policy", OWN_POLICY)
    path = tmp_path / "config.toml"
    path.write_text(FIRST_FORMAT.partition("[settings]")[0].replace("ofms-ft", "own_policy:algorithm"))
    config = load_run(str(path))
    assert config is not None
    with pytest.raises(InvalidInput, match=r"policy = own_policy:algorithm: .*--trust own_policy"):
        change(config, {})
    assert "own_policy" not in sys.modules
    assert change(config, {}, trust=trust).settings == {"warm_up": 7, "epsilon": 0.1}
    assert change(config, {"epsilon": 1}, "own_policy:algorithm", Trust((), trust.folders)).settings["epsilon"] == 1


def test_an_unknown_preset_in_a_configuration_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    config = resolve(experiment(), "x", task="classification")
    path.write_text(config.to_toml().replace('"published"', '"a/b"'))
    with pytest.raises(InvalidInput, match="preset = a/b: use published or theory"):
        load_run(str(path))
