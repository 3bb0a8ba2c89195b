"""Tables of records as Markdown: our numbers, the paper's beside them, and where ours come from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rankdet.experiments.paper import paper_table
from rankdet.experiments.record import Record, state_of
from rankdet.experiments.scales import scale_note
from rankdet.experiments.seed_statistics import welch_interval

NOT_AVAILABLE = "n/a"
NOT_RUN = "not run"
FAILED = "failed"
NO_NUMBER = "–"
_BOLD_NUMBER = re.compile(r"\| \*\*[\d.]+\*\*")  # a cell of a table


@dataclass(frozen=True)
class Cell:
    """A number of ours beside the paper's. text: in place of ours, such as "failed".

    deviation: of ours, if it is the mean over several seeds.
    """

    ours: float | None = None
    paper: float | None = None
    text: str = ""
    is_best_of_paper: bool = False
    deviation: float | None = None


def comparison_table(
    row_title: str,
    row_names: Sequence[str],
    column_names: Sequence[str],
    cells: Mapping[tuple[str, str], Cell],
    decimals: int = 1,
) -> str:
    """A table with two columns, ours and the paper's, for each column name.

    The best (highest) of our numbers in a column is bold, as they are shown: all that show it, and
    none if all show the same. Of the paper's, the one that is bold there. Columns of which the
    paper has no number have no second one.

    >>> cells = {("a", "AP"): Cell(1.25, 50.0), ("b", "AP"): Cell(2.0)}
    >>> print(comparison_table("loss", ["a", "b"], ["AP"], cells))
    | loss | AP | paper |
    | --- | ---: | ---: |
    | a | 1.2 | 50.0 |
    | b | **2.0** | – |
    """
    in_paper = {
        column
        for column in column_names
        for row in row_names
        if cells.get((row, column), Cell()).paper is not None
    }
    heading = [row_title]
    for column in column_names:
        heading += [column, "paper"] if column in in_paper else [column]
    best = {
        column: best_shown((cells.get((row, column), Cell()).ours for row in row_names), decimals)
        for column in column_names
    }
    rows = []
    for row in row_names:
        texts = [row]
        for column in column_names:
            cell = cells.get((row, column), Cell(text=NO_NUMBER))
            texts.append(_ours(cell, best[column], decimals))
            if column in in_paper:
                texts.append(_paper(cell, decimals))
        rows.append(texts)
    return markdown_table(heading, rows)


def markdown_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    rules = ["---", *["---:"] * (len(heading) - 1)]
    return "\n".join(f"| {' | '.join(texts)} |" for texts in (heading, rules, *rows))


def page(record: Record, title: str, body: Sequence[str], notes: Sequence[str] = ()) -> str:
    """A whole Markdown page: title, parts of the body, notes, and where the numbers come from."""
    remarks = [scale_note(record["request"]["scale"])]
    if changes := _changes(record):
        remarks.append(f"**Changed, whatever the scale has: {', '.join(changes)}.**")
    if any(map(_BOLD_NUMBER.search, body)):
        remarks.append("Bold: the best number of its column.")
    remarks += notes
    if state := state_of(record):
        remarks.append(f"**{state}**")
    if commits := _commits_of_rows(record):
        remarks.append(commits)
    parts = [f"# {record['item']}: {title}", *body, "\n".join(f"- {text}" for text in remarks)]
    return "\n\n".join([*parts, origin(record)])


def missing_text(record: Record, key: str) -> str:
    """What stands in place of the numbers of a row; "" if it has some.

    Not in the plan, not run yet, failed; or trained, and its test set has no public annotations.

    >>> missing_text({"plan": ["a", "b"], "rows": {"a": {"error": "not finite"}}}, "a")
    'failed'
    """
    entry = record["rows"].get(key, {})
    if "result" in entry:
        result = entry["result"]
        if result.get("metrics", ()) is not None:
            return ""
        return "server" if result.get("submission") else "no labels"
    if key not in record["plan"]:
        return NO_NUMBER
    return FAILED if "error" in entry else NOT_RUN


def backbone_text(record: Record, keys: Sequence[str]) -> str:
    """The backbone of the first of these rows that was run."""
    for key in keys:
        if key in record["rows"]:
            settings = record["rows"][key]["settings"]
            return str(settings["config"]["detector"]["backbone"])
    return NO_NUMBER


def origin(record: Record) -> str:
    """One line: the paper's tables, and commits, machines and times of the rows."""
    rows = list(record["rows"].values())
    entries = [row["provenance"] for row in rows if "provenance" in row]
    commits = sorted({str(entry["commit"]) for entry in entries})
    machines = sorted({str(entry["machine"]) for entry in entries})
    # Rows that share a training have its seconds once.
    seconds = {
        row.get("result", {}).get("run", number): row.get("seconds", 0.0)
        for number, row in enumerate(rows)
    }
    request = record["request"]
    labels = ", ".join(f"`{label}`" for label in record["labels"]) or "none"
    changes = "".join(f" {change}," for change in _changes(record))
    return (
        f"In the paper: {labels}. Scale {request['scale']},{changes} seed {request['seed']}, "
        f"commit {', '.join(commits) or 'unknown'}, {'; '.join(machines) or 'no machine'}, "
        f"{sum(seconds.values()):,.0f} s for {len(rows)} of {len(record['plan'])} rows."
    )


