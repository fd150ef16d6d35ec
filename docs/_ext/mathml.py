"""Formulas as MathML, which browsers render themselves: no script, no font to load, no network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

_log = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the renderer `mathml` for `html_math_renderer`."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(_converted(node, as_block=False))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(translator.starttag(node, "div", CLASS="formula"))
    if node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    translator.body.append(_converted(node, as_block=True))
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def _converted(node: nodes.math | nodes.math_block, *, as_block: bool) -> str:
    """A formula's MathML; what cannot be converted is a warning, and ends the build."""
    try:
        return str(tex2mathml(node.astext(), as_block=as_block))
    except MathError as error:
        _log.warning("formula %r: %s", node.astext(), error, location=node)
        return ""
