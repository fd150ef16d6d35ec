"""A stream from a user's file: CSV, Parquet, or NumPy's `.npz`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray
from ofms.data.folder import md5_of
from ofms.data.stream import Stream, Task
from ofms.storage.archives import read_npz


@dataclass(frozen=True)
class TableSource:
    """A file with a stream, and how to read it.

    Attributes
    ----------
    file
        A `.csv` or `.parquet` table with one row per sample, or an `.npz` with arrays `x` [N, T, ...] and `y` [N, T].
    task
        `classification` or `regression`.
    target
        The column to predict.
    client
        The column of clients; each client's rows come in the order of the file.
    features
        The columns of the inputs, in order; by default all other columns.
    """

    file: str
    task: Task
    target: str | None = None
    client: str | None = None
    features: tuple[str, ...] | None = None

    def read(self) -> Stream:
        """Read the stream; all clients are cut to the length of the shortest."""
        path = Path(self.file)
        if not path.is_file():
            raise InvalidInput("stream.file", self.file, "there is no such file; paths are relative to the experiment")
        if path.suffix == ".npz":
            return self._from_arrays(path)
        if path.suffix not in (".csv", ".parquet"):
            raise InvalidInput("stream.file", self.file, "give a .csv, .parquet or .npz file")
        return self._from_table(path)

    def fingerprint(self) -> str:
        """MD5 of the file's content."""
        try:
            return md5_of(Path(self.file).read_bytes())
        except OSError as error:
            raise InvalidInput("stream.file", self.file, f"it cannot be read ({error.strerror})") from None

    def _from_arrays(self, path: Path) -> Stream:
        try:
            arrays = read_npz(path)
            x, y = arrays["x"], arrays["y"]
        except (KeyError, ValueError, OSError) as error:
            raise InvalidInput("stream.file", path, f"it needs arrays x and y of plain numbers ({error})") from None
        return _stream(x, y, self.task)

    def _from_table(self, path: Path) -> Stream:
        table = _read_table(path)
        if self.target is None or self.client is None:
            missing = "target" if self.target is None else "client"
            raise InvalidInput(f"stream.{missing}", None, f"name the column; the file has {_names(table)}")
        features = self.features or tuple(name for name in table.columns if name not in (self.target, self.client))
        columns = [("target", self.target), ("client", self.client), *(("features", each) for each in features)]
        for field, name in columns:
            if name not in table.columns:
                raise InvalidInput(f"stream.{field}", name, f"the file has no such column; it has {_names(table)}")
        for name in (*features, self.target, self.client):
            if name != self.client and table[name].dtype.kind not in "fiub":
                raise InvalidInput(f"column {name}", table[name].dtype, "it must be numeric; leave it out or encode it")
            if table[name].isna().any():
                row = int(table[name].isna().to_numpy().argmax())
                raise InvalidInput(f"column {name}", "missing", f"row {row + 1} has no value; drop or fill it")
        groups = [rows for _, rows in table.groupby(self.client, sort=True)]
        length = min(len(rows) for rows in groups)
        x = np.stack([rows[list(features)].to_numpy()[:length] for rows in groups])
        y = np.stack([rows[self.target].to_numpy()[:length] for rows in groups])
        return _stream(x, y, self.task)


def _read_table(path: Path) -> Any:
    try:
        import pandas
    except ImportError:
        raise InvalidInput("stream.file", path, "it requires pandas: pip install 'ofms[experiments]'") from None
    try:
        table = pandas.read_csv(path) if path.suffix == ".csv" else pandas.read_parquet(path)
    except ImportError:
        raise InvalidInput("stream.file", path, "Parquet requires pyarrow: pip install 'ofms[parquet]'") from None
    except (ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput("stream.file", path, f"it cannot be read as {path.suffix[1:]} ({reason})") from None
    if len(table) == 0:
        raise InvalidInput("stream.file", path, "it has no rows; give at least one sample per client")
    return table


def _names(table: Any) -> str:
    return ", ".join(str(name) for name in list(table.columns)[:12])


def _stream(x: AnyArray, y: AnyArray, task: Task) -> Stream:
    if x.dtype.kind not in "fiub" or y.dtype.kind not in "fiub":
        raise InvalidInput("stream", f"{x.dtype}, {y.dtype}", "inputs and targets must be numbers")
    if task == "classification":
        if (y != np.floor(y)).any():
            raise InvalidInput("stream targets", y.dtype, "classes must be integers from 0")
        y = y.astype(np.int64)
    stream = Stream(x.astype(np.float32), y if task == "classification" else y.astype(np.float32), task)
    stream.require_sound()
    return stream
