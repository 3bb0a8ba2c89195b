"""The page's HTML, style and script, and the environment that fills the HTML in."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import jinja2


@cache
def environment() -> jinja2.Environment:
    """Templates of this folder; everything that is filled in is escaped."""
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def source(name: str) -> str:
    """The text of a file of this folder."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
