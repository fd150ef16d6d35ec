"""Inputs near valid ones: trees of values with changed keys and values, bytes with changed parts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import tomli_w
from hypothesis import strategies as st

Path = tuple[str | int, ...]

NUMBERS: list[Any] = [
    *(0, 1, -1, 2, 3, 7, 255, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**40, -(10**40)),
    *(0.5, -0.5, -0.0, 1.5, 1e-320, 1e20, 1e300, -1e300, float("nan"), float("inf"), float("-inf")),
]
TEXTS: list[Any] = [
    *("", " ", "none", "nan", "inf", "0", "-1", "1e400", "1e-400", "5%", "3:60%,5:40%", "a=1,*=2", "*", "tuned"),
    *("é", "\u202e", "a\nb", "a\rb", "\x1b[2J", "\u2028", "\x7f", "x" * 300, "9" * 5000, "%s%n{0}", "\U0001f600"),
    *("..", "../../up", "/etc/passwd", "a/b", "~", ".", "con", "os:system", "ofms.cli:main", "a.b:c", "-", "--help"),
]
OTHERS: list[Any] = [None, True, False, [], {}, [[]], [None], {"": {}}, {"a": 1}, [1, 2, 3], ["a"], [0.5] * 40]
VALUES: st.SearchStrategy[Any] = (
    st.sampled_from(NUMBERS)
    | st.sampled_from(TEXTS)
    | st.sampled_from(OTHERS).map(copy.deepcopy)
    | st.integers(-20, 20)
    | st.floats(width=32)
    | st.text(max_size=8)
)


def paths_of(tree: Any, path: Path = ()) -> list[Path]:
    """The paths of all values in a tree of dictionaries and lists, without the tree itself."""
    entries: Sequence[tuple[str | int, Any]] = ()
    if isinstance(tree, dict):
        entries = list(tree.items())
    elif isinstance(tree, list):
        entries = list(enumerate(tree))
    return [each for key, value in entries for each in [(*path, key), *paths_of(value, (*path, key))]]


def value_at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree


@st.composite
def mutated(draw: st.DrawFn, tree: Any, *, most: int = 3, values: st.SearchStrategy[Any] = VALUES) -> Any:
    """A tree with one to some changes: of values, types, keys and the lengths of lists."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, most))):
        paths = paths_of(tree)
        if not paths:
            return tree
        *head, key = draw(st.sampled_from(paths))
        parent = value_at(tree, tuple(head))
        _change(draw, parent, key, values)
    return tree


def _change(draw: st.DrawFn, parent: Any, key: Any, values: st.SearchStrategy[Any]) -> None:
    kind = draw(st.sampled_from(["replace", "replace", "near", "drop", "rename", "add", "copy", "wrap"]))
    value = parent[key]
    if kind == "replace":
        parent[key] = draw(values)
    elif kind == "near":
        parent[key] = draw(near(value))
    elif kind == "drop":
        del parent[key]
    elif kind == "wrap":
        kinds = [[value], {str(key): value}, str(value), [value, copy.deepcopy(value)]]
        parent[key] = draw(st.sampled_from(kinds))
    elif isinstance(parent, list):
        place = draw(st.integers(0, len(parent)))
        parent.insert(place, draw(values) if kind == "add" else copy.deepcopy(value))
    elif kind == "rename":
        parent[draw(misspelt(key))] = parent.pop(key)
    elif kind == "add":
        parent[draw(misspelt(key) | st.text(max_size=6))] = draw(values)
    else:
        parent[draw(st.sampled_from(list(parent)))] = copy.deepcopy(value)


def near(value: Any) -> st.SearchStrategy[Any]:
    """A value of the same type, or the next one."""
    if isinstance(value, bool):
        return st.sampled_from([not value, int(value), str(value)])
    if isinstance(value, int):
        return st.sampled_from([value + 1, value - 1, -value, float(value), 10 * value, str(value)]) | st.integers()
    if isinstance(value, float):
        return st.sampled_from([-value, 1e6 * value, 1 + value, str(value)]) | st.floats()
    if isinstance(value, str):
        return misspelt(value) | st.sampled_from([value.upper(), f" {value}", f"{value}\n", f"{value}\0", value * 3])
    if isinstance(value, list):
        return st.sampled_from([value[::-1], value[1:], value * 2, value[:1]]).map(copy.deepcopy)
    return VALUES


def misspelt(word: str) -> st.SearchStrategy[str]:
    """A word with a letter left out, repeated, swapped or changed."""
    word = word or "a"

    def change(given: tuple[int, str]) -> str:
        place, kind = given
        before, letter, after = word[:place], word[place], word[place + 1 :]
        changed = {"drop": after, "repeat": letter * 2 + after, "swap": after[:1] + letter + after[1:]}
        return before + changed.get(kind, "x" + after)

    return st.tuples(st.integers(0, len(word) - 1), st.sampled_from(["drop", "repeat", "swap", "other"])).map(change)


@st.composite
def mutated_bytes(draw: st.DrawFn, content: bytes, *, most: int = 3) -> bytes:
    """Bytes that are cut off, with flipped bits, and with parts left out, repeated or replaced."""
    for _ in range(draw(st.integers(1, most))):
        # The beginning of a file decides how the rest is read.
        place = draw(st.integers(0, len(content)) | st.integers(0, min(64, len(content))))
        length = draw(st.integers(0, 16))
        part, after = content[place : place + length], content[place + length :]
        kind = draw(st.sampled_from(["cut", "flip", "drop", "repeat", "replace", "number"]))
        if kind == "cut":
            content = content[:place]
        elif kind == "flip":
            bit = 1 << draw(st.integers(0, 7))
            content = content[:place] + bytes(byte ^ bit for byte in content[place : place + 1]) + content[place + 1 :]
        elif kind == "drop":
            content = content[:place] + after
        elif kind == "repeat":
            content = content[:place] + part + part + after
        elif kind == "replace":
            content = content[:place] + draw(st.binary(max_size=16)) + after
        else:
            number = draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1])).to_bytes(8, "little")
            content = content[:place] + number + content[place + 8 :]
    return content


@st.composite
def mutated_text(draw: st.DrawFn, text: str) -> str:
    """Text whose lines are left out, repeated, cut off or garbled."""
    lines = text.splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(len(lines) - 1, 0)))
        kind = draw(st.sampled_from(["drop", "repeat", "cut", "garble", "insert"]))
        line = lines[place] if lines else ""
        column = draw(st.integers(0, len(line)))
        garbage = draw(st.text(max_size=5) | st.sampled_from(["[", "]]", '"""', "=", "\x00", "{", "\ufeff", ","]))
        changed = {
            "drop": [],
            "repeat": [line, line],
            "cut": [line[:column]],
            "garble": [line[:column] + garbage + line[column:]],
            "insert": [f"{garbage}\n", line],
        }
        lines[place : place + 1] = changed[kind]
    return "".join(lines)


def as_toml(tree: Any) -> bytes:
    """TOML with the values that it can express."""
    return tomli_w.dumps(_expressible(tree)).encode()


def _expressible(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _expressible(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_expressible(each) for each in value if each is not None]
    return value
