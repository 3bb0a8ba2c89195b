"""A Markdown extension: examples that begin with >>> in a docstring are shown as code."""

from __future__ import annotations

from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor


class _Fences(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        result: list[str] = []
        is_example = is_fenced = False
        for line in lines:
            if not is_example and line.lstrip().startswith("```"):
                is_fenced = not is_fenced
            if is_example and not line.strip():  # an example lasts until an empty line
                is_example = False
                result.append("```")
            elif not is_example and not is_fenced and line.startswith(">>> "):
                is_example = True
                result += ["", "```pycon"]
            result.append(line)
        return [*result, "```"] if is_example else result


class Doctests(Extension):
    """Examples as blocks of the language pycon."""

    def extendMarkdown(self, md: Markdown) -> None:  # Markdown's name
        md.preprocessors.register(_Fences(md), "doctests", 28)  # before fences are read (25)


def makeExtension(**settings: Any) -> Doctests:  # the name that Markdown looks for
    return Doctests(**settings)
