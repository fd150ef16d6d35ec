"""Code blocks of the documentation: commands and programs that readers copy.

Comments above a block say how a test runs it:

- `<!-- not run: REASON -->`: not at all;
- `<!-- runs until stopped -->`: in the background, until the page ends or a later block has `<!-- stop: COMMAND -->`;
- `<!-- listens on: PORT -->`: the blocks after it wait until it does;
- `<!-- machines: 4 -->`: four times at once, as on so many machines, with NODE=0, 1, …;
- `<!-- file: PATH -->`: its text is written to that file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The page of results is generated.
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted({*ROOT.glob("docs/*.md"), *ROOT.glob("docs/[!_r]*/*.md")} - {ROOT / "docs/results.md"}),
]
_OPENING = re.compile(r"^(\s*)(`{3,})(.*)$")
_COMMENT = re.compile(r"\s*<!-- (not run|runs until stopped|listens on|stop|machines|file)(?:: (.+))? -->\s*")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    language: str
    text: str
    comments: dict[str, str]

    def __str__(self) -> str:
        page = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page
        return f"{page}:{self.line}"

    @property
    def not_run(self) -> str:
        """Why it cannot be run here, if so."""
        return self.comments.get("not run", "")

    def commands(self) -> Iterator[list[str]]:
        """Each command of a shell block as words, without comments."""
        for line in self.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page; a notebook's cell of commands is a block of `bash`, others are `python`."""
    lines, found, position = page.read_text().splitlines(), [], 0
    while position < len(lines):
        opening = _OPENING.match(lines[position])
        if opening is None:
            position += 1
            continue
        end = next(at for at in range(position + 1, len(lines)) if lines[at].strip() == opening[2])
        body = "\n".join(line.removeprefix(opening[1]) for line in lines[position + 1 : end])
        language = opening[3].strip()
        if language == "{code-cell}":
            first, _, rest = body.partition("\n")
            language, body = ("cell bash", rest) if first == "%%bash" else ("cell", body)
        found.append(Block(page, position + 1, language, body, _comments(lines[:position])))
        position = end + 1
    return found


_VARIABLE = re.compile(r"[A-Z_]+=\S*")
_PROGRAM = r"(?:[A-Z_]+=\S+ )*(?:\S*/bin/)?(?:ofms|make|pytest|python|mypy|ruff)"


def sentence_commands(page: Path) -> list[list[str]]:
    """Commands between backquotes within sentences and tables, as words, without `…` and redirections.

    What only leads to the program is left out too: variables, and the folder of an environment.
    """
    lines = page.read_text().splitlines()
    inside = False
    text = []
    for line in lines:
        if _OPENING.match(line):
            inside = not inside
        elif not inside:
            text.append(line)
    found = re.findall(rf"(?<!`)`({_PROGRAM}\s[^`]+)`", "\n".join(text))
    commands = []
    for command in found:
        words = [word for word in shlex.split(command.partition(" > ")[0]) if word != "…"]
        while _VARIABLE.fullmatch(words[0]):
            words = words[1:]
        commands.append([words[0].rpartition("/")[2], *words[1:]])
    return commands


def _comments(lines: list[str]) -> dict[str, str]:
    """The comments directly above a block."""
    found = {}
    while lines and (comment := _COMMENT.fullmatch(lines[-1])):
        found[comment[1]] = comment[2] or ""
        lines = lines[:-1]
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]
