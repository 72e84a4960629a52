"""What zensical needs of Veil to render pages: equations as MathML, and docstrings as Markdown.

`fence` renders a block ```` ```math ```` when the site is built, so that no script has to be loaded for it. `Docstrings` (an
extension of griffe) makes Markdown of the docstrings' own habits: ``::`` before a block, ``>>>`` examples, and lists of
names with their meanings beside them.
"""

from __future__ import annotations

import re
from typing import Any

import griffe
from latex2mathml.converter import convert
from pymdownx.superfences import SuperFencesException

BESIDE = re.compile(r"(\w+)  +(\S.*)")


def fence(source: str, language: str, name: str, options: dict[str, Any], md: Any, **_: Any) -> str:
    """A block of LaTeX as MathML."""
    # The converter knows align* but not aligned, which is what code hosts want inside a block.
    mathml = convert(source.replace("{aligned}", "{align*}"), display="block")
    if unknown := re.search(r"\\[A-Za-z]+", mathml):
        raise SuperFencesException(f"the equation has {unknown.group()}, which cannot be converted: {source}")
    return f'<div class="math">{mathml}</div>'


def as_markdown(text: str) -> str:
    """A docstring as Markdown."""
    out = []
    for block in re.split(r"\n[ \t]*\n", text):
        lines = block.splitlines()
        if lines and lines[0].startswith(">>>"):
            block = "\n".join(["```pycon", *lines, "```"])
        elif lines and all(BESIDE.fullmatch(line) for line in lines):
            block = "\n".join(BESIDE.sub(r"- `\1`: \2", line) for line in lines)
        else:
            block = re.sub(r"::$", ":", block)
        out.append(block)
    return "\n\n".join(out)


class Docstrings(griffe.Extension):
    """Docstrings as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """See griffe."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
