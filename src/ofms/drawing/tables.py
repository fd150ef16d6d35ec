"""Tables as text for a terminal, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side: the first aligned left, the others right.

    >>> print(format_table(["model", "bytes"], [["small", "12"], ["large", "3,456"]]))
    model  bytes
    -----  -----
    small     12
    large  3,456
    """
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


@dataclass(frozen=True)
class Table:
    """A table of strings, with a name and a title; `bold` marks cells as (row, column).

    Attributes
    ----------
    data
        The figures behind it, for JSON.
    """

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = frozenset()
    notes: Sequence[str] = ()
    data: Any = field(default=None, compare=False)

    def text(self) -> str:
        """For a terminal.

        >>> print(Table("t", "Things", ["", "count"], [["a", "1"]], notes=["all of them"]).text())
        Things
           count
        -  -----
        a      1
        all of them
        """
        return "\n".join([self.title, format_table(self.header, self.rows), *self.notes])

    def markdown(self) -> str:
        """
        >>> print(Table("t", "Things", ["", "count"], [["a", "1"]], frozenset({(0, 1)})).markdown())
        | | count |
        |---|---:|
        | a | **1** |
        """
        lines = ["| " + " | ".join(self.header) + " |", "|---|" + "---:|" * (len(self.header) - 1)]
        for number, row in enumerate(self.rows):
            cells = [f"**{cell}**" if (number, column) in self.bold else cell for column, cell in enumerate(row)]
            lines.append("| " + " | ".join(cells) + " |")
        text = "\n".join(lines).replace("|  |", "| |")
        return "\n\n".join([text, *self.notes])

    def latex(self) -> str:
        r"""
        >>> print(Table("t", "Things", ["", "count"], [["a_1", "1 ± 2"]], frozenset({(0, 1)})).latex())
        \begin{table}[t]
        \centering
        \caption{Things}
        \label{table:t}
        \begin{tabular}{lr}
        \toprule
         & count \\
        \midrule
        a\_1 & $\mathbf{1 \pm 2}$ \\
        \bottomrule
        \end{tabular}
        \end{table}
        """
        body = []
        for number, row in enumerate(self.rows):
            cells = [_latex(cell, bold=(number, column) in self.bold) for column, cell in enumerate(row)]
            body.append(" & ".join(cells) + r" \\")
        lines = [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{_latex(self.title)}}}",
            rf"\label{{table:{self.name}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}",
            r"\toprule",
            " & ".join(_latex(cell) for cell in self.header) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *(r"\par\smallskip " + _latex(note) for note in self.notes),
            r"\end{table}",
        ]
        return "\n".join(lines)


def _latex(text: str, bold: bool = False) -> str:
    for plain, escaped in (("\\", r"\textbackslash{}"), ("%", r"\%"), ("_", r"\_"), ("&", r"\&"), ("#", r"\#")):
        text = text.replace(plain, escaped)
    for plain, escaped in (
        ("×10⁻³", r"$\times 10^{-3}$"),
        ("×", r"$\times$"),
        ("α", r"$\alpha$"),
        ("η", r"$\eta$"),
        ("→", r"$\to$"),
    ):
        text = text.replace(plain, escaped)
    text = re.sub("`([^`]*)`", r"\\texttt{\1}", text)
    mean, sign, spread = text.partition(" ± ")
    if sign and "$" not in text:
        return rf"$\mathbf{{{mean} \pm {spread}}}$" if bold else rf"${mean} \pm {spread}$"
    text = text.replace("±", r"$\pm$").replace("–", "--")
    return rf"\textbf{{{text}}}" if bold else text
