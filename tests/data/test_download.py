"""Fetching from a host that is really there: whole and checked, or nothing."""

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

import pytest

from ofms.core.errors import InvalidInput
from ofms.data import mnist
from ofms.data.download import Remote, fetch_files, ungzip, untar, unzip
from ofms.data.folder import VerifiedFiles, md5_of

CONTENT = b"sixteen wave energy converters" * 100


class Host(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/absent":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:-50] if self.path == "/half" else CONTENT)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


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
    """The ids of this process's client sockets that are not really closed."""
    # By type: asking some objects what class they are of makes them do things.
    sockets = [each for each in gc.get_objects() if issubclass(type(each), socket.socket)]
    return {id(each) for each in sockets if each.fileno() != -1 and each.proto == socket.IPPROTO_TCP}


def test_a_whole_file_arrives_once(host: str) -> None:
    remote = Remote(f"{host}/whole", md5_of(CONTENT))
    assert remote.fetch() == CONTENT
    gone = Remote(f"{host.rpartition(':')[0]}:9/whole", md5_of(CONTENT))
    assert gone.fetch() == CONTENT, "the cache has it"


@pytest.mark.parametrize(
    ("path", "md5", "message"),
    [
        ("whole", "0" * 32, "not the published file"),
        ("absent", None, "cannot be fetched .*404"),
        ("half", None, "cannot be fetched"),
    ],
)
def test_what_is_not_whole_is_refused_in_one_line(
    host: str, path: str, md5: str | None, message: str, tmp_path: Path
) -> None:
    before = open_connections()
    with pytest.raises(InvalidInput, match=message) as refusal:
        Remote(f"{host}/{path}", md5).fetch()
    assert len(str(refusal.value).splitlines()) == 1
    assert not [file for file in (tmp_path / "cache").rglob("*") if file.is_file()], "nothing half-written"
    assert open_connections() <= before, "nothing is left to the garbage collector"


def test_a_host_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"127\.0\.0\.1:9/file: it cannot be fetched .* by hand"):
        Remote("http://127.0.0.1:9/file").fetch()


def test_what_nobody_can_check_is_fetched_anew(host: str, tmp_path: Path) -> None:
    """A page that says "busy" in place of the archive must not be found in the cache the next time."""
    assert Remote(f"{host}/whole").fetch() == CONTENT
    assert not [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]


def test_files_are_written_only_when_all_of_them_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFMS_DATA", str(tmp_path))
    files = VerifiedFiles("data", {"a": md5_of(b"one"), "b": md5_of(b"two")})

    def fetch(sources: Callable[[], dict[str, bytes]]) -> None:
        fetch_files(files.folder, files.md5, files.require, sources)

    with pytest.raises(InvalidInput, match="its MD5 is"):
        fetch(lambda: {"a": b"one", "b": b"changed"})
    with pytest.raises(InvalidInput, match="does not hold it"):
        fetch(lambda: {"a": b"one"})
    assert not files.folder.exists()
    fetch(lambda: {"a": b"one", "b": b"two"})
    fetch(lambda: pytest.fail("all of it is there"))
    (files.folder / "b").write_bytes(b"damaged")
    fetch(lambda: {"a": b"one", "b": b"two"})
    assert files.read("b") == b"two"


def test_archives_are_unpacked_and_damaged_ones_refused() -> None:
    assert ungzip(gzip.compress(b"inside"), "x.gz") == b"inside"
    inner, outer, tar = io.BytesIO(), io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("folder/Perth_Data.csv", "1,2")
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("data.zip", inner.getvalue())
    assert unzip(outer.getvalue(), "x.zip") == {"Perth_Data.csv": b"1,2"}
    with tarfile.open(fileobj=tar, mode="w:gz") as packed:
        member = tarfile.TarInfo("folder/batch.bin")
        member.size = 3
        packed.addfile(member, io.BytesIO(b"abc"))
    assert untar(tar.getvalue(), "x.tar.gz") == {"folder/batch.bin": b"abc"}
    for unpack, content in ((ungzip, gzip.compress(b"inside")), (unzip, outer.getvalue()), (untar, tar.getvalue())):
        with pytest.raises(InvalidInput, match="not a whole"):
            unpack(content[: len(content) // 2], "x")


def test_mnist_comes_from_its_host_through_gzip(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that answers with something else is refused, and the data folder stays empty."""
    monkeypatch.setenv("OFMS_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(mnist, "_HOST", f"{host}/")
    with pytest.raises(InvalidInput, match="not the published file"):
        mnist.dataset.fetch()
    assert not (tmp_path / "data").exists()