def _changes(record: Record) -> list[str]:
    """What the user has changed, as options."""
    return [f"`--set {change}`" for change in record["request"].get("changes", ())]


def _commits_of_rows(record: Record) -> str:
    """Which rows are of which commit, if not all are of one; seeds are left out of their names."""
    found: dict[str, dict[str, None]] = {}
    for key, row in record["rows"].items():
        commit = str(row.get("provenance", {}).get("commit") or "unknown")
        found.setdefault(commit, {})[key.partition(": seed ")[0]] = None
    if len(found) < 2:
        return ""
    texts = [f"{commit}: {', '.join(keys)}" for commit, keys in sorted(found.items())]
    return f"Rows of different commits stand beside each other. {'; '.join(texts)}."


def caption(label: str) -> str:
    """What the paper says above its table, and its footnotes."""
    table = paper_table(label)
    return " ".join([f"Paper: {table['caption']}", *table["notes"]])


def number(value: float | None, decimals: int = 1) -> str:
    """
    >>> number(30.25), number(None)
    ('30.2', 'n/a')
    """
    return NOT_AVAILABLE if value is None else f"{value:.{decimals}f}"


def difference_text(first: Sequence[float], second: Sequence[float], decimals: int) -> str:
    """The difference of two means, with half its 95 % interval if there are several of both.

    >>> difference_text([30.0, 32.0], [29.0, 29.5], 2)
    '+1.75 ± 10.12'
    >>> difference_text([30.0], [30.04], 1), difference_text([30.0], [], 1)
    ('+0.0', '–')
    """
    if not first or not second:
        return NO_NUMBER
    found = welch_interval(first, second)
    difference = fmean(first) - fmean(second)
    text = f"{round(difference, decimals) + 0.0:+.{decimals}f}"  # -0.0 + 0.0 is 0.0
    return text if found is None else f"{text} ± {found[1]:.{decimals}f}"


def best_shown(values: Iterable[float | None], decimals: int = 1) -> str | None:
    """The text of the highest number, if there are several and they do not all look the same.

    >>> best_shown([0.04, 0.26, 0.31, None]), best_shown([0.01, 0.02])
    ('0.3', None)
    """
    texts = [number(value, decimals) for value in values if value is not None]
    return max(texts, key=float) if len(set(texts)) > 1 else None


def _ours(cell: Cell, best: str | None, decimals: int) -> str:
    if cell.ours is None:
        return cell.text or NOT_AVAILABLE
    text = number(cell.ours, decimals)
    text = f"**{text}**" if text == best else text
    return text if cell.deviation is None else f"{text} ± {number(cell.deviation, decimals)}"


def _paper(cell: Cell, decimals: int) -> str:
    if cell.paper is None:
        return NO_NUMBER
    text = number(cell.paper, decimals)
    return f"**{text}**" if cell.is_best_of_paper else text
