"""Which package computes on a device."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

import ofms
from ofms.compute import client
from ofms.compute.client import Backend, choose_backend


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Packages that seem not to be installed."""
    found = importlib.util.find_spec

    def find(name: str) -> ModuleSpec | None:
        return None if name in packages else found(name)

    monkeypatch.setattr(client, "find_spec", find)


def test_pytorch_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_backend("auto") == "torch"
    assert choose_backend("onnx") == "onnx"
    without(monkeypatch, "torch")
    assert choose_backend("auto") == "onnx"


def test_a_folder_of_its_name_is_not_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime_of_a_user").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(client, "_PACKAGES", {"torch": "onnxruntime_of_a_user", "onnx": "onnxruntime"})
    assert choose_backend("auto") == "onnx"


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("auto", r"PyTorch or ONNX Runtime is not installed: pip install 'ofms\[edge\]', or 'ofms\[torch\]'"),
        ("onnx", r"onnxruntime is not installed: pip install 'ofms\[edge\]'"),
        ("torch", r"torch is not installed: pip install 'ofms\[torch\]'"),
        ("tpu", "use one of auto, torch, onnx"),
    ],
)
def test_without_any_one_line_names_the_extra(
    backend: Any, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without(monkeypatch, "torch", "onnxruntime")
    given: Backend = backend
    with pytest.raises(ofms.InvalidInput, match=f"backend = {backend}: {reason}"):
        ofms.Device(tmp_path / "store", budget=1000, backend=given)
    assert not (tmp_path / "store").exists()
