"""`dictionary.json`: the index of a dictionary's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from ofms.core.errors import InvalidInput
from ofms.storage.files import write_whole
from ofms.storage.parsing import parse_json
from ofms.storage.schema import convert

FORMAT = "ofms-dictionary/1"
INDEX = "dictionary.json"
Task = Literal["classification", "regression"]


class ModelEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A model in `dictionary.json`; costs in bytes, by default those of its tensors."""

    name: str
    architecture: str
    options: dict[str, Any]
    file: str
    storage: int | None = None
    upload: int | None = None
    trainable: list[str] | None = None


class Index(msgspec.Struct, forbid_unknown_fields=True):
    """The content of `dictionary.json`."""

    format: str
    task: Task
    models: list[ModelEntry]


def read_index(folder: Path) -> Index:
    """Read and check the index of a dictionary's folder."""
    path = folder / INDEX
    try:
        content = path.read_bytes()
    except OSError as error:
        remedy = f"it has no readable dictionary ({INDEX}: {error.strerror}); name another folder"
        raise InvalidInput("models", folder, remedy) from None
    try:
        values = parse_json(content, object)
    except ValueError as error:
        raise InvalidInput("models", path, f"fix the file: {error}") from None
    found = values.get("format") if isinstance(values, dict) else None
    if isinstance(found, str) and found != FORMAT:
        raise InvalidInput("format", found, f"{path}: this version reads only {FORMAT}")
    try:
        return convert(values, Index)
    except InvalidInput as error:
        raise InvalidInput("models", path, f"fix the file: {error}") from None


def write_index(folder: Path, task: Task, models: list[ModelEntry]) -> None:
    """Write the index of a dictionary's folder."""
    index = msgspec.json.encode(Index(FORMAT, task, models))
    write_whole(folder / INDEX, msgspec.json.format(index, indent=1) + b"\n")
