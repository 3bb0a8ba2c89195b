"""Runs as the report reads them: from files alone, each part checked before a page uses it."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankdet.errors import RankdetError, listed, message, printable, shorten, system_reason
from rankdet.report.contents import checked_results, checked_row
from rankdet.report.fields import FieldError, shown, strict_json
from rankdet.report.robustness import ROBUSTNESS_FILE, checked_robustness

RESULTS_FILE = "results.json"
METRICS_FILE = "metrics.jsonl"

_LARGEST_FILE = 256 * 2**20  # bytes; a real one has some hundred thousand
_MOST_RUNS = 16
_LONGEST_LABEL = 40  # characters
_MOST_ROWS = 1_000_000
_KINDS = ("step", "evaluation")  # rows of a later version may be of others
_HINT = "The file was damaged or changed: run `rankdet evaluate RUN` again."


@dataclass(frozen=True)
class ReportRun:
    """One run on the page.

    label: short, and no other run on the page has it. path: of the results file. loss: the name of
    the class loss. results: what results.json says, checked (`contents.checked_results`); errors,
    confusion, anchors and pictures are None where an older file lacks them. rows: of metrics.jsonl,
    [] without one. robustness: what robustness.json beside it says, checked; None without one.
    """

    label: str
    path: Path
    loss: str
    results: dict[str, Any]
    rows: list[dict[str, Any]]
    robustness: dict[str, Any] | None = None


def read_report_runs(paths: Sequence[Path]) -> list[ReportRun]:
    """The runs in the order that is given, with labels that tell them apart."""
    if not 1 <= len(paths) <= _MOST_RUNS:
        raise RankdetError(
            f"{len(paths)} runs: expected 1 to {_MOST_RUNS}. Give fewer, or write several pages."
        )
    runs = [read_report_run(path) for path in paths]
    files = Counter(run.path.resolve() for run in runs)
    for run in runs:
        if files[run.path.resolve()] > 1:
            raise RankdetError(f"{run.path}: this run is given twice. Name every run once.")
    labels = _labels([run.path for run in runs], [run.loss for run in runs])
    return [dataclasses.replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def read_report_run(path: Path) -> ReportRun:
    """The run in a folder, or of a results file; RankdetError if it cannot be used."""
    file = results_file(path)
    try:
        results = checked_results(_read_json(file))
    except FieldError as error:
        raise _field_error(error, str(file)) from error
    loss = _loss(results, str(file))
    rows = _read_rows(file.parent / METRICS_FILE)
    robustness = _read_robustness(file.parent / ROBUSTNESS_FILE)
    return ReportRun(_labels([file], [loss])[0], file, loss, results, rows, robustness)


def results_file(path: Path) -> Path:
    """The results file of a run folder, or the path itself if it is a file."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise RankdetError(
            f"{printable(str(path))}: there is no such file or folder. Give the folder of a run."
        )
    file = path / RESULTS_FILE
    if file.is_file():
        return file
    inside = sorted(printable(str(other.parent)) for other in path.glob(f"*/{RESULTS_FILE}"))
    if inside:  # a folder of runs, as a demo writes
        raise RankdetError(
            f"{printable(str(path))}: there is no {RESULTS_FILE} in this folder. "
            f"Give the runs in it: {listed(inside, 5)}."
        )
    others = sorted(printable(str(other)) for other in path.glob("results-*.json"))
    hint = f" Or give one of its other results: {listed(others, 5)}." if others else ""
    raise RankdetError(
        f"{printable(str(path))}: there is no {RESULTS_FILE} in this folder. "
        f"Run `rankdet evaluate {printable(str(path))}` first.{hint}"
    )


def _read_robustness(file: Path) -> dict[str, Any] | None:
    """What `rankdet robustness` has written into the same folder, where it has."""
    if not file.exists():
        return None
    hint = "The file was damaged or changed: run `rankdet robustness RUN` again, or remove it."
    try:
        return checked_robustness(_read_json(file, hint))
    except FieldError as error:
        raise _field_error(error, str(file), hint=hint) from error


