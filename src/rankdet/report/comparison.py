"""Several runs side by side: numbers with their differences, settings that differ, warnings.

All differences are to the first run that is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rankdet.errors import listed
from rankdet.report.reading import ReportRun

NOT_SET = "not set"

Value = TypeVar("Value")


@dataclass(frozen=True)
class Cell:
    """A value of one run and how much more it is than the first run's; None: not available."""

    value: float | None
    difference: float | None


@dataclass(frozen=True)
class Row:
    """What has this name, one cell for each run."""

    name: str
    cells: tuple[Cell, ...]


def metric_rows(runs: Sequence[ReportRun]) -> list[Row]:
    """A row for each number of the whole; runs that lack it have None."""
    return _rows([run.results["metrics"] for run in runs])


def class_rows(runs: Sequence[ReportRun], field: str = "ap50") -> list[Row]:
    """A row for each class that any of the runs has; classes are the same if their names are."""
    return _rows([{row["name"]: row[field] for row in run.results["classes"]} for run in runs])


def _rows(tables: Sequence[Mapping[str, float | None]]) -> list[Row]:
    rows = []
    for name, (first, *others) in aligned(tables, None):
        differences = [None if first is None or v is None else v - first for v in others]
        rows.append(Row(name, tuple(map(Cell, [first, *others], [None, *differences]))))
    return rows


def aligned(tables: Sequence[Mapping[str, Value]], missing: Value) -> list[tuple[str, list[Value]]]:
    """Every name of any table, with its value in each of them.

    >>> aligned([{"a": 1, "b": 2}, {"b": 3}], 0)
    [('a', [1, 0]), ('b', [2, 3])]
    """
    names = dict.fromkeys(name for table in tables for name in table)
    return [(name, [table.get(name, missing) for table in tables]) for name in names]


def flat_settings(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Every setting by its full name, as text.

    >>> flat_settings({"loss": {"name": "ap", "settings": {}}, "seed": 0, "scales": [1, 2]})
    {'loss.name': 'ap', 'loss.settings': 'none', 'seed': '0', 'scales': '1, 2'}
    """
    result: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            result |= flat_settings(value, f"{prefix}{name}.")
        else:
            result[prefix + name] = setting_text(value)
    return result


def setting_text(value: Any) -> str:
    """A setting as a reader of YAML knows it.

    >>> setting_text(True), setting_text(None), setting_text([]), setting_text(1e-05)
    ('true', 'null', 'none', '1e-05')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(map(setting_text, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {setting_text(part)}" for name, part in value.items()) or "none"
    return str(value)


def all_settings(runs: Sequence[ReportRun]) -> list[tuple[str, list[str]]]:
    """The name of each setting of any run, and its value in each."""
    return aligned([flat_settings(run.results["config"]) for run in runs], NOT_SET)


def differing_settings(runs: Sequence[ReportRun]) -> list[tuple[str, list[str]]]:
    """Those settings that are not the same in all runs."""
    return [(name, values) for name, values in all_settings(runs) if len(set(values)) > 1]


def warnings(runs: Sequence[ReportRun]) -> list[str]:
    """A sentence for each reason why the numbers of these runs must not simply be compared."""
    found = _warning_about_classes(runs)
    for condition in _CONDITIONS:
        if len({condition.key_of(run) for run in runs}) > 1:
            which = "; ".join(f"{run.label}: {condition.text_of(run)}" for run in runs)
            found.append(f"{condition.what} ({which}). {condition.consequence}")
    return found


def _warning_about_classes(runs: Sequence[ReportRun]) -> list[str]:
    names = [{row["name"] for row in run.results["classes"]} for run in runs]
    odd = sorted(set.union(*names) - set.intersection(*names))
    if not odd:
        return []
    return [
        f"The classes are not the same (not in all runs: {listed(odd, 8)}). "
        "The means are over different classes."
    ]


@dataclass(frozen=True)
class _Condition:
    """What should be the same in all runs: text_of says it in words, key_of decides."""

    what: str
    consequence: str
    text_of: Callable[[ReportRun], str]
    key_of: Callable[[ReportRun], str]


def _same(what: str, consequence: str, text_of: Callable[[ReportRun], str]) -> _Condition:
    return _Condition(what, consequence, text_of, text_of)


def _setting(name: str) -> Callable[[ReportRun], str]:
    return lambda run: flat_settings(run.results["config"]).get(name, NOT_SET)


def _evaluated_data(run: ReportRun) -> str:
    data = run.results["data"]
    return f"{data['split'] or data['path']}, {data['num_images']:,} images"


def _evaluated_fingerprint(run: ReportRun) -> str:
    return run.results["data"]["fingerprint"] or _evaluated_data(run)


def _training_split(run: ReportRun) -> dict[str, Any]:
    return ((run.results["training"] or {}).get("data") or {}).get("train") or {}


def _training_data(run: ReportRun) -> str:
    data = _training_split(run)
    if data.get("num_images") is None:
        return data.get("split") or "not recorded"
    return f"{data.get('split')}, {data['num_images']:,} images"


def _training_fingerprint(run: ReportRun) -> str:
    return _training_split(run).get("fingerprint") or _training_data(run)


def _budget(run: ReportRun) -> str:
    settings = flat_settings(run.results["config"])
    text = f"{settings.get('training.epochs', '?')} epochs"
    most = settings.get("training.max_steps", "null")
    return text if most == "null" else f"{text}, at most {most} steps"


def _evaluated_size(run: ReportRun) -> str:
    settings = flat_settings(run.results["config"])
    fixed = settings.get("evaluation.fixed_size", "null")
    if fixed != "null":
        return f"{fixed} x {fixed}"
    if settings.get("evaluation.scales", "none") != "none":
        return f"sides {settings['evaluation.scales']}"
    names = ("evaluation.shorter", "evaluation.longest")
    return " to ".join(settings.get(name, NOT_SET) for name in names)


_FROM_DATA = "A difference may come from the data and not from the loss."
_FROM_NETWORK = "A difference may come from the network and not from the loss."
_CONDITIONS = (
    _Condition(
        "The runs were evaluated on different data",
        "Their numbers cannot be compared.",
        _evaluated_data,
        _evaluated_fingerprint,
    ),
    _same(
        "The metrics follow different protocols",
        "AP does not mean the same in both.",
        lambda run: run.results["protocol"].upper(),
    ),
    _Condition(
        "The runs were trained on different data", _FROM_DATA, _training_data, _training_fingerprint
    ),
    _same(
        "The planned length of the training differs", "The longer one has an advantage.", _budget
    ),
    _same(
        "The number of images in a step differs",
        "The runs made different numbers of steps with the same images.",
        _setting("training.batch_size"),
    ),
    _same(
        "The size of the training images differs",
        "Small objects are easier to find in larger images.",
        _setting("data.size"),
    ),
    _same(
        "The size of the evaluated images differs",
        "Small objects are easier to find in larger images.",
        _evaluated_size,
    ),
    _same(
        "Some evaluations add mirrored images",
        "That alone improves the numbers.",
        _setting("evaluation.flip"),
    ),
    _same("The backbones differ", _FROM_NETWORK, _setting("detector.backbone")),
    _same(
        "The trainings began with different weights", _FROM_NETWORK, _setting("detector.weights")
    ),
    _same(
        "The seeds differ",
        "Small differences may be chance: repeat with several seeds.",
        _setting("seed"),
    ),
)
