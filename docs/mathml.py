"""Equations of the documentation as MathML, which browsers draw by themselves."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert


def inline(translator: Any, node: nodes.math) -> None:
    """Write an equation in a line."""
    translator.body.append(convert(node.astext(), display="inline"))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.math_block) -> None:
    """Write an equation that stands by itself; wide ones scroll."""
    equation = convert(node.astext(), display="block")
    translator.body.append(f'<div class="equation">{equation}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Offer the renderer to `html_math_renderer`."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True}
