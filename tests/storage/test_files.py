"""Files and folders that are written completely or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from ofms.core.errors import InvalidInput
from ofms.storage.files import new_folder, require_writable, write_whole


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    with new_folder(folder) as partial:
        (partial / "file").write_text("content")
        assert not folder.exists()
    assert (folder / "file").read_text() == "content"
    assert folder.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in folder.parent.iterdir()] == ["run"]


def test_an_interrupted_write_leaves_no_folder(tmp_path: Path) -> None:
    def fill() -> None:
        with new_folder(tmp_path / "run") as partial:
            (partial / "file").write_text("content")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_filled_and_any_other_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as partial:
        (partial / "file").write_text("content")
    for taken in ("empty", "empty/file"):
        with pytest.raises(InvalidInput, match="it already exists"), new_folder(tmp_path / taken):
            pytest.fail("it must not be entered")


def test_a_file_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_below_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"cannot be written to .*name another") as refusal:
        require_writable(tmp_path / "file" / "folder")
    assert len(str(refusal.value).splitlines()) == 1
