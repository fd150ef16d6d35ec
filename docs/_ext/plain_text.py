"""What pages write for readers of plain Markdown, as a site shows it: indices as in p_k, links named by files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

# Pages with mathematics in their sentences; elsewhere, names have underscores.
_PAGES = {"algorithm", "method", "security", "settings", "theory"}
_LETTER = r"[A-Za-z\u0370-\u03ffℓℝŷ∇∂]"
_INDEX = rf"[_^](?:\{{[^{{}}]*\}}|½|(?:{_LETTER}|\d)+(?:,(?:{_LETTER}|\d)\b)?)"
_INDEXED = re.compile(rf"(?P<base>(?:(?<!\w){_LETTER}+[\u0300-\u036f]*[⁰¹]?|[)⟩‖]))(?P<indices>(?:{_INDEX})+)")
_ONE = re.compile(r"([_^])(?:\{([^{}]*)\}|([^_^]+))")
_AS_WRITTEN = (nodes.FixedTextElement, nodes.literal, nodes.math, nodes.math_block, nodes.raw)


def setup(app: Sphinx) -> dict[str, Any]:
    """Change each page after its links are resolved."""
    app.connect("doctree-resolved", _change)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _change(app: Sphinx, doctree: nodes.document, name: str) -> None:
    titles = app.env.titles
    for link in doctree.findall(nodes.reference):
        page = re.fullmatch(r"([\w-]+)\.md", link.astext())
        if page and page[1] in titles and f"{page[1]}.html" in link.get("refuri", ""):
            link.children = [nodes.Text(titles[page[1]].astext())]
    if name in _PAGES:
        for text in list(doctree.findall(nodes.Text)):
            if "_" in text or "^" in text:
                parts = list(_with_indices(str(text)))
                if not isinstance(text.parent, _AS_WRITTEN):
                    text.parent.replace(text, parts)


def _with_indices(text: str) -> Iterator[nodes.Node]:
    """The text with subscripts and superscripts."""
    position = 0
    for found in _INDEXED.finditer(text):
        yield nodes.Text(text[position : found.start()] + found["base"])
        for sign, braced, bare in _ONE.findall(found["indices"]):
            kind = nodes.subscript if sign == "_" else nodes.superscript
            yield kind("", "", *_with_indices(braced or bare))
        position = found.end()
    if text[position:]:
        yield nodes.Text(text[position:])
