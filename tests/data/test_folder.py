"""Where datasets and caches are stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from ofms.data.folder import cache_folder, data_folder


@pytest.mark.parametrize("cache", [None, ""])
def test_the_cache_is_in_the_home_folder(cache: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("OFMS_DATA", raising=False)
    if cache is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
    assert cache_folder() == tmp_path / ".cache" / "ofms"
    assert data_folder() == tmp_path / ".cache" / "ofms" / "data"
    assert not (tmp_path / ".cache").exists(), "asking creates nothing"


def test_both_folders_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache" / "ofms"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OFMS_DATA", "~/datasets")
    assert data_folder() == tmp_path / "datasets"
