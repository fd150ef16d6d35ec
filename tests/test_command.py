"""The command as people use it: what it prints, what it leaves behind, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from ofms.cli import _main
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


def run(*arguments: str | Path) -> int:
    return _main([str(argument) for argument in arguments])


QUICK = ("--rounds", "12", "--clients", "6", "--budget", "3")


def test_a_run_prints_a_table_and_json_and_leaves_a_folder(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    status = run(
        "run", "digits", "--models", models, *QUICK, "--preset", "theory", "--seed", "3", "--set", "interval=5",
        "--out", out, "--json",
    )  # fmt: skip
    printed = capsys.readouterr().out
    assert status == 0
    record = json.loads(printed.splitlines()[-1])
    expected = {"experiment": "digits", "policy": "ofms-ft", "preset": "theory", "seed": 3, "metric": "accuracy"}
    assert expected.items() <= record.items()
    assert (record["rounds"], record["clients"], record["interval"]) == (12, 6, 5)
    assert 0 <= record["mean"] <= 1
    assert record["regret"] <= record["bound"]
    assert "average regret" in printed

    assert {path.name for path in out.iterdir()} == {
        *("config.toml", "metrics.jsonl", "clients.npz", "history.npz", "summary.json", "report.html")
    }
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 13))
    assert lines[-1]["mean"] == pytest.approx(record["mean"])
    assert sum(line["down"] for line in lines) == record["bytes_down"]
    with np.load(out / "clients.npz") as clients:
        assert clients["score"].mean() == pytest.approx(record["mean"])
        assert clients["regret"].mean() == pytest.approx(record["regret"])
        assert clients["most_held"].max() <= clients["budget"].max()
    with np.load(out / "history.npz") as history:
        assert history["score"].shape == (12, 6)
        assert history["score"].mean() == pytest.approx(record["mean"])
        assert history["round"].tolist() == [0, 5, 10]
        assert history["probability"].shape == (3, 6, 6)
        assert (history["prediction_weights"] <= history["held"]).all()
    assert tomllib.loads((out / "config.toml").read_text())["interval"] == 5
    assert json.loads((out / "summary.json").read_text())["mean"] == record["mean"]


@pytest.mark.parametrize("policy", ["ofms-ft", "mab", "fed-omd", "perfedavg"])
def test_loopback_and_simulator_tell_the_same(
    policy: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = []
    for name, extra in (("fast", ()), ("slow", ("--loopback",))):
        arguments = ("--models", models, *QUICK, "--policy", policy, "--out", tmp_path / name, "--json", *extra)
        assert run("run", *arguments, "--set", "warm_up=3" if policy != "mab" else "exploration=0.1") == 0
        records.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    for key in ("mean", "std", "regret", "bytes_down", "bytes_up", "most_bytes_held"):
        assert records[0][key] == pytest.approx(records[1][key], rel=1e-5), key


def test_the_digits_dictionary_is_pretrained_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert run("run", "--rounds", "60", "--clients", "20", "--json") == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["random_model"] < record["mean"] < record["best_in_hindsight"]
    (kept,) = (tmp_path / "cache" / "ofms" / "models").iterdir()
    assert len(list(kept.glob("*.safetensors"))) == 20
    assert run("pretrain", "digits") == 0
    assert "already holds a dictionary" in capsys.readouterr().out
    assert (tmp_path / record["folder"] / "summary.json").exists()


def test_check_and_list_and_bounds_and_data(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", models, "--json") == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    storage = sorted(model["storage"] for model in record["models"])
    assert record["smallest_budget"] == storage[-1] + storage[-2]
    assert [row["budget"] for row in record["budgets"]] == [2, 3, 5, 10]
    assert record["not_deployable"] is None

    assert run("list") == 0
    listed = capsys.readouterr().out
    assert all(word in listed for word in ("digits", "air", "ofms-ft", "perfedavg", "theory", "published"))

    assert run("bounds", "--models", models, *QUICK, "--distance", "1", "--gradient", "1", "--json") == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    row = facts["clients"][0]
    mu, rate = row["fewest_clusters"][1], row["learning_rate"]
    assert row["theorem"] == pytest.approx(np.log(6) / rate + rate * mu * 12)
    assert facts["server"]["sharp"] <= facts["server"]["theorem"]
    assert run("bounds", "--models", models, *QUICK, "--preset", "published") == 0
    assert "not covered: the selection loss is not bounded (a1)" in capsys.readouterr().out

    assert run("data", "digits") == 0
    assert "1,797 images" in capsys.readouterr().out


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


BAD_DICTIONARIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda models: (models / "net0.safetensors").unlink(), "has no such file"),
    "truncated": (truncate, "not a complete safetensors file"),
    "not finite": (poison, "net0: 0.bias = not finite"),
    "wrong shape": (reshape, "0.bias = [3]: architecture 'mlp' expects [8]"),
    "unknown architecture": (rename, "architecture = resnet: use one of mlp, vgg"),
    "single model": (leave_one, "models = 1"),
    "wrong inputs": (wrong_inputs, "it does not accept samples of shape [64]"),
}

BAD_ARGUMENTS = {
    "budget under (a2)": (("--budget", "1.2"), "budget = "),
    "bandwidth too small": (("--bandwidth", "1kB"), "bandwidth = 1000 bytes: a client may have to upload"),
    "unknown experiment": (("nowhere",), "experiment = nowhere: use one of air, cifar10, digits"),
    "unknown policy": (("--policy", "oracle"), "policy = oracle: use one of ofms-ft"),
    "unknown preset": (("--preset", "fancy"), "preset = fancy"),
    "unknown setting": (("--set", "colour=1"), "set = colour"),
    "not an assignment": (("--set", "window"), "is not KEY=VALUE"),
    "zero clients": (("--clients", "0"), "clients = 0: give at least 1"),
    "zero rounds": (("--rounds", "0"), "rounds = 0: give at least 1"),
    "no such models": (("--models", "nowhere"), "nowhere: it has no readable dictionary"),
    "unknown option": (("--colour", "red"), "No such option"),
    "no workers": (("--workers", "0"), "0 is not in the range"),
    "unknown bound": (("--set", "loss_bound=soft"), "loss_bound = soft: use one of clip, saturate, raw"),
    "no rate": (("--preset", "published", "--set", "learning_rate=nan"), "learning_rate = nan"),
    "no window": (("--policy", "fed-omd", "--set", "window=0"), "window = 0"),
    "not a setting": (("--set", "policy=mab"), "policy is not a setting; use the option --policy"),
    "too many samples": (("--rounds", "1000000000000"), "clients × rounds"),
    "too long a name": (("--out", "x" * 300), "File name too long"),
    "too long a number": (("--budget", "9" * 5000), "number is too long"),
    "too large a budget": (("--budget", "4000000TiB"), "budget = 4000000TiB"),
}


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


BAD_DICTIONARIES |= {
    "too large": (claim_too_much, "net0: storage = 100000000000000000"),
    "float8": (store_float8, "store it as float32"),
    "not UTF-8": (garble, "fix the file"),
}


def refused(capsys: pytest.CaptureFixture[str], status: int, message: str) -> None:
    error = capsys.readouterr().err
    assert status == 2
    assert message in error
    assert error.startswith("ofms: ")
    assert len(error.splitlines()) == 1, "one line"


def test_a_dictionary_that_names_a_command_runs_nothing(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    touched = models.parent / "touched"
    index = json.loads((models / "dictionary.json").read_text())
    index["models"][0] |= {"architecture": "os:system", "options": {"command": f"touch {touched}"}}
    (models / "dictionary.json").write_text(json.dumps(index))
    refused(capsys, run("check", models), "add --trust os")
    assert not touched.exists()


@pytest.mark.parametrize("case", BAD_DICTIONARIES)
def test_a_bad_dictionary_is_refused_in_one_line(
    case: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    breaking, message = BAD_DICTIONARIES[case]
    breaking(models)
    refused(capsys, run("run", "--models", models, *QUICK, "--out", tmp_path / "run"), message)
    assert not (tmp_path / "run").exists()
    if case != "wrong inputs":
        refused(capsys, run("check", models), message)


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_are_refused_in_one_line(
    case: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = BAD_ARGUMENTS[case]
    status = run("run", "--models", models, *QUICK, "--out", tmp_path / "run", *arguments)
    refused(capsys, status, message)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_written_to_is_refused(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    refused(capsys, run("run", "--models", models, *QUICK, "--out", tmp_path / "file" / "run"), "cannot be written to")
    refused(capsys, run("run", "--models", models, *QUICK, "--out", tmp_path / "file"), "it already exists")
    refused(capsys, run("pretrain", "digits", "--out", tmp_path / "file" / "models"), "cannot be written to")
    refused(capsys, run("pretrain", "digits", "--out", tmp_path / "file"), "it already exists")
    refused(capsys, run("pretrain", "digits", "--workers", "-1"), "-1 is not in the range")


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
def test_a_bad_experiment_of_ones_own_is_refused_in_one_line(
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
    refused(capsys, run("run", path, "--out", tmp_path / "run"), message)
    assert not (tmp_path / "run").exists()


def test_a_run_is_repeated_from_its_configuration(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--policy", "fed-omd", "--seed", "3", "--set", "warm_up=2", "--set", "model=net1")
    assert run("run", "--models", models, *QUICK, *arguments, "--out", tmp_path / "one", "--json") == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert run("run", tmp_path / "one" / "config.toml", "--out", tmp_path / "two", "--json") == 0
    second = json.loads(capsys.readouterr().out.splitlines()[-1])
    different = {key for key in first if first[key] != second[key]}
    assert different <= {"seconds", "folder"}
    assert first["revision"]
    status = run("run", tmp_path / "one" / "config.toml", "--policy", "mab", "--out", tmp_path / "three")
    refused(capsys, status, "policy = mab: the run used fed-omd")


def test_check_says_whether_a_dictionary_can_be_deployed(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", models) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "deployable: yes"
    path = models / "net1.safetensors"
    halved = {name: tensor.to(torch.float16) for name, tensor in safetensors.torch.load_file(path).items()}
    safetensors.torch.save_file(halved, path)
    assert run("check", models, "--json") == 0, "it can still be simulated"
    *_, last, record = capsys.readouterr().out.splitlines()
    assert last.startswith("deployable: no: net1: 0.")
    assert "float32" in json.loads(record)["not_deployable"]


def test_own_code_runs_only_where_its_package_is_trusted(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--trust` of every command that reads a dictionary; without it nothing of the package is imported."""
    (tmp_path / "pump_models.py").write_text(
        "import pathlib\nfrom ofms.models.zoo import mlp\n"
        f"pathlib.Path({str(tmp_path / 'imported')!r}).touch()\n"
        "def network(**options):\n    return mlp(**options)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    index = models / "dictionary.json"
    index.write_text(index.read_text().replace('"mlp"', '"pump_models:network"'))
    commands: list[tuple[str | Path, ...]] = [
        ("check", models),
        ("bounds", "--models", models, *QUICK),
        ("run", "--models", models, *QUICK, "--out", tmp_path / "run"),
        ("compare", "digits", "--policy", "mab", "--seeds", "1", "--models", models, *QUICK),
    ]
    for arguments in commands:
        refused(capsys, run(*arguments), "add --trust pump_models")
        assert not (tmp_path / "imported").exists()
        assert not (tmp_path / "run").exists()
    for arguments in commands:
        assert run(*arguments, "--trust", "pump_models") == 0, arguments[0]
    assert (tmp_path / "imported").exists()


def test_bounds_speak_only_where_the_theorems_do(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = ("--distance", "1", "--gradient", "1")
    assert run("bounds", "--models", models, *QUICK, *server, "--preset", "published") == 0
    assert "server's regret: not covered: the selection loss is not bounded" in capsys.readouterr().out
    assert run("bounds", "--models", models, *QUICK, *server, "--set", "window=5") == 0
    assert "not covered: the fine-tuning loss averages a window" in capsys.readouterr().out
    assert run("bounds", "--models", models, *QUICK, "--set", "learning_rate=0") == 0
    assert "not covered: a learning rate of 0 never learns" in capsys.readouterr().out
    refused(capsys, run("bounds", "--models", models, *QUICK, "--distance", "nan", "--gradient", "1"), "distance = nan")


def test_fine_tuning_that_diverges_ends_in_one_line(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--set", "fine_tuning_rate=1e38", "--set", "warm_up=0", "--out", tmp_path / "run")
    assert run("run", "--models", models, *QUICK, *arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("ofms: ")
    assert "net" in error
    assert "round" in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run" / "summary.json").exists()


def test_help_and_version_import_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; sys.argv = ['ofms', {!r}]; from ofms.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'numpy', 'msgspec', 'pandas') if name in sys.modules])"
    )
    for option in ("--help", "--version"):
        ended = subprocess.run([sys.executable, "-c", code.format(option)], capture_output=True, text=True, check=True)
        assert ended.stdout.splitlines()[-1] == "[]"
    ended = subprocess.run(
        [sys.executable, "-c", "import ofms, sys; print('torch' in sys.modules, 'numpy' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == "False False"


def test_progress_goes_to_standard_error(models: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ofms", "run", "--models", str(models), *QUICK]
    command += ["--out", str(tmp_path / "run"), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    json.loads(ended.stdout.splitlines()[-1])
    assert "ofms-ft:" not in ended.stdout
