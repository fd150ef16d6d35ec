"""A stream from a user's file: CSV, Parquet, or NumPy's `.npz`."""

from __future__ import annotations

import csv
import math
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ofms.core.declared import Doc, Range, Values
from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray, Integers
from ofms.core.words import counted
from ofms.data.drift import Drift, drifting
from ofms.data.folder import md5_of
from ofms.data.stream import Stream, Task
from ofms.storage.archives import read_npz

_MOST_DROPPED = 0.1
_MOST_CLASSES = 2**31
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True)
class TableSource:
    """A file with a stream, and how to read it."""

    file: Annotated[
        str,
        Values("a .csv or .parquet table with one row per sample, or an .npz with x [N, T, ...], y [N, T], names [N]"),
        Doc("The file of samples, relative to the experiment's."),
    ]
    task: Annotated[Task, Doc("What the models predict.")]
    target: Annotated[str | None, Values("a column"), Doc("The column to predict.")] = None
    client: Annotated[
        str | None, Values("a column"), Doc("The column of clients, by name; each one's rows keep their order.")
    ] = None
    features: Annotated[
        tuple[str, ...] | None, Values("a list of columns"), Doc("The inputs, in order; none: all other columns.")
    ] = None
    site: Annotated[
        str | None, Values("a column"), Doc("The column of the clients' sites, which only drift needs.")
    ] = None
    most_dropped: Annotated[
        Annotated[float, Range(0, 1)] | None,
        Doc("The share of rows that may be dropped because clients have unequal numbers of them; none: a tenth."),
    ] = None

    def read(self, rounds: int | None = None) -> Stream:
        """Read the stream; all clients are cut to the length of the shortest.

        Parameters
        ----------
        rounds
            How many samples of each client will be used, if it is known. Rows after them do not count as dropped.
        """
        if self.most_dropped is not None and not 0 <= self.most_dropped <= 1:
            raise InvalidInput("stream.most_dropped", self.most_dropped, "give a share of the rows, from 0 to 1")
        path = Path(self.file)
        if not path.is_file():
            raise InvalidInput("stream.file", self.file, "there is no such file; paths are relative to the experiment")
        if path.suffix == ".npz":
            return self._from_arrays(path)
        if path.suffix not in (".csv", ".parquet"):
            raise InvalidInput("stream.file", self.file, "give a .csv, .parquet or .npz file")
        return self._from_table(path, rounds)

    def read_drifting(self, *, clients: int, rounds: int, seed: int, drift: Drift) -> Stream:
        """Read the stream of clients that move to the next sites, in alphabetical order."""
        if drift == "rotate":
            raise InvalidInput("drift", drift, "a table has no images; use another kind")
        if self.site is None or Path(self.file).suffix == ".npz":
            raise InvalidInput("drift", drift, "name the table's column of sites as stream.site, or leave drift out")
        stream = self.read(rounds)
        if rounds > stream.rounds or clients > stream.clients:
            return stream  # Too small, which the run rejects.
        concepts = _next_sites(self._sites())[:clients]
        return drifting(stream.part(stream.clients, rounds), concepts, drift, seed=seed)

    def _sites(self) -> list[str]:
        """The site of each client, in the order of clients."""
        path = Path(self.file)
        labels = self._labels(path, _read_table(path))
        sites = []
        for client, rows in self._groups(labels, labels).items():
            found = rows[self.site].unique()
            if len(found) != 1:
                raise InvalidInput("stream.site", self.site, f"client {client} has {len(found)} sites; give it one")
            sites.append(str(found[0]))
        if len(set(sites)) < 2:
            raise InvalidInput("stream.site", self.site, "all clients have the same site; drift needs two")
        return sites

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
            names = tuple(str(name) for name in arrays.get("names", np.array([])).ravel().tolist())
        except (KeyError, ValueError, OSError) as error:
            raise InvalidInput("stream.file", path, f"it needs arrays x and y of plain numbers ({error})") from None
        return _stream(x, y, self.task, names)

    def _from_table(self, path: Path, rounds: int | None) -> Stream:
        table = _read_table(path)
        features = self._features(table)
        labels = self._labels(path, table)
        numbers = list(dict.fromkeys((self.target, *features)))
        for name in numbers:
            if table[name].dtype.kind not in "fiub":
                raise InvalidInput(f"column {name}", table[name].dtype, "it must be numeric; leave it out or encode it")
        for values in [*(table[name] for name in numbers), *(labels[name] for name in labels)]:
            if values.isna().any():
                row = int(values.isna().to_numpy().argmax())
                raise InvalidInput(f"column {values.name}", "missing", f"row {row + 1} has no value; drop or fill it")
        # Booleans beside other numbers, and integers that may be missing, would become Python objects.
        table = table.astype({name: _plain(table[name].dtype) for name in numbers})
        groups = self._groups(table, labels)
        lengths = {name: len(rows) for name, rows in groups.items()}
        length = min(lengths.values())
        warning = None
        if rounds is None or rounds >= length:
            # A run whose length was not given has that of the shortest client, and says what it drops.
            warning = self._dropped_rows(lengths, refused=rounds != length)
        x = np.stack([rows[list(features)].to_numpy()[:length] for rows in groups.values()])
        y = np.stack([rows[self.target].to_numpy()[:length] for rows in groups.values()])
        return _stream(x, y, self.task, tuple(groups), () if warning is None else (warning,))

    def _labels(self, path: Path, table: Any) -> Any:
        """The columns of clients and sites; of a CSV file as text, so that no two names become one number."""
        columns = list(dict.fromkeys(name for name in (self.client, self.site) if name is not None))
        if path.suffix != ".csv":
            return table[columns]
        return _read_csv(path, usecols=columns, dtype=str, keep_default_na=False, na_values=[""])

    def _groups(self, table: Any, labels: Any) -> dict[str, Any]:
        """The rows of each client by name, in the order of clients; rejects two clients with the same name."""
        try:
            found = [(str(name), rows) for name, rows in table.groupby(labels[self.client], sort=True)]
        except (TypeError, ValueError, NotImplementedError) as error:
            remedy = f"its rows cannot be grouped ({error}); name clients by text or whole numbers"
            raise InvalidInput("stream.client", self.client, remedy) from None
        groups = dict(found)
        if len(groups) < len(found):
            twice = next(name for name in groups if sum(name == each for each, _ in found) > 1)
            raise InvalidInput(f"column {self.client}", twice, "two clients have this name as text; rename one of them")
        if Path(self.file).suffix == ".csv" and all(map(_NUMBER.fullmatch, groups)):
            return dict(sorted(groups.items(), key=lambda each: (float(each[0]), each[0])))
        return groups

    def _features(self, table: Any) -> tuple[str, ...]:
        """The columns of the inputs; rejects columns that are missing, repeated, or used twice."""
        if self.target is None or self.client is None:
            missing = "target" if self.target is None else "client"
            raise InvalidInput(f"stream.{missing}", None, f"name the column; the file has {_names(table)}")
        features = self.features
        if features is None:
            features = tuple(name for name in table.columns if name not in (self.target, self.client, self.site))
        elif not features:
            raise InvalidInput("stream.features", "[]", "name at least one column, or leave it out for all others")
        columns = [("target", self.target), ("client", self.client), *(("features", each) for each in features)]
        columns += [] if self.site is None else [("site", self.site)]
        used: dict[str, str] = {}
        for field, name in columns:
            if name not in table.columns:
                raise InvalidInput(f"stream.{field}", name, f"the file has no such column; it has {_names(table)}")
            before = used.setdefault(name, field)
            if before != field and "target" in (before, field):
                raise InvalidInput(f"stream.{field}", name, f"it is the {before} already; name another column")
        twice = [name for name in features if features.count(name) > 1]
        if twice:
            raise InvalidInput("stream.features", twice[0], "it occurs twice; name it once")
        if not features:
            raise InvalidInput("stream.features", "none", f"the file has no other columns than {_names(table)}")
        return features

    def _dropped_rows(self, lengths: dict[str, int], *, refused: bool) -> str | None:
        """A warning about rows that are dropped because clients have unequal numbers of them, or a refusal."""
        shortest = min(lengths, key=lambda name: lengths[name])
        total = sum(lengths.values())
        dropped = total - len(lengths) * lengths[shortest]
        if not dropped:
            return None
        found = f"{dropped} of {total} rows: clients have {lengths[shortest]} ({shortest}) to {max(lengths.values())}"
        most = _MOST_DROPPED if self.most_dropped is None else self.most_dropped
        if refused and dropped > most * total:
            share = math.ceil(100 * dropped / total) / 100
            fewer = counted(lengths[shortest], "round")
            remedy = f"remove or complete clients, request at most {fewer}, or allow it with most_dropped = {share}"
            raise InvalidInput("stream.file", self.file, f"it would drop {found}; {remedy}")
        return f"the stream drops {found}"


