"""Work that may be cut off at any moment and is then repeated as a user would: its result must be the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from ofms.cli import _main
from ofms.device.device import Device
from ofms.models.dictionary import Dictionary
from ofms.runs.folder import CONFIG, SUMMARY
from ofms.storage.envelope import encode
from tests.devices import coordinator_of_one, label_samples, problem

EXPERIMENT = """
summary = "six small networks on three clients"
budget = "3"
bandwidth = "60%"
models = "models"

[stream]
file = "stream.npz"
task = "regression"
"""
PRETRAINING = """
summary = "ten tiny networks"
dataset = "digits"
clients = 3
rounds = 10
budget = "3"
bandwidth = "60%"

[pretraining]
epochs = 1
batch_size = 256

[[pretraining.networks]]
name = "mlp"
architecture = "mlp"
options = { inputs = 64, hidden = [4], outputs = 10 }
"""


@dataclass(frozen=True)
class Task:
    """Inputs in a folder, the command that is given again until it succeeds, and what it makes."""

    prepare: Callable[[Path], None]
    run: Callable[[Path], int]
    outcome: Callable[[Path], Any]


def _write_inputs(folder: Path) -> None:
    dictionary, stream = problem()
    dictionary.write(folder / "models")
    np.savez(folder / "stream.npz", x=stream.x, y=stream.y, names=np.array(["fan", "pump", "valve"]))
    (folder / "own.toml").write_text(EXPERIMENT)
    (folder / "small.toml").write_text(PRETRAINING)


def _prepare_comparison(folder: Path) -> None:
    """With cells of an earlier comparison."""
    _write_inputs(folder)
    assert _main(["compare", str(folder / "own.toml"), "--policy", "mab", "--seeds", "1", "--out", str(folder)]) == 0


def _run(folder: Path) -> int:
    """A run that writes a checkpoint after every exchange; again with `--resume` if it was cut off."""
    out = folder / "run"
    if (out / SUMMARY).exists():
        return 0
    if (out / CONFIG).exists():
        return _main(["run", "--resume", str(out), "--checkpoint", "0"])
    options = ["--set", "warm_up=2", "--checkpoint", "0", "--out", str(out)]
    return _main(["run", str(folder / "own.toml"), *options])


def _pretrain(folder: Path) -> int:
    return _main(["pretrain", str(folder / "small.toml"), "--out", str(folder / "new"), "--workers", "1"])


def _compare(folder: Path) -> int:
    policies = ["--policy", "mab", "--policy", "ofms-ft"]
    return _main(["compare", str(folder / "own.toml"), *policies, "--seeds", "1", "--out", str(folder)])


def _reproduce(folder: Path) -> int:
    options = ["--column", str(folder / "own.toml"), "--seeds", "1", "--out", str(folder / "results")]
    return _main(["reproduce", "budgets", *options])


def _run_outcome(folder: Path) -> dict[str, object]:
    return run_files(folder / "run") | {"left": leftovers(folder)}


def run_files(folder: Path) -> dict[str, object]:
    """The content of a run's folder, without its times and its path."""
    summary = json.loads((folder / SUMMARY).read_text())
    for name in ("seconds", "client_seconds", "folder"):
        del summary[name]
    arrays: dict[str, bytes] = {}
    for name in ("clients.npz", "history.npz"):
        with np.load(folder / name) as file:
            arrays |= {f"{name} {key}": file[key].tobytes() for key in file}
    return {"summary": summary, "metrics": (folder / "metrics.jsonl").read_bytes(), **arrays}


def _pretrain_outcome(folder: Path) -> dict[str, object]:
    files = {path.name: path.read_bytes() for path in (folder / "new").iterdir()}
    return files | {"revision": Dictionary.read(folder / "new").revision(), "left": leftovers(folder)}


def _cells_outcome(folder: Path) -> dict[str, object]:
    """Tables and cells, without times; each cell's run if it is kept."""
    unfinished = [path.name for path in folder.rglob("unfinished/*")]
    found: dict[str, object] = {"left": leftovers(folder) + unfinished}
    for path in sorted(folder.rglob("*.md")):
        found[str(path.relative_to(folder))] = path.read_text()
    for path in sorted(folder.rglob("cells/*.json")):
        cell = json.loads(path.read_text())
        found[path.name] = {name: value for name, value in cell.items() if "seconds" not in name}
    for path in sorted(folder.rglob("runs/*/summary.json")):
        found[path.parent.name] = run_files(path.parent)
    return found


def leftovers(folder: Path) -> list[str]:
    """Partial files and folders."""
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob(".*") if path.name.endswith((".part", ".partial"))
    )


def _write_messages(folder: Path) -> None:
    """The messages that a device gets in four exchanges."""
    coordinator, budget, x, y = coordinator_of_one()
    messages = folder / "messages"
    messages.mkdir()
    (messages / "welcome").write_bytes(coordinator.welcome(0))
    with Device(folder / "first", budget=budget, mail=False) as device:
        device.receive(coordinator.welcome(0))
        for exchange in range(4):
            grant = coordinator.run_exchange({0: device.collect() or b""})[0]
            (messages / str(exchange)).write_bytes(grant)
            device.receive(grant)
            label_samples(device, x, y, range(2 * exchange, 2 * exchange + 2))


def _use_device(folder: Path) -> int:
    """A program with a device: it continues with the first sample that the device has not seen."""
    messages = folder / "messages"
    _, budget, x, y = coordinator_of_one()
    # Each start of a program has a random name, which its messages contain.
    with (
        patch("secrets.token_hex", return_value="0" * 16),
        Device(folder / "store", budget=budget, mail=False) as device,
    ):
        if device.collect() is None and device.exchange < 0:
            device.receive((messages / "welcome").read_bytes())
        for exchange in range(4):
            if device.exchange < exchange:
                device.collect()
                device.receive((messages / str(exchange)).read_bytes())
            for number in device.waiting:
                device.feedback(number, float(y[number]))
            for number in range(device.predictions, 2 * exchange + 2):
                device.feedback(device.predict(x[number]).id, float(y[number]))
        (folder / "report").write_bytes(device.collect() or b"")
        (folder / "memory").write_bytes(encode(device._recorder.state.memory.write()))
    return 0


def _device_outcome(folder: Path) -> dict[str, object]:
    return {name: (folder / name).read_bytes() for name in ("report", "memory")} | {"left": leftovers(folder)}


TASKS = {
    "run": Task(_write_inputs, _run, _run_outcome),
    "pretrain": Task(_write_inputs, _pretrain, _pretrain_outcome),
    "compare": Task(_prepare_comparison, _compare, _cells_outcome),
    "reproduce": Task(_write_inputs, _reproduce, _cells_outcome),
    "device": Task(_write_messages, _use_device, _device_outcome),
}
