"""Fetching what a dataset needs from its own host: whole and checked, or not at all."""

from __future__ import annotations

import gzip
import io
import tarfile
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

_SECONDS_WITHOUT_AN_ANSWER = 60


@dataclass(frozen=True)
class Remote:
    """A file on the web; `md5` is None where its host publishes none and packs it anew."""

    url: str
    md5: str | None = None

    def fetch(self) -> bytes:
        """The file's bytes; from the cache where its MD5 is known and they are there already."""
        try:
            import pooch
        except ImportError:
            raise InvalidInput("data", self.url, "fetching it needs pooch: pip install 'ofms[experiments]'") from None
        pooch.get_logger().setLevel("ERROR")
        folder = cache_folder() / "downloads"
        require_writable(folder)
        answers: list[Any] = []
        downloader = pooch.HTTPDownloader(
            progressbar=True,
            timeout=_SECONDS_WITHOUT_AN_ANSWER,
            hooks={"response": lambda answer, **more: answers.append(answer)},
        )
        try:
            path = pooch.retrieve(
                self.url,
                known_hash=None if self.md5 is None else f"md5:{self.md5}",
                fname=self.url.rpartition("/")[2],
                path=folder,
                downloader=downloader,
            )
        except ValueError:
            raise InvalidInput("data", self.url, f"what came is not the published file (MD5 {self.md5})") from None
        except OSError as error:
            raise InvalidInput(
                "data", self.url, f"it cannot be fetched ({_reason(error)}); put the files into {data_folder()} by hand"
            ) from None
        finally:
            # Pooch leaves the connection of an answer open that breaks off or is refused.
            for answer in answers:
                answer.close()
        content = Path(path).read_bytes()
        if self.md5 is None:
            # Nobody can say whether it is whole: what turns out not to be must not be found here the next time.
            Path(path).unlink()
        return content


def _reason(error: OSError) -> str:
    """The libraries below wrap the reason in many words: the answer's status, or the last part."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"{response.status_code} {response.reason}"
    return str(error).rpartition(": ")[2].strip("()'\" ") or type(error).__name__


def fetch_files(
    folder: Path,
    names: Iterable[str],
    require: Callable[[str, bytes], object],
    sources: Callable[[], Mapping[str, bytes]],
) -> None:
    """Put the files that are missing or not whole into `folder`.

    Parameters
    ----------
    names
        Their paths in `folder`.
    require
        Refuses a file's content that is not what it should be.
    sources
        Fetches and unpacks: the content of each file.
    """
    missing = [name for name in names if not _is_whole(folder / name, partial(require, name))]
    if not missing:
        return
    contents = sources()
    for name in missing:
        if name not in contents:
            raise InvalidInput("data", name, "the archive that was fetched does not hold it; its host changed it")
        require(name, contents[name])
    for name in missing:
        require_writable((folder / name).parent)
        write_whole(folder / name, contents[name])


def ungzip(content: bytes, source: str) -> bytes:
    """The one file in a gzip archive."""
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput("data", source, f"it is not a whole gzip archive ({error}); try again") from None


def untar(content: bytes, source: str) -> dict[str, bytes]:
    """The files in a tar archive by their paths in it."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            members = [member for member in archive.getmembers() if member.isfile()]
            return {member.name: file.read() for member in members if (file := archive.extractfile(member))}
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise InvalidInput("data", source, f"it is not a whole tar archive ({error}); try again") from None


def unzip(content: bytes, source: str) -> dict[str, bytes]:
    """The files in a zip archive, and in archives inside it, by their bare names."""
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                if name.endswith(".zip"):
                    files |= unzip(archive.read(name), f"{source}, {name}")
                elif not name.endswith("/"):
                    files[Path(name).name] = archive.read(name)
    except (OSError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInput("data", source, f"it is not a whole zip archive ({error}); try again") from None
    return files


def _is_whole(path: Path, require: Callable[[bytes], object]) -> bool:
    try:
        require(path.read_bytes())
    except (OSError, InvalidInput):
        return False
    return True
