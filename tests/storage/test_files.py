"""Files and folders that are written completely or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from ofms.core.errors import InvalidInput
from ofms.storage.files import adding_to, is_vacant, new_folder, remove_leftovers, require_writable, write_whole
from ofms.storage.growing import GrowingFile
from tests.full_disk import full_after


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


@pytest.mark.parametrize("opened", [new_folder, lambda folder: adding_to(folder, last="file")])
def test_a_write_that_fails_leaves_no_folders_above(
    opened: Callable[[Path], AbstractContextManager[Path]], tmp_path: Path
) -> None:
    """One that was there, or that another process has used meanwhile, stays."""
    (tmp_path / "there").mkdir()

    def fail(folder: Path, beside: Path | None = None) -> None:
        with opened(folder) as partial:
            (partial / "file").write_text("content")
            if beside is not None:
                beside.touch()
            raise InvalidInput("device", "a", "it is refused")

    with pytest.raises(InvalidInput, match="refused"):
        fail(tmp_path / "there" / "deep" / "er" / "run")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]
    with pytest.raises(InvalidInput, match="refused"):
        fail(tmp_path / "deep" / "er" / "run", tmp_path / "deep" / "other")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["deep", "other", "there"]


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
    assert list(tmp_path.iterdir()) == [path], "no partial file is left"
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_below_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"cannot be written to .*name another") as refusal:
        require_writable(tmp_path / "file" / "folder")
    assert len(str(refusal.value).splitlines()) == 1


def test_a_folder_and_special_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name, message in (("folder", "it is a folder"), ("pipe", "not a regular file"), ("link", "not a regular file")):
        with pytest.raises(InvalidInput, match=message):
            write_whole(tmp_path / name, b"new")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "pipe"]


def test_a_link_is_followed_and_a_mode_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
    write_whole(tmp_path / "key", b"secret", mode=0o600)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_writers_of_one_file_take_turns(tmp_path: Path) -> None:
    path, errors = tmp_path / "file", []
    contents = [bytes([number]) * 100_000 for number in range(8)]

    def write(content: bytes) -> None:
        try:
            for _ in range(20):
                write_whole(path, content)
                assert path.read_bytes() in contents
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=[content]) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert list(tmp_path.iterdir()) == [path]


WRITE_SLOWLY = """
import os, sys
from pathlib import Path
from ofms.storage.files import replacing
with replacing(Path(sys.argv[1])) as descriptor:
    os.write(descriptor, b"half")
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_writer_left_is_removed_and_what_another_writes_is_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_SLOWLY, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        remove_leftovers(tmp_path)
        assert [each.name for each in tmp_path.iterdir()] == [".file.part"], "it is being written"
        assert is_vacant(tmp_path)
        writer.kill()
    write_whole(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["file"], "the next writer takes it over"
    (tmp_path / ".other.part").write_bytes(b"half")
    remove_leftovers(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert not is_vacant(tmp_path)


def test_content_is_added_to_a_folder_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with adding_to(folder, last="b") as partial:
        (partial / "b").write_text("b")
    assert (folder / "b").read_text() == "b"
    with adding_to(folder, last="d") as partial:
        (partial / "c").mkdir()
        (partial / "d").write_text("d")
    assert sorted(path.name for path in folder.iterdir()) == ["b", "c", "d"]

    def replace_b() -> None:
        with adding_to(folder, last="e") as partial:
            (partial / "e").write_text("e")
            (partial / "b").write_text("other")

    with pytest.raises(InvalidInput, match="it already has b"):
        replace_b()
    assert sorted(path.name for path in folder.iterdir()) == ["b", "c", "d"]
    assert (folder / "b").read_text() == "b"


def test_a_growing_file_gets_all_of_an_addition_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\nhal")
    file = GrowingFile(path, 4)
    file.append(b"two\n")
    with full_after(0), pytest.raises(OSError, match="No space left"):
        file.append(b"three\n")
    assert path.read_bytes() == b"one\ntwo\n"
    file.append(b"four\n")
    file.close()
    assert path.read_bytes() == b"one\ntwo\nfour\n"
