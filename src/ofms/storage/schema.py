"""Convert values from files and messages to typed records; an error names the field, the value and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from ofms.core.choices import choices_in, members_of, remedy_for, suggest
from ofms.core.declared import allowed_values
from ofms.core.errors import InvalidInput
from ofms.storage.typed import from_values

T = TypeVar("T")
_MISSING = re.compile(r"Object missing required field `(.+)`")
_OTHER_TYPE = re.compile(r"Expected `[^`]+`, got `[^`]+`")
_TYPES = {
    bool: "true or false",
    int: "a whole number",
    float: "a decimal number",
    str: "text",
    list: "a list",
    tuple: "a list",
    dict: "a table",
}
_STEP = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")


def convert(values: Any, kind: type[T]) -> T:
    """Convert plain values to a record of `kind`; raises `InvalidInput`.

    >>> from dataclasses import make_dataclass
    >>> from typing import Literal
    >>> convert({"task": "both"}, make_dataclass("Job", [("task", Literal["one", "all"])]))
    Traceback (most recent call last):
    ...
    ofms.core.errors.InvalidInput: task = both: use one or all
    """
    _require_known_keys(values, kind, "")
    try:
        return from_values(values, kind)
    except msgspec.ValidationError as error:
        raise invalid_input(error, values, kind) from None


def invalid_input(error: msgspec.ValidationError, values: Any, kind: Any) -> InvalidInput:
    """Field, value and remedy from msgspec's message, such as "Expected `int`, got `str` - at `$.rounds`"."""
    reason, _, path = str(error).partition(" - at `$")
    steps = [match["key"] or match["index"] for match in _STEP.finditer(path.rstrip("`"))]
    annotation: Any = kind
    for step in steps:
        values, annotation = _value_at(values, step), _annotation_at(annotation, step)
    field = path.rstrip("`").removeprefix(".")
    if missing := _MISSING.fullmatch(reason):
        return InvalidInput(f"{field}.{missing[1]}".removeprefix("."), "…", "it is missing; give it a value")
    field = field or "configuration"
    shown = "…" if values is None or (not steps and isinstance(values, Mapping)) else values
    if choices_in(annotation):
        return InvalidInput(field, shown, remedy_for(annotation, values))
    if annotation is not None and _OTHER_TYPE.fullmatch(reason):
        words = allowed_values(annotation).removesuffix(", or none").removesuffix(" or none")
        found = _TYPES.get(type(values))
        return InvalidInput(field, shown, f"give {words}" if found is None else f"give {words}, not {found}")
    return InvalidInput(field, shown, reason[:1].lower() + reason[1:].replace("`", "'"))


def unknown_key(field: str, value: object, known: Iterable[str]) -> InvalidInput:
    """The error for a key that a record does not have: names the key that is meant, or all keys.

    >>> raise unknown_key("feature", "heat", ["file", "features"])
    Traceback (most recent call last):
    ...
    ofms.core.errors.InvalidInput: feature = heat: unknown key 'feature'; did you mean 'features'? use file or features
    """
    key = field.rpartition(".")[2]
    return InvalidInput(field, value, f"unknown key {key!r}; {suggest(key, known)}")


def _require_known_keys(values: Any, kind: Any, place: str) -> None:
    """Reject unknown keys of a record and of the records in it, which msgspec would ignore in dataclasses."""
    for member in members_of(kind):
        _require_known_keys(values, member, place)
    if get_origin(kind) is list and isinstance(values, list):
        for index, value in enumerate(values):
            _require_known_keys(value, get_args(kind)[0], f"{place.removesuffix('.')}[{index}].")
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and not kind.__struct_config__.forbid_unknown_fields:
        return
    if not isinstance(values, Mapping) or not _is_record(kind):
        return
    hints = get_type_hints(kind)
    for key, value in values.items():
        if key not in hints:
            raise unknown_key(f"{place}{key}" or "(no name)", value, hints)
        _require_known_keys(value, hints[key], f"{place}{key}.")


def _is_record(kind: Any) -> bool:
    return is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct))


def _value_at(values: Any, step: str) -> Any:
    if isinstance(values, Mapping):
        return values.get(step)
    if isinstance(values, list | tuple) and step.isdigit() and int(step) < len(values):
        return values[int(step)]
    return None


def _annotation_at(annotation: Any, step: str) -> Any:
    """The annotation one step down; None if it is unknown."""
    for member in members_of(annotation):
        found = _annotation_at(member, step)
        if found is not None:
            return found
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if _is_record(annotation):
        return get_type_hints(annotation, include_extras=True).get(step)
    arguments = get_args(annotation)
    if get_origin(annotation) in (dict, Mapping):
        return arguments[1]
    return arguments[0] if arguments else None
