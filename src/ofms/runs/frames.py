"""Results as pandas tables and CSV files, with clients and models by name."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ofms.core.errors import InvalidInput
from ofms.core.typing import AnyArray
from ofms.storage.files import write_whole

if TYPE_CHECKING:
    import pandas

    from ofms.runs.result import Result

Rows = Literal["clients", "rounds", "models", "weights"]
# Arrays by client and model, and what their columns are called.
_BY_MODEL = {"held_share": "held_share", "prediction_share": "weight", "model_score": "score_alone"}


def frame_of(result: Result, rows: Rows) -> pandas.DataFrame:
    """A table indexed by client, by round, by model, or by client and model."""
    try:
        import pandas
    except ImportError:
        raise InvalidInput("to_pandas", rows, "it needs pandas: pip install 'ofms[experiments]'") from None
    index, columns = _columns(result, rows)
    return pandas.DataFrame(index | columns).set_index(list(index))


def write_csv(result: Result, path: Path, rows: Rows) -> None:
    """The same as a CSV file, with numbers in full precision."""
    index, columns = _columns(result, rows)
    table, text = index | columns, io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(values.tolist() for values in table.values()), strict=True))
    write_whole(path, text.getvalue().encode())


def _columns(result: Result, rows: Rows) -> tuple[dict[str, AnyArray], dict[str, AnyArray]]:
    """The columns that index a table, and its other columns."""
    # Clients without names are numbers.
    clients: AnyArray = np.array(result.figures.get("client_names") or range(len(result.score)))
    if rows == "rounds":
        columns = dict(result.rounds)
        return {"round": columns.pop("round")}, columns
    if rows == "clients":
        return {"client": clients}, {name: values for name, values in result.clients.items() if values.ndim == 1}
    if rows not in ("models", "weights"):
        raise InvalidInput("rows", rows, "use clients, rounds, models or weights")
    if "models" not in result.figures:
        raise InvalidInput("rows", rows, "a cell stores nothing by model; run its command to get a folder")
    models: AnyArray = np.array(result.figures["models"])
    shares = {title: result.clients[name] for name, title in _BY_MODEL.items() if name in result.clients}
    if rows == "models":
        members = result.took_part
        return {"model": models}, {title: values[members].mean(axis=0) for title, values in shares.items()}
    index = {"client": np.repeat(clients, len(models)), "model": np.tile(models, len(clients))}
    return index, {title: values.reshape(-1) for title, values in shares.items()}
