"""Code blocks of the documentation: commands and programs that readers copy."""

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
_NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block; `not_run` is the reason in the comment above it, if it cannot be run here."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

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
        reason = _NOT_RUN.fullmatch(lines[position - 1].strip()) if position else None
        language = opening[3].strip()
        if language == "{code-cell}":
            first, _, rest = body.partition("\n")
            language, body = ("cell bash", rest) if first == "%%bash" else ("cell", body)
        found.append(Block(page, position + 1, language, body, reason[1] if reason else ""))
        position = end + 1
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]
