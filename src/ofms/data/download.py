"""Downloading datasets from their own hosts: complete and verified, or not at all."""

from __future__ import annotations

import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ofms.core.errors import InvalidInput
from ofms.data.folder import cache_folder, data_folder
from ofms.storage.files import require_writable, write_whole

_SECONDS_WITHOUT_A_RESPONSE = 60


@dataclass(frozen=True)
class Archive:
    """A zip, tar or gzip archive on the web.

    Attributes
    ----------
    url
        Ends with the format: `.zip`, `.tar.gz`, or `.gz` for a single file.
    md5
        None where the host publishes none; such an archive is not kept in the cache.
    """

    url: str
    md5: str | None = None

    def fetch(self) -> dict[str, bytes]:
        """Download and unpack it: the content of every file by its path; archives in the archive are unpacked too."""
        cache = cache_folder() / "downloads"
        require_writable(cache)
        # Unpacked where it is removed again: a damaged archive leaves no files behind. An archive without MD5 is
        # removed with it: an error page in its place must not be found in the cache the next time.
        with tempfile.TemporaryDirectory(dir=cache, prefix=".unpack-") as scratch:
            archive = self._download(Path(scratch) if self.md5 is None else cache)
            folder = Path(scratch) / "files"
            folder.mkdir()
            try:
                _unpack(archive, folder)
            except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, tarfile.TarError, zlib.error) as error:
                remedy = f"it is not a whole archive ({type(error).__name__}); try again"
                raise InvalidInput("data", self.url, remedy) from None
            files = (path for path in folder.rglob("*") if path.is_file())
            return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    def _download(self, folder: Path) -> Path:
        """The archive in `folder`; downloaded unless it is there with its MD5."""
        try:
            import pooch
        except ImportError:
            raise InvalidInput("data", self.url, "fetching it needs pooch: pip install 'ofms[experiments]'") from None
        pooch.get_logger().setLevel("ERROR")
        responses: list[Any] = []
        downloader = pooch.HTTPDownloader(
            progressbar=True,
            timeout=_SECONDS_WITHOUT_A_RESPONSE,
            hooks={"response": lambda response, **more: responses.append(response)},
        )
        known, name = None if self.md5 is None else f"md5:{self.md5}", self.url.rpartition("/")[2]
        try:
            return Path(pooch.retrieve(self.url, known, fname=name, path=folder, downloader=downloader))
        except ValueError:
            raise InvalidInput("data", self.url, f"what came is not the published file (MD5 {self.md5})") from None
        except OSError as error:
            remedy = f"it cannot be fetched ({_reason(error)}); put the files into {data_folder()} by hand"
            raise InvalidInput("data", self.url, remedy) from None
        finally:
            # Pooch leaves the connection of an incomplete or rejected response open.
            for response in responses:
                response.close()


def fetch_files(
    folder: Path,
    names: Iterable[str],
    require: Callable[[str, bytes], object],
    sources: Callable[[], Mapping[str, bytes]],
) -> None:
    """Download the files that are missing or damaged in `folder`; all of them are verified before one is written.

    Parameters
    ----------
    names
        Their paths in `folder`.
    require
        Rejects a file's content that is not the expected one.
    sources
        Downloads and unpacks: the content of each file, by a path that ends with its name.
    """
    missing = [name for name in names if not _is_whole(folder / name, partial(require, name))]
    if not missing:
        return
    contents = {name: content for path, content in sources().items() for name in missing if _ends_with(path, name)}
    for name in missing:
        if name not in contents:
            raise InvalidInput("data", name, "the archive that was fetched does not hold it; its host changed it")
        require(name, contents[name])
    for name in missing:
        require_writable((folder / name).parent)
        write_whole(folder / name, contents[name])


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive into an empty folder, with the zip archives inside it."""
    import pooch

    # Pooch takes paths relative to that of the archive.
    target = folder.relative_to(archive.parent).as_posix()
    if archive.name.endswith(".zip"):
        pooch.Unzip(extract_dir=target)(str(archive), "download", None)
    elif archive.name.endswith(".tar.gz"):
        pooch.Untar(extract_dir=target)(str(archive), "download", None)
    else:
        pooch.Decompress(name=f"{target}/{archive.stem}")(str(archive), "download", None)
    for inner in [path for path in folder.rglob("*.zip") if path.is_file()]:
        inside = inner.with_name(f"{inner.name}.files")
        inside.mkdir()
        _unpack(inner, inside)
        inner.unlink()


def _ends_with(path: str, name: str) -> bool:
    return f"/{path}".endswith(f"/{name}")


def _is_whole(path: Path, require: Callable[[bytes], object]) -> bool:
    try:
        require(path.read_bytes())
    except (OSError, InvalidInput):
        return False
    return True


def _reason(error: OSError) -> str:
    """The status of the response, or the last part of the message, where the libraries below put the cause."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"{response.status_code} {response.reason}"
    return str(error).rpartition(": ")[2].strip("()'\" ") or type(error).__name__
