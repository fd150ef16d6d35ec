"""Curves of the convex problem, stored next to the cells in files named after their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ofms.core.errors import InvalidInput
from ofms.reproduction.convex import ServerCurve
from ofms.runs.cell_file import content_key
from ofms.storage.files import require_writable, write_whole
from ofms.storage.parsing import parse_json


class _CurveFile(msgspec.Struct, frozen=True):
    regret: list[float]
    bound: float


class CurveStore:
    """Compute curves and store them in a folder.

    Parameters
    ----------
    run
        Whether missing curves are computed; otherwise they are left out.
    """

    def __init__(self, folder: Path, *, run: bool = True) -> None:
        self.folder, self.runs_missing = folder, run
        self.used: list[str] = []

    def find(self, name: str, made: Mapping[str, Any], compute: Callable[[], ServerCurve]) -> ServerCurve | None:
        """The curve for given inputs; None if it is missing and not to be computed."""
        path = self.folder / f"{name}-{content_key(made)}.json"
        if not path.exists():
            if not self.runs_missing:
                return None
            require_writable(self.folder)
            curve = compute()
            rounded = [float(f"{value:.5g}") for value in curve.regret]
            write_whole(path, msgspec.json.encode(_CurveFile(rounded, curve.bound)) + b"\n")
        try:
            found = parse_json(path.read_bytes(), _CurveFile)
        except ValueError as error:
            raise InvalidInput("cell", path, f"it is damaged ({error}); remove it and run it again") from None
        self.used.append(path.name)
        return ServerCurve(np.array(found.regret), found.bound)
