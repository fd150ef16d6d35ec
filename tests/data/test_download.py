"""Downloads from a local server: complete and verified, or nothing."""

from __future__ import annotations

import gc
import gzip
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from ofms.core.errors import InvalidInput
from ofms.data import mnist
from ofms.data.download import Archive, fetch_files
from ofms.data.folder import VerifiedFiles, md5_of


def zipped(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


CONTENT = np.random.default_rng(0).bytes(3000)
ARCHIVES = {
    "/batches.gz": gzip.compress(CONTENT),
    "/batches.zip": zipped({"folder/": b"", "data.zip": zipped({"folder/Perth_Data.csv": CONTENT}), "folder/a": b"1"}),
    "/batches.tar.gz": tarred({"folder/batch.bin": CONTENT}),
}
FILES = {
    "/batches.gz": {"batches": CONTENT},
    "/batches.zip": {"data.zip.files/folder/Perth_Data.csv": CONTENT, "folder/a": b"1"},
    "/batches.tar.gz": {"folder/batch.bin": CONTENT},
}


class Host(BaseHTTPRequestHandler):
    """Serves the archives; under /cut/ it breaks off, under /damaged/ it serves the first half."""

    def do_GET(self) -> None:
        name = f"/{self.path.rpartition('/')[2]}"
        if name not in ARCHIVES:
            self.send_error(404)
            return
        content = ARCHIVES[name]
        if self.path.startswith("/damaged/"):
            content = content[: len(content) // 2]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:-50] if self.path.startswith("/cut/") else content)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def host() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def open_connections() -> set[int]:
    """Ids of the TCP sockets of this process that are still open."""
    # By type(): `isinstance` runs code of lazy objects.
    sockets = [each for each in gc.get_objects() if issubclass(type(each), socket.socket)]
    return {id(each) for each in sockets if each.fileno() != -1 and each.proto == socket.IPPROTO_TCP}


def files_in(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_is_downloaded_once_and_unpacked(host: str, name: str, tmp_path: Path) -> None:
    md5 = md5_of(ARCHIVES[name])
    assert Archive(f"{host}{name}", md5).fetch() == FILES[name]
    gone = Archive(f"{host.rpartition(':')[0]}:9{name}", md5)
    assert gone.fetch() == FILES[name], "the cache has it"
    assert files_in(tmp_path / "cache") == [name[1:]], "unpacked files are not kept in the cache"


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_without_md5_is_downloaded_anew(host: str, name: str, tmp_path: Path) -> None:
    """An error page in place of the archive must not be found in the cache the next time."""
    assert Archive(f"{host}{name}").fetch() == FILES[name]
    assert not files_in(tmp_path / "cache")


@pytest.mark.parametrize(
    ("path", "md5", "message"),
    [
        ("batches.gz", "0" * 32, "not the published one"),
        ("absent.zip", None, r"cannot be downloaded .*404"),
        ("cut/batches.zip", None, "cannot be downloaded"),
        *((f"damaged{name}", None, "not a complete archive") for name in ARCHIVES),
    ],
)
def test_an_incomplete_archive_is_refused_in_one_line(
    host: str, path: str, md5: str | None, message: str, tmp_path: Path
) -> None:
    before = open_connections()
    with pytest.raises(InvalidInput, match=message) as refusal:
        Archive(f"{host}/{path}", md5).fetch()
    assert len(str(refusal.value).splitlines()) == 1
    assert str(tmp_path / "cache" / "ofms" / "downloads") not in str(refusal.value), "no temporary path is shown"
    assert not files_in(tmp_path / "cache"), "nothing half-written"
    assert open_connections() <= before, "no connection is left open"


def test_a_damaged_archive_inside_an_archive_is_refused(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = zipped({"Perth_Data.csv": CONTENT})
    monkeypatch.setitem(ARCHIVES, "/outer.zip", zipped({"a.csv": b"1", "data.zip": inner[: len(inner) // 2]}))
    with pytest.raises(InvalidInput, match=r"outer\.zip: it is not a complete archive"):
        Archive(f"{host}/outer.zip").fetch()
    assert not files_in(tmp_path / "cache")


def test_an_unreachable_host_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"127\.0\.0\.1:9/file\.gz: it cannot be downloaded .*; copy the files to"):
        Archive("http://127.0.0.1:9/file.gz").fetch()


def test_files_are_written_only_if_all_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFMS_DATA", str(tmp_path))
    files = VerifiedFiles("data", {"a": md5_of(b"one"), "b": md5_of(b"two")})

    def fetch(sources: Callable[[], dict[str, bytes]]) -> None:
        fetch_files(files.folder, files.md5, files.require, sources)

    with pytest.raises(InvalidInput, match="its MD5 is"):
        fetch(lambda: {"a": b"one", "b": b"changed"})
    with pytest.raises(InvalidInput, match="does not contain it"):
        fetch(lambda: {"a": b"one"})
    assert not files.folder.exists()
    fetch(lambda: {"folder/a": b"one", "not-a": b"other", "deep/folder/b": b"two"})
    fetch(lambda: pytest.fail("all of it is there"))
    (files.folder / "b").write_bytes(b"damaged")
    fetch(lambda: {"a": b"one", "b": b"two"})
    assert files.read("b") == b"two"


def test_mnist_with_other_content_is_refused(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFMS_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(mnist, "_HOST", f"{host}/")
    monkeypatch.setitem(ARCHIVES, "/train-images-idx3-ubyte.gz", gzip.compress(CONTENT))
    with pytest.raises(InvalidInput, match="not the published one"):
        mnist.dataset.fetch()
    assert not (tmp_path / "data").exists()


def test_mnist_is_downloaded_and_unpacked(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFMS_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(mnist, "_HOST", f"{host}/")
    names = list(mnist._FILES.md5)
    contents = {name: name.encode() for name in names}
    packed = {name: gzip.compress(content) for name, content in contents.items()}
    for name in names:
        monkeypatch.setitem(ARCHIVES, f"/{name}.gz", packed[name])
    monkeypatch.setattr(mnist, "_FILES", VerifiedFiles("mnist", {name: md5_of(contents[name]) for name in names}))
    monkeypatch.setattr(mnist, "_COMPRESSED_MD5", {name: md5_of(packed[name]) for name in names})
    mnist.dataset.fetch()
    assert {name: (tmp_path / "data" / "mnist" / name).read_bytes() for name in names} == contents