def _next_sites(sites: list[str]) -> Integers:
    """[N, C] for each client, itself and a client of each of the next sites, at most three in all.

    >>> _next_sites(["a", "b", "a"]).tolist()
    [[0, 1], [1, 0], [2, 1]]
    """
    names = sorted(set(sites))
    members = [[client for client, site in enumerate(sites) if site == name] for name in names]
    concepts = []
    for client, site in enumerate(sites):
        own = names.index(site)
        rank = members[own].index(client)
        others = [members[(own + step) % len(names)] for step in range(1, min(3, len(names)))]
        concepts.append([client, *(each[rank % len(each)] for each in others)])
    return np.array(concepts)


def _read_table(path: Path) -> Any:
    try:
        import pandas
    except ImportError:
        raise InvalidInput("stream.file", path, "it requires pandas: pip install 'ofms[experiments]'") from None
    try:
        if path.suffix == ".csv":
            table = _read_csv(path)
            # A first row longer than the header fails here; otherwise its first fields would name the rows, and the
            # others be read under the wrong columns.
            _read_csv(path, header=None, nrows=2, dtype=str)
        else:
            table = pandas.read_parquet(path)
    except ImportError:
        raise InvalidInput("stream.file", path, "Parquet requires pyarrow: pip install 'ofms[parquet]'") from None
    except (ValueError, OSError) as error:
        longer = _longer_row(path) if path.suffix == ".csv" else None
        if longer is not None:
            raise InvalidInput(
                "stream.file", path, f"{longer}; remove the fields, or name them in the header"
            ) from None
        reason = str(error).splitlines()[0]
        raise InvalidInput("stream.file", path, f"it cannot be read as {path.suffix[1:]} ({reason})") from None
    if len(table.columns) == 1 and any(mark in str(table.columns[0]) for mark in ";\t|"):
        raise InvalidInput("stream.file", path, "it has one column; separate columns by commas")
    twice = (
        _repeated_column(path) if path.suffix == ".csv" else next(iter(table.columns[table.columns.duplicated()]), None)
    )
    if twice is not None:
        raise InvalidInput("stream.file", path, f"column {twice} occurs twice; rename or remove one of them")
    if len(table) == 0:
        raise InvalidInput("stream.file", path, "it has no rows; give at least one sample per client")
    return table


