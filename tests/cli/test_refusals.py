"""Faulty dictionaries, arguments and experiments are refused in one line, before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import ofms
from ofms.core.errors import InvalidInput
from ofms.models.dictionary import Dictionary
from ofms.models.zoo import mlp
from tests.cli.commands import QUICK, assert_refused, run


def truncate(models: Path) -> None:
    path = models / "net0.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def poison(models: Path) -> None:
    tensors = safetensors.torch.load_file(models / "net0.safetensors")
    tensors["0.bias"][0] = float("nan")
    safetensors.torch.save_file(tensors, models / "net0.safetensors")


def reshape(models: Path) -> None:
    tensors = safetensors.torch.load_file(models / "net0.safetensors")
    tensors["0.bias"] = torch.zeros(3)
    safetensors.torch.save_file(tensors, models / "net0.safetensors")


def rename(models: Path) -> None:
    path = models / "dictionary.json"
    path.write_text(path.read_text().replace('"mlp"', '"resnet"', 1))


def leave_one(models: Path) -> None:
    index = json.loads((models / "dictionary.json").read_text())
    index["models"] = index["models"][:1]
    (models / "dictionary.json").write_text(json.dumps(index))


def wrong_inputs(models: Path) -> None:
    for path in models.iterdir():
        path.unlink()
    models.rmdir()
    options = {"inputs": 5, "hidden": [2], "outputs": 10}
    modules = {name: mlp(5, [2], 10) for name in "ab"}
    architectures = dict.fromkeys("ab", ("mlp", options))
    Dictionary.from_modules(modules, task="classification", architectures=architectures).write(models)


def claim_too_much(models: Path) -> None:
    index = json.loads((models / "dictionary.json").read_text())
    index["models"][0]["storage"] = 10**17
    (models / "dictionary.json").write_text(json.dumps(index))


def store_float8(models: Path) -> None:
    tensors = safetensors.torch.load_file(models / "net0.safetensors")
    tensors["0.bias"] = tensors["0.bias"].to(torch.float8_e4m3fn)
    safetensors.torch.save_file(tensors, models / "net0.safetensors")


def garble(models: Path) -> None:
    path = models / "dictionary.json"
    path.write_bytes(path.read_bytes().replace(b"net0", b"net\xff", 1))


BAD_DICTIONARIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda models: (models / "net0.safetensors").unlink(), "has no such file"),
    "truncated": (truncate, "not a complete safetensors file"),
    "not finite": (poison, "net0: 0.bias = not finite"),
    "wrong shape": (reshape, "0.bias = [3]: architecture 'mlp' expects [8]"),
    "unknown architecture": (rename, "architecture = resnet: use mlp or vgg"),
    "single model": (leave_one, "models = 1"),
    "wrong inputs": (wrong_inputs, "it does not accept samples of shape [64]"),
    "too large": (claim_too_much, "net0: storage = 100000000000000000"),
    "float8": (store_float8, "store it as float32"),
    "not UTF-8": (garble, "fix the file"),
}

BAD_ARGUMENTS = {
    "budget under (a2)": (("--budget", "1.2"), "budget = "),
    "bandwidth too small": (
        ("--policy", "ofms-ft", "--bandwidth", "1kB"),
        "bandwidth = 1000 bytes: a client may have to upload",
    ),
    "unknown experiment": (("nowhere",), "experiment = nowhere: use one of air, cifar10, digits"),
    "unknown policy": (("--policy", "oracle"), "policy = oracle: use one of late-hedge"),
    "unknown preset": (("--preset", "fancy"), "preset = fancy"),
    "unknown setting": (("--set", "colour=1"), "set = colour"),
    "a number of more than 64 bits": (("--set", f"clients={10**20}"), "clients × rounds = "),
    "not an assignment": (("--set", "window"), "is not KEY=VALUE"),
    "zero clients": (("--clients", "0"), "clients = 0: give a number of at least 1"),
    "zero rounds": (("--rounds", "0"), "rounds = 0: give a number of at least 1"),
    "no such models": (("--models", "nowhere"), "nowhere: it has no readable dictionary"),
    "unknown option": (("--colour", "red"), "No such option"),
    "no workers": (("--workers", "0"), "0 is not in the range"),
    "unknown bound": (
        ("--policy", "ofms-ft", "--set", "loss_bound=soft"),
        "loss_bound = soft: use one of clip, saturate, raw",
    ),
    "no rate": (
        ("--policy", "ofms-ft", "--preset", "published", "--set", "learning_rate=nan"),
        "learning_rate = nan",
    ),
    "no window": (("--policy", "fed-omd", "--set", "window=0"), "window = 0"),
    "not a setting": (("--set", "policy=mab"), "policy is not a setting; use the option --policy"),
    "too many samples": (("--rounds", "1000000000000"), "clients × rounds"),
    "not UTF-8": (("--out", "caf\udce9"), r"argument = 'caf\udce9': it is not valid UTF-8"),
    "too long a name": (("--out", "x" * 300), "File name too long"),
    "too long a number": (("--budget", "9" * 5000), "number is too long"),
    "too large a budget": (("--budget", "4000000TiB"), "budget = 4000000TiB"),
}


@pytest.mark.parametrize("case", BAD_DICTIONARIES)
def test_a_bad_dictionary_is_refused_in_one_line(
    case: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    breaking, message = BAD_DICTIONARIES[case]
    breaking(models)
    assert_refused(capsys, run("run", "--models", models, *QUICK, "--out", tmp_path / "run"), message)
    assert not (tmp_path / "run").exists()
    if case != "wrong inputs":
        assert_refused(capsys, run("check", models), message)


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_are_refused_in_one_line(
    case: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = BAD_ARGUMENTS[case]
    status = run("run", "--models", models, *QUICK, "--out", tmp_path / "run", *arguments)
    assert_refused(capsys, status, message)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_written_to_is_refused(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(
        capsys, run("run", "--models", models, *QUICK, "--out", tmp_path / "file" / "run"), "cannot be written to"
    )
    assert_refused(capsys, run("run", "--models", models, *QUICK, "--out", tmp_path / "file"), "it already exists")
    assert_refused(capsys, run("pretrain", "digits", "--out", tmp_path / "file" / "models"), "cannot be written to")
    assert_refused(capsys, run("pretrain", "digits", "--out", tmp_path / "file"), "it already exists")
    assert_refused(capsys, run("pretrain", "digits", "--workers", "-1"), "-1 is not in the range")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("batch_size = 0", "batch_size = 0"),
        ("seed = -1", "pretraining.seed = -1"),
        ("epochs = 0", "epochs = 0"),
        ('networks = [{ name = "a/b", architecture = "mlp", options = {} }]', "name = a/b"),
        (
            'networks = [{ name = "a", architecture = "mlp", options = { inputs = 5, hidden = [], outputs = 10 } }]',
            "options = ",
        ),
        (
            'networks = [{ name = "a", architecture = "mlp", options = { inputs = 64, hidden = [], outputs = 3 } }]',
            "3 outputs",
        ),
        ("policies.mab = { learning_rat = 1 }", "policies.mab = learning_rat"),
        ("settings = { learning_rate = 1 }", "such as [policies.ofms-ft]"),
    ],
)
def test_a_bad_experiment_file_is_refused_in_one_line(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = {
        "summary": '"mine"',
        "dataset": '"digits"',
        "clients": "3",
        "rounds": "4",
        "budget": '"2"',
        "bandwidth": '"50%"',
    }
    network = 'networks = [{ name = "a", architecture = "mlp", options = { inputs = 64, hidden = [4], outputs = 10 } }]'
    pretraining = {"epochs": "epochs = 1", "batch_size": "batch_size = 8", "networks": network}
    key = line.partition(" ")[0]
    lines = [f"{name} = {value}" for name, value in head.items()]
    if key in ("settings", "policies.mab"):
        lines.append(line)
    else:
        pretraining[key] = line
    path = tmp_path / "mine.toml"
    path.write_text("\n".join([*lines, "[pretraining]", *pretraining.values()]))
    assert_refused(capsys, run("run", path, "--out", tmp_path / "run"), message)
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_here_is_refused(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    command = ("run", "--models", models, *QUICK, "--out", tmp_path / "run", "--device")
    assert_refused(capsys, run(*command, "cuda"), "device = cuda: cuda is not available here")
    assert_refused(capsys, run(*command, "tpu"), "device = tpu: use cpu, cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert_refused(capsys, run(*command, "cuda", "--loopback"), "device = cuda: the loopback runs on the processor")
    assert not (tmp_path / "run").exists()
    assert run(*command, "cpu") == 0
    assert 'device = "cpu"' in (tmp_path / "run" / "config.toml").read_text()


def test_an_unknown_command_is_answered_with_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, run("compar"), "no command 'compar': did you mean 'compare'? use one of advise,")
    assert_refused(capsys, run("deploy", "stauts"), "did you mean 'status'?")


@pytest.mark.parametrize("path", [None, b"run", 3])
def test_what_is_no_path_of_a_run_is_refused(path: Any) -> None:
    with pytest.raises(InvalidInput, match="give the path of a run's folder"):
        ofms.load(path)
