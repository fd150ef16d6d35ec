"""Results as pandas tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ofms.core.errors import InvalidInput

if TYPE_CHECKING:
    import pandas

    from ofms.runs.result import Result


def frame_of(result: Result, rows: Literal["clients", "rounds"]) -> pandas.DataFrame:
    """One row per client, by name if clients have names; or one row per round."""
    try:
        import pandas
    except ImportError:
        raise InvalidInput("to_pandas", rows, "it needs pandas: pip install 'ofms[experiments]'") from None
    if rows == "rounds":
        return pandas.DataFrame(result.rounds).set_index("round")
    if rows != "clients":
        raise InvalidInput("rows", rows, "use clients or rounds")
    columns = {name: values for name, values in result.clients.items() if values.ndim == 1}
    return pandas.DataFrame(columns, index=result.figures.get("client_names")).rename_axis("client")
