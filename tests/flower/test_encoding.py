"""A model is encoded once between the server and a device's store, and an update once on the way back."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch

from ofms.coordinator.deployment import Deployment
from ofms.coordinator.files import STATE
from ofms.coordinator.persistence import PersistentCoordinator
from ofms.core.typing import AnyArray
from ofms.device.device import Device
from ofms.storage.arrays import encoded_parts
from ofms.storage.envelope import decode
from tests.deployments import make_fleet
from tests.devices import budgets_for, label_samples, problem
from tests.flower.messages import carry


class Encodings:
    """Records the arrays of every call that turns arrays into bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[dict[str, bytes]] = []
        for module in (safetensors.numpy, safetensors.torch):
            monkeypatch.setattr(module, "save", self._recording(module.save))
        monkeypatch.setattr("ofms.storage.envelope.encoded_parts", self._recording(encoded_parts))
        monkeypatch.setattr(np, "save", self._refused)

    def _recording(self, save: Any) -> Any:
        def recording(arrays: dict[str, Any], *rest: Any) -> Any:
            self.calls.append({name: np.asarray(array).tobytes() for name, array in arrays.items()})
            return save(arrays, *rest)

        return recording

    def _refused(self, *given: Any, **options: Any) -> None:
        raise AssertionError("NumPy encodes nothing")

    def having(self, prefix: str) -> list[dict[str, bytes]]:
        """Calls with an array whose name has this prefix."""
        return [call for call in self.calls if any(each.startswith(prefix) for each in call)]


def test_tensors_are_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_fleet(tmp_path / "fleet")
    dictionary, stream = problem()
    persistence = PersistentCoordinator(Deployment(folder))
    coordinator, store = persistence.coordinator, tmp_path / "store"
    with Device(store, budget=int(budgets_for(dictionary)[0])) as device:
        persistence.receive(0, decode(carry(coordinator.welcome(0), "join", store, 20.0)))
        encodings = Encodings(monkeypatch)
        sent_models = 0
        for exchange in range(3):
            (grant,) = coordinator.open([0]).values()
            sent = {int(model): array.tobytes() for model, array in decode(grant).part("model").items()}
            sent_models += len(sent)
            threading.Thread(target=label_exchange, args=(device, stream.x[0], stream.y[0], exchange)).start()
            answer = carry(grant, "exchange", store, 20.0)
            for model, content in sent.items():
                version = int(coordinator.version[model])
                name = f"{model}-{version}.safetensors"
                assert (store / "models" / name).read_bytes() == content, "the device stores what the server encoded"
                assert not version or (folder / STATE / "models" / name).read_bytes() == content, "and the server too"
            assert answer == device.collect()
            persistence.receive(0, decode(answer))
            persistence.close_exchange()
        versions = int(coordinator.version.sum())
    assert persistence.records.refusals == []
    persistence.close()
    assert sent_models > 3
    assert versions > 3
    # A model's tensors have their own names, in one call for each version that was sent or saved.
    models = [tuple(sorted(call.items())) for call in encodings.having("0.weight")]
    assert len(models) == len(set(models))
    assert versions <= len(models) <= versions + 6
    assert len(encodings.having("model.")) == 3, "as opaque bytes, once for each grant"
    assert len(encodings.having("delta.")) == 3, "once for each answer"


def label_exchange(device: Device, x: AnyArray, y: AnyArray, exchange: int) -> None:
    """Label the samples of an exchange, once it is open."""
    while device.exchange < exchange:
        device.wait_change(0.05)
    label_samples(device, x, y, range(2 * exchange, 2 * exchange + 2))
