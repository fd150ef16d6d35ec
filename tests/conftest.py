"""What tests share: small dictionaries and streams, and the real data where it is at hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ofms.plugins import Trust

# Before anything imports Flower.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

settings.register_profile("ofms", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ofms")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where OFMS_NO_SKIPS is set, as in CI, a test that would skip fails."""
    report = yield
    if report.skipped and os.environ.get("OFMS_NO_SKIPS"):
        report.outcome = "failed"
    return report


def _folder(variable: str) -> Path:
    """The folder that a variable names; without it the test skips."""
    if value := os.environ.get(variable):
        return Path(value)
    pytest.skip(f"{variable} is not set")


@pytest.fixture
def data_folder() -> Path:
    return _folder("OFMS_DATA")


@pytest.fixture
def reference_folder() -> Path:
    return _folder("OFMS_REFERENCE")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests neither read nor fill the user's cache; the worker's tests share one."""
    cache = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Trust]:
    """Writes a module of the user's own into a folder and gives the trust in it; nothing of it stays in Python."""
    folder = tmp_path / "own_modules"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(name: str, text: str) -> Trust:
        monkeypatch.delitem(sys.modules, name, raising=False)
        (folder / f"{name}.py").write_text(text)
        return Trust((name,), (str(folder),))

    return write
