"""A check's report as tables for people and as JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankdet import __version__
from rankdet.data.checking import statistics
from rankdet.data.checking.check import Report
from rankdet.data.checking.statistics import Spread
from rankdet.data.reading.findings import Finding, Findings
from rankdet.data.reading.rules import RULES
from rankdet.data.reading.split import Split
from rankdet.errors import counted, printable

JSON_MARK = '"report": "rankdet check"'  # at the start of every such file

_SPLITS_PER_TABLE = 4
_MAX_CLASSES = 100  # rows of the table; the JSON has them all


def print_report(report: Report, console: Console, num_examples: int) -> None:
    """Tables of what is there, then what is wrong, then one line with the verdict."""
    if report.splits:
        _print_tables(report.splits, console)
    for line in _findings_lines(report, num_examples):
        console.print(line, soft_wrap=True)
    console.print(Text(verdict(report), style="bold"), soft_wrap=True)


def _print_tables(splits: list[Split], console: Console) -> None:
    _print_table(_counts_table(splits), console)
    for split in splits:
        for line in _reasons(split):
            console.print(line, soft_wrap=True)
    _print_table(_image_sizes_table(splits), console)
    annotated = [split for split in splits if split.is_annotated]
    if annotated:
        _print_table(_areas_table(annotated), console)
        _print_table(_box_sizes_table(annotated), console)
    for start in range(0, len(annotated), _SPLITS_PER_TABLE):
        _print_table(_classes_table(annotated[start : start + _SPLITS_PER_TABLE]), console)


def _print_table(table: Table, console: Console) -> None:
    """The title stands above: rich would fold it to the width of the table."""
    console.print()
    console.print(_text(f"{table.title}:", "bold"), soft_wrap=True)
    table.title = None
    console.print(table)


def _table(title: str, first: str = "split") -> Table:
    """A table whose first column holds names; narrow enough for a terminal of 80 columns."""
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(first, overflow="fold")
    return table


def _counts_table(splits: list[Split]) -> Table:
    table = _table("Images and objects")
    headings = "images\nseen", "used", "skipped", "objects\nseen", "used", "dropped"
    for heading in (*headings, "ignored", "clipped"):
        table.add_column(heading, justify="right")
    for split in splits:
        found = split.findings
        numbers = [
            *(found.images.seen, found.images.used, found.images.dropped.total()),
            *(found.objects.seen, found.objects.used, found.objects.dropped.total()),
            *(found.num_ignored, found.num_clipped),
        ]
        table.add_row(_text(split.name), *(f"{number:,}" for number in numbers))
    return table


def _reasons(split: Split) -> Iterator[Text]:
    """Why images and objects of a split are not used, a line for each of the two."""
    found = split.findings
    for what, tally in (("images skipped", found.images), ("objects dropped", found.objects)):
        if tally.dropped:
            reasons = ", ".join(f"{count:,} {code}" for code, count in tally.dropped.most_common())
            yield _text(f"{split.name}: {what}: {reasons}")


def _image_sizes_table(splits: list[Split]) -> Table:
    table = _table("Image sizes in pixels: least / median / greatest")
    for heading in ("width", "height", "objects per image"):
        table.add_column(heading, justify="right")
    for split in splits:
        spreads = statistics.image_sizes(split)
        cells = [_spread(spreads[name]) for name in ("width", "height", "objects")]
        table.add_row(_text(split.name), *cells)
    return table


def _areas_table(splits: list[Split]) -> Table:
    table = _table("Objects by area in pixels, as COCO counts")
    for heading in ("small: below 32²", "medium", "large: above 96²"):
        table.add_column(heading, justify="right")
    for split in splits:
        areas = statistics.num_by_area(split)
        total = sum(areas.values())
        cells = [f"{count:,} ({_percent(count, total)})" for count in areas.values()]
        table.add_row(_text(split.name), *cells)
    return table


def _box_sizes_table(splits: list[Split]) -> Table:
    table = _table("Percentiles of box sizes: √area in pixels (as a part of the image's)")
    for percentile in statistics.PERCENTILES:
        table.add_column(f"{percentile} %", justify="right")
    for split in splits:
        sizes = statistics.box_sizes(split)
        if sizes["pixels"] is not None and sizes["fraction"] is not None:
            pairs = zip(sizes["pixels"], sizes["fraction"], strict=True)
            cells = [f"{pixels:.1f} ({fraction:.3f})" for pixels, fraction in pairs]
            table.add_row(_text(split.name), *cells)
    return table


def _classes_table(splits: list[Split]) -> Table:
    table = _table("Classes: objects (of these ignored) / images", first="class")
    rows: dict[str, dict[str, str]] = {}
    totals: Counter[str] = Counter()
    for split in splits:
        table.add_column(_text(split.name), justify="right", overflow="fold")
        for row in statistics.class_counts(split):
            ignored = f" ({row.num_ignored:,})" if row.num_ignored else ""
            cell = f"{row.num_objects:,}{ignored} / {row.num_images:,}"
            rows.setdefault(row.name, {})[split.name] = cell
            totals[row.name] += row.num_objects
    shown = list(rows)
    if len(shown) > _MAX_CLASSES:
        shown = [name for name, _ in totals.most_common(_MAX_CLASSES)]
        table.title = f"{table.title}; the {_MAX_CLASSES} largest of {len(rows):,}, --json has all"
    for name in shown:
        table.add_row(_text(name), *(rows[name].get(split.name, "") for split in splits))
    return table


def _findings_lines(report: Report, num_examples: int) -> Iterator[Text]:
    """What was found, faults first: a heading for each rule, and its first examples in full."""
    for name, error in report.errors.items():
        yield Text("")
        yield _text(f"Split {name} cannot be read:", "bold red")
        yield _text(f"  {error}")
    merged = _all_findings(report)
    for code, count in sorted(merged.counts.items(), key=lambda pair: (_is_note(pair[0]), pair[0])):
        rule, outcome = RULES[code], merged.examples[code][0].outcome
        yield Text("")
        heading = f"{rule.level} {code}: {count:,} ({outcome}): {rule.rule}. {rule.hint}"
        yield _text(heading, "bold" if _is_note(code) else "bold red")
        # A split that is part of another has the same findings: once is enough to read.
        examples = list(dict.fromkeys(merged.examples[code]))
        for example in examples[:num_examples]:
            yield _text(f"  {example}")
        if count > num_examples and len(examples) > num_examples:
            yield Text("  ...")
    yield Text("")


def _is_note(code: str) -> bool:
    return RULES[code].level == "note"


def _all_findings(report: Report) -> Findings:
    merged = Findings()
    for found in (*(split.findings for split in report.splits), report.between):
        merged.merge(found)
    return merged


def verdict(report: Report) -> str:
    """One line: how many faults, where, and what was lost to them."""
    if not report.num_faults:
        files = {name for split in report.splits for name in split.annotations.paths}
        return f"No faults. {counted(len(files), 'image')} can be used."
    lost = [counted(len(report.errors), "split") + " not read"] if report.errors else []
    num_skipped = sum(split.findings.images.dropped.total() for split in report.splits)
    num_dropped = sum(split.findings.objects.dropped.total() for split in report.splits)
    num_shared = report.between.counts["image-in-two-splits"]
    if num_skipped:
        lost.append(f"{counted(num_skipped, 'image')} skipped")
    if num_dropped:
        lost.append(f"{counted(num_dropped, 'object')} dropped")
    if num_shared:
        lost.append(f"{counted(num_shared, 'image')} in two splits")
    text = f"{counted(report.num_faults, 'fault')}: {', '.join(lost) or 'nothing lost'}."
    per_split = [
        f"{printable(split.name)} {split.findings.num_faults:,}"
        for split in report.splits
        if split.findings.num_faults
    ]
    if len(report.splits) > 1 and per_split:
        text += f" By split: {', '.join(per_split)}."
    return text


def as_json(report: Report, command: str) -> str:
    """The whole report, ready to be written to a file."""
    content = {
        "report": "rankdet check",
        "rankdet": __version__,
        "command": command,
        "data": report.data,
        "format": report.format,
        "num_faults": report.num_faults,
        "verdict": verdict(report),
        "splits": [_split_dict(split) for split in report.splits],
        "unreadable_splits": [
            {
                "name": name,
                **Finding.from_error(error).as_dict(),
                "outcome": "refused",
                "text": str(error),
            }
            for name, error in report.errors.items()
        ],
        "between_splits": _findings_dict(report.between),
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _split_dict(split: Split) -> dict[str, Any]:
    found = split.findings
    return {
        "name": split.name,
        "is_annotated": split.is_annotated,
        "images": found.images.as_dict(),
        "objects": found.objects.as_dict(),
        "num_ignored": found.num_ignored,
        "num_clipped": found.num_clipped,
        "num_faults": found.num_faults,
        "statistics": statistics.as_dict(split),
        "findings": _findings_dict(found),
    }


def _findings_dict(found: Findings) -> list[dict[str, Any]]:
    """Per rule: how often, and the examples that were kept."""
    return [
        {
            "code": code,
            "level": RULES[code].level,
            "outcome": found.examples[code][0].outcome,
            "count": count,
            "examples": [{**e.as_dict(), "text": str(e)} for e in found.examples[code]],
        }
        for code, count in sorted(found.counts.items())
    ]


def _text(text: str, style: str = "") -> Text:
    """Text that is printed as it stands: no markup, no control characters."""
    return Text(printable(text), style=style)


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{spread.least:g} / {spread.median:g} / {spread.greatest:g}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"
