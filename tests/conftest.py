"""Fixtures for all tests: folders of real data, a cache of its own, modules of the user's own, a browser."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from ofms.plugins import Trust

# Before anything imports Flower.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

# A shell starts what it runs in the background with the first of these signals ignored, and nohup with the second; so
# would be all processes of the tests.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

settings.register_profile("ofms", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ofms")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let slow tests take hours: on a busy machine, some do."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(4 * 3600))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail instead of skip if OFMS_NO_SKIPS is set, as in CI."""
    report = yield
    if report.skipped and os.environ.get("OFMS_NO_SKIPS"):
        report.outcome = "failed"
    return report


def _folder(variable: str) -> Path:
    """The folder that a variable names; skip the test if it is unset."""
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
    """Keep tests out of the user's cache; the tests of one worker share another."""
    cache = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Trust]:
    """A function that writes a user's module and returns trust in it; the module is unloaded after the test."""
    folder = tmp_path / "own_modules"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(name: str, text: str) -> Trust:
        monkeypatch.delitem(sys.modules, name, raising=False)
        (folder / f"{name}.py").write_text(text)
        return Trust((name,), (str(folder),))

    return write


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium through its driver."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromium-driver are not installed")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1200,900"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()
