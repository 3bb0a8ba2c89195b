"""A Markdown extension: LaTeX between dollar signs becomes MathML, which browsers draw themselves.

`$...$` stands in a line, `$$...$$` is a paragraph of its own. It is done when the site is built, so
that the pages need neither a script nor a network for it.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as etree
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor


def to_mathml(latex: str, *, is_block: bool = False) -> str:
    """The MathML of a formula; a ValueError if it is none that the converter knows.

    >>> to_mathml("x^2").partition(">")[2]
    '<mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math>'
    """
    if re.sub(r"\\[{}]", "", latex).count("{") != re.sub(r"\\[{}]", "", latex).count("}"):
        raise ValueError(f"braces are not balanced in the formula {latex!r}")
    mathml = convert(" ".join(latex.split()), display="block" if is_block else "inline")
    unknown = re.findall(r"\\\w+", mathml)  # the converter writes out what it does not know
    if unknown:
        raise ValueError(f"unknown command {unknown[0]} in the formula {latex!r}")
    return mathml


class _InLine(InlineProcessor):
    def handleMatch(self, match: re.Match[str], data: str) -> tuple[str, int, int]:
        return self.md.htmlStash.store(to_mathml(match[1])), match.start(0), match.end(0)


class _Paragraph(BlockProcessor):
    def test(self, parent: etree.Element, block: str) -> bool:
        return re.fullmatch(r"\s*\$\$(.+)\$\$\s*", block, re.DOTALL) is not None

    def run(self, parent: etree.Element, blocks: list[str]) -> None:
        latex = blocks.pop(0).strip()[2:-2]
        holder = etree.SubElement(parent, "div", {"class": "formula"})
        holder.text = self.parser.md.htmlStash.store(to_mathml(latex, is_block=True))


class MathML(Extension):
    """Formulas between dollar signs; not in code, and not after a backslash."""

    def extendMarkdown(self, md: Markdown) -> None:  # Markdown's name
        pattern = r"(?<![\\$])\$(?![\s$])([^$]+?)(?<!\s)\$(?![\d$])"
        # After code in backticks (190), before backslashes (180): both may stand in a formula.
        md.inlinePatterns.register(_InLine(pattern, md), "mathml", 185)
        md.ESCAPED_CHARS.append("$")
        md.parser.blockprocessors.register(_Paragraph(md.parser), "mathml", 75)


def makeExtension(**settings: Any) -> MathML:  # the name that Markdown looks for
    return MathML(**settings)
