"""The paper's own numbers, by the labels of its tables: paper.json, and how to look into it.

    {"tables": {LABEL: {"caption", "row": what a row is, "columns", "notes",
                        "rows": [{"name", "backbone", "group", "values": {COLUMN: number or null},
                                  "best": columns in bold type}]}},
     "statements": numbers that stand in the text alone}

A column below a common heading is called HEADING / COLUMN. AP50 and the like are percent.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def paper() -> dict[str, Any]:
    """All of paper.json. Not to be changed: it is read once."""
    text = resources.files("rankdet.experiments").joinpath("paper.json").read_text("utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def paper_table(label: str) -> dict[str, Any]:
    """The table of this label.

    >>> paper_table("sigmoid")["columns"]
    ['AP', 'AP50', 'AP75']
    """
    table: dict[str, Any] = paper()["tables"][label]
    return table


def paper_row(label: str, row: str, *, group: str | None = None) -> dict[str, Any]:
    """A row of the paper's table of this label; KeyError if there is none.

    group: where two rows have the same name, as in tables with one and two stages.
    """
    for entry in paper_table(label)["rows"]:
        if entry["name"] == row and group in (None, entry.get("group")):
            found: dict[str, Any] = entry
            return found
    raise KeyError(f"the paper's table {label} has no row {row!r}")


def paper_value(label: str, row: str, column: str, *, group: str | None = None) -> float | None:
    """A number of the paper; None where it has a dash. KeyError if there is no such cell.

    >>> paper_value("voc-smoothing", "0.25", "AP")
    50.2
    """
    value: float | None = paper_row(label, row, group=group)["values"][column]
    return value