def _read_json(file: Path, hint: str = _HINT) -> Any:
    try:
        return strict_json(_read(file))
    except ValueError as error:  # also for bytes that are not text
        reason = str(error)[:200]
        raise RankdetError(
            message(f"this is not the JSON of an evaluation ({reason})", file=str(file), hint=hint)
        ) from error


def _read(file: Path) -> bytes:
    try:
        size = file.stat().st_size
        if size > _LARGEST_FILE:
            raise RankdetError(
                f"{file}: the file has {size:,} bytes; expected at most {_LARGEST_FILE:,}."
            )
        return file.read_bytes()
    except OSError as error:
        raise RankdetError(f"{file}: cannot be read: {system_reason(error)}.") from error


def _read_rows(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    *lines, _ = _read(file).split(b"\n")  # what comes after the last line break is unfinished
    if len(lines) > _MOST_ROWS:
        raise RankdetError(f"{file}: {len(lines):,} lines; expected at most {_MOST_ROWS:,}.")
    rows = []
    for position, line in enumerate(lines, start=1):
        try:
            content = strict_json(line)
            if isinstance(content, dict) and _is_of_other_kind(content.get("kind")):
                continue
            row = checked_row(content)
        except FieldError as error:
            raise _field_error(error, str(file), position, "Remove this line.") from error
        except ValueError as error:
            text = message(
                "expected a JSON object", file=str(file), where=position, hint="Remove this line."
            )
            raise RankdetError(text) from error
        rows.append(row)
    return rows


def _is_of_other_kind(kind: Any) -> bool:
    """Whether a row is one that only a later version knows."""
    return isinstance(kind, str) and kind not in _KINDS


def _field_error(
    error: FieldError, file: str, where: int | str = "", hint: str = _HINT
) -> RankdetError:
    value = None if error.value is None else shorten(error.value)
    return RankdetError(
        message(error.rule, file=file, where=where, field=error.place, value=value, hint=hint)
    )


def _loss(results: dict[str, Any], file: str) -> str:
    section = results["config"].get("loss")
    name = section.get("name") if isinstance(section, dict) else None
    if not isinstance(name, str):
        raise _field_error(FieldError("config.loss.name", "expected text", name), file)
    return shown(name, _LONGEST_LABEL)


def _labels(files: Sequence[Path], losses: Sequence[str]) -> list[str]:
    """A short name for each file, all different: of its folder; more, where that is not enough."""
    places = [_words(file) for file in files]
    for length in range(1, max(map(len, places)) + 1):
        labels = ["/".join(words[-length:]) for words in places]
        if len(set(labels)) == len(labels):
            break
    if len(set(losses)) > 1:  # what is compared, where the folder does not say it
        labels = [
            label if says_loss(label, loss) else f"{label} ({loss})"
            for label, loss in zip(labels, losses, strict=True)
        ]
    labels = [_shortened(label) for label in labels]
    counts = Counter(labels)
    return [
        f"{label} #{position}" if counts[label] > 1 else label
        for position, label in enumerate(labels, start=1)
    ]


def says_loss(label: str, loss: str) -> bool:
    """Whether the label has the name of the loss as one of its words.

    >>> says_loss("focal 2", "focal"), says_loss("maps", "ap")
    (True, False)
    """
    return loss.lower() in re.split(r"[^a-z0-9_]", label.lower())


def _words(file: Path) -> list[str]:
    """The folders of a results file, printable; and the file's name if it is not the usual one."""
    place = Path(os.path.abspath(file))  # noqa: PTH100 - a link keeps the name that was given
    words = [printable(word) for word in place.parent.parts[1:]] or ["run"]
    if place.name != RESULTS_FILE:
        words[-1] += f" {printable(place.stem.removeprefix('results-'))}"
    return words


def _shortened(label: str) -> str:
    if len(label) <= _LONGEST_LABEL:
        return label
    half = _LONGEST_LABEL // 2
    return f"{label[: half - 1]}…{label[-half:]}"
