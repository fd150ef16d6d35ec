"""Devices on ONNX Runtime, without PyTorch: the same choices, in a process that cannot import it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ofms
from ofms.device.device import Device
from ofms.device.mailbox import Mailbox
from ofms.storage.envelope import decode, encode
from tests.edge_fleets import ARCHITECTURES, coordinator_of, label, run_fleet, samples_of
from tests.without_torch import WITHOUT_TORCH

ROOT = Path(__file__).parent.parent.parent
EXCHANGES = 6
PROGRAM = """
import json
import sys
import numpy as np
import ofms

store, budget, samples, exchanges = sys.argv[1:]
found = np.load(samples)
choices = []
with ofms.Device(store, budget=int(budget)) as device:
    for step, (x, y) in enumerate(zip(found["x"], found["y"].tolist())):
        while not (device.ready and device.exchange == step // 5):
            device.wait_change(0.05)
        prediction = device.predict(x)
        device.feedback(prediction.id, y)
        choices.append([prediction.value, device.holding, device.predicting])
    while device.outgoing().exchange < int(exchanges):
        device.wait_change(0.05)
assert not any(name.partition(".")[0] == "torch" for name in sys.modules)
print(json.dumps(choices))
"""


@pytest.mark.parametrize("problem", list(ARCHITECTURES))
def test_a_whole_run_makes_the_choices_of_a_device_with_pytorch(problem: str, tmp_path: Path) -> None:
    expected, with_torch = run_fleet(problem, tmp_path / "torch", "torch", exchanges=15)
    found, without = run_fleet(problem, tmp_path / "onnx", "onnx", exchanges=15)
    assert [each[1:] for each in found] == [each[1:] for each in expected]
    assert len({each[1] for each in expected}) > 1, "the models held change"
    if ARCHITECTURES[problem][2] == "classification":
        assert [each[0] for each in found] == [each[0] for each in expected]
    assert np.allclose([each[0] for each in found], [each[0] for each in expected], atol=1e-5)
    assert with_torch.version.tolist() == without.version.tolist()
    assert with_torch.version.any(), "models were fine-tuned"
    for one, other in zip(with_torch.tensors, without.tensors, strict=True):
        for name, tensor in one.items():
            assert np.allclose(other[name], tensor, atol=1e-5, rtol=1e-5), name


def test_a_store_can_be_opened_with_the_other_backend(tmp_path: Path) -> None:
    coordinator, budget = coordinator_of("values")
    x, y = samples_of("values", 10)
    with Device(tmp_path, budget=budget, mail=False, backend="onnx") as device:
        device.receive(coordinator.welcome(0))
        device.receive(coordinator.run_exchange({0: device.collect() or b""})[0])
        waiting = device.predict(x[0])
    with Device(tmp_path, budget=budget, mail=False, backend="torch") as device:
        assert device.predict(x[0]).value == pytest.approx(waiting.value, abs=1e-5)
        assert device.feedback(waiting.id, float(y[0]))
        label(device, x[1:5], y[1:5])
        assert device.wants_exchange
        request = device.collect() or b""
    with Device(tmp_path, budget=budget, mail=False, backend="onnx") as device:
        assert device.collect() == request
        device.receive(coordinator.run_exchange({0: request})[0])
        label(device, x[5:], y[5:])


def test_without_graphs_a_device_names_the_architecture(tmp_path: Path) -> None:
    coordinator, budget = coordinator_of("values", graphs=False)
    with Device(tmp_path, budget=budget, mail=False, backend="onnx") as device:
        with pytest.raises(ofms.InvalidInput, match=r"architecture = mlp: .* no ONNX graph of it \(net0\)"):
            device.receive(coordinator.welcome(0))
        assert device.collect() is None


def test_an_input_of_another_shape_is_rejected(tmp_path: Path) -> None:
    coordinator, budget = coordinator_of("values")
    with Device(tmp_path, budget=budget, mail=False, backend="onnx") as device:
        device.receive(coordinator.welcome(0))
        device.receive(coordinator.run_exchange({0: device.collect() or b""})[0])
        with pytest.raises(ofms.InvalidInput, match=r"input = \[7\]: the models do not accept it"):
            device.predict(np.zeros(7))


@pytest.mark.parametrize("change", ["cut", "swapped", "missing", "empty", "named"])
def test_a_welcome_with_other_graphs_changes_nothing(change: str, tmp_path: Path) -> None:
    coordinator, budget = coordinator_of("values")
    welcome = decode(coordinator.welcome(0))
    arrays: dict[str, Any] = dict(welcome.arrays)
    outputs, gradient = sorted(arrays, reverse=True)
    values: dict[str, Any] = dict(welcome.values)
    if change == "cut":
        arrays[gradient] = arrays[gradient][:-7]
    elif change == "swapped":
        arrays[outputs], arrays[gradient] = arrays[gradient], arrays[outputs]
    elif change == "missing":
        del arrays[gradient]
    elif change == "empty":
        arrays[outputs] = np.zeros(0, np.uint8)
    else:
        values["models"] = [each | {"trainable": ["0.weight"]} for each in values["models"]]
    with Device(tmp_path, budget=budget, mail=False, backend="onnx") as device:
        with pytest.raises(ofms.InvalidInput) as raised:
            device.receive(encode(replace(welcome, arrays=arrays, values=values)))
        assert "\n" not in str(raised.value)
        assert device.collect() is None
        device.receive(coordinator.welcome(0))
        assert device.collect() is not None


def carried_run(problem: str, folder: Path, python: str, program: str, **given: str) -> list[Any]:
    """A run whose device is another process; its messages are carried here, where PyTorch is.

    The process has these environment variables, and runs in a folder that has one of the name of PyTorch.
    """
    (folder / "torch").mkdir(exist_ok=True)
    coordinator, budget = coordinator_of(problem)
    x, y = samples_of(problem, 5 * EXCHANGES)
    np.savez(folder / "samples.npz", x=x, y=y)
    store = folder / "store"
    mailbox = Mailbox(store)
    mailbox.deliver(coordinator.welcome(0))
    arguments = [python, "-c", program, str(store), str(budget), str(folder / "samples.npz"), str(EXCHANGES)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | given
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment) as process:
        try:
            until = time.monotonic() + 280
            for exchange in range(EXCHANGES):
                while (request := mailbox.answer(exchange)) is None:
                    assert process.poll() is None
                    assert not [path.read_text() for path in mailbox.outbox.glob("refusal-*")]
                    assert time.monotonic() < until
                    time.sleep(0.02)
                mailbox.deliver(coordinator.run_exchange({0: request})[0])
            output, _ = process.communicate(timeout=280)
        finally:
            process.kill()
    assert process.returncode == 0
    found: list[Any] = json.loads(output)
    return found


def as_lists(choices: list[Any]) -> list[Any]:
    return [[value, list(held), list(predicting)] for value, held, predicting in choices]


def test_a_process_that_cannot_import_pytorch(tmp_path: Path) -> None:
    expected, _ = run_fleet("images", tmp_path / "torch", "torch", EXCHANGES)
    found = carried_run("images", tmp_path, sys.executable, WITHOUT_TORCH + PROGRAM, PYTHONPATH=str(ROOT / "src"))
    assert found == as_lists(expected)


@pytest.mark.slow
def test_an_environment_with_the_edge_extra_only(tmp_path: Path) -> None:
    """The package as pip installs it: PyTorch is not there."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = str(environment / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-c", ROOT / "constraints.txt", f"{ROOT}[edge]"], check=True, cwd=tmp_path)
    listed = subprocess.run([python, "-m", "pip", "list"], check=True, capture_output=True, text=True).stdout
    assert "onnxruntime" in listed
    assert not {"torch", "onnx", "flwr"} & {line.split()[0] for line in listed.splitlines()}
    expected, _ = run_fleet("images", tmp_path / "torch", "torch", EXCHANGES)
    assert carried_run("images", tmp_path, python, PROGRAM) == as_lists(expected)
    command = [str(environment / "bin" / "ofms"), "run", "digits"]
    failed = subprocess.run(command, capture_output=True, text=True, cwd=environment, env={"PATH": os.environ["PATH"]})
    assert failed.returncode == 2
    assert "PyTorch is not installed: pip install 'ofms[torch]'" in failed.stderr