def _read_csv(path: Path, **options: Any) -> Any:
    import pandas

    return pandas.read_csv(path, low_memory=False, **options)


def _longer_row(path: Path) -> str | None:
    """Where the first row with more fields than the header is; None if there is none that can be read."""
    with suppress(ValueError, OSError, csv.Error), path.open(encoding="utf-8-sig", newline="") as file:
        reader, header = csv.reader(file), 0
        for row in reader:
            header = header or len(row)
            if len(row) > header:
                return f"line {reader.line_num} has {len(row)} fields, and the header {header}"
    return None


def _plain(kind: Any) -> Any:
    """The NumPy type of a numeric column; small integers instead of booleans.

    >>> _plain(np.dtype("bool")), _plain(np.dtype("float32"))
    (dtype('int8'), dtype('float32'))
    """
    plain = np.dtype(getattr(kind, "numpy_dtype", kind))
    return np.dtype(np.int8) if plain.kind == "b" else plain


def _repeated_column(path: Path) -> str | None:
    """A column name that occurs twice in the first line of a CSV file; pandas would rename the second one."""
    names = _read_csv(path, header=None, nrows=1, dtype=str).iloc[0].dropna().tolist()
    return next((name for name in names if names.count(name) > 1), None)


def _names(table: Any) -> str:
    return ", ".join(str(name) for name in list(table.columns)[:12])


def _stream(
    x: AnyArray, y: AnyArray, task: Task, names: tuple[str, ...] = (), warnings: tuple[str, ...] = ()
) -> Stream:
    if x.dtype.kind not in "fiub" or y.dtype.kind not in "fiub":
        raise InvalidInput("stream", f"{x.dtype}, {y.dtype}", "inputs and targets must be numbers")
    if task == "classification":
        values = y.astype(np.float64)
        wrong = ~((values == np.floor(values)) & (values >= 0) & (values < _MOST_CLASSES))
        if wrong.any():
            raise InvalidInput("stream targets", f"{values[wrong][0]:.12g}", "classes must be integers from 0")
        y = y.astype(np.int64)
    stream = Stream(x, y, task, names=names, warnings=warnings)
    stream.require_sound()
    return replace(
        stream, x=x.astype(np.float32, copy=False), y=y if task == "classification" else y.astype(np.float32)
    )
