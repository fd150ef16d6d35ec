"""Download datasets from their hosts: complete and verified, or not at all."""

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

_TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Archive:
    """A zip, tar or gzip archive on the web.

    Attributes
    ----------
    url
        Its suffix is the format: `.zip`, `.tar.gz`, or `.gz` for a single file.
    md5
        None if the host publishes none; such an archive is not cached.
    """

    url: str
    md5: str | None = None

    def fetch(self) -> dict[str, bytes]:
        """Download and unpack it: the content of every file by path; nested archives are unpacked too."""
        cache = cache_folder() / "downloads"
        require_writable(cache)
        # Unpacked into a temporary folder: a damaged archive leaves no files behind. An archive without MD5 is
        # downloaded there as well, so that an error page sent instead is never cached.
        with tempfile.TemporaryDirectory(dir=cache, prefix=".unpack-") as scratch:
            archive = self._download(Path(scratch) if self.md5 is None else cache)
            folder = Path(scratch) / "files"
            folder.mkdir()
            try:
                _unpack(archive, folder)
            except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, tarfile.TarError, zlib.error) as error:
                remedy = f"it is not a complete archive ({type(error).__name__}); try again"
                raise InvalidInput("data", self.url, remedy) from None
            files = (path for path in folder.rglob("*") if path.is_file())
            return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    def _download(self, folder: Path) -> Path:
        """Download the archive into `folder`, unless it is there with its MD5."""
        try:
            import pooch
        except ImportError:
            raise InvalidInput("data", self.url, "download requires pooch: pip install 'ofms[experiments]'") from None
        pooch.get_logger().setLevel("ERROR")
        responses: list[Any] = []
        downloader = pooch.HTTPDownloader(
            progressbar=True,
            timeout=_TIMEOUT_SECONDS,
            hooks={"response": lambda response, **more: responses.append(response)},
        )
        known, name = None if self.md5 is None else f"md5:{self.md5}", self.url.rpartition("/")[2]
        try:
            return Path(pooch.retrieve(self.url, known, fname=name, path=folder, downloader=downloader))
        except ValueError:
            remedy = f"the downloaded file is not the published one (MD5 {self.md5}); try again"
            raise InvalidInput("data", self.url, remedy) from None
        except OSError as error:
            remedy = f"it cannot be downloaded ({_reason(error)}); copy the files to {data_folder()}"
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
    """Download the files that are missing or damaged in `folder`; all are verified before any is written.

    Parameters
    ----------
    names
        Their paths in `folder`.
    require
        Raises if a file's content is not the expected one.
    sources
        Each downloads and unpacks an archive: file contents by paths that end with the names.
    """
    missing = [name for name in names if not _is_whole(folder / name, partial(require, name))]
    if not missing:
        return
    contents = {name: content for path, content in sources().items() for name in missing if _ends_with(path, name)}
    for name in missing:
        if name not in contents:
            raise InvalidInput("data", name, "the downloaded archive does not contain it; its host changed it")
        require(name, contents[name])
    for name in missing:
        require_writable((folder / name).parent)
        write_whole(folder / name, contents[name])


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive, and the zip archives inside it, into an empty folder."""
    import pooch

    # Pooch expects paths relative to the archive's folder.
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
    """The response's status, or the last part of the message, which names the cause."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"{response.status_code} {response.reason}"
    return str(error).rpartition(": ")[2].strip("()'\" ") or type(error).__name__
