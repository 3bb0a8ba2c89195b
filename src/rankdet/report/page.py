"""The report as one HTML file: it needs nothing else, and no network.

Names come from strangers: everything goes through the templates, which escape it; only the plots
and pictures are marked as safe, and they escape on their own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any

from markupsafe import Markup

from rankdet import __version__
from rankdet.errors import counted, listed
from rankdet.output import refuse_foreign, write_whole
from rankdet.report import comparison, pictures, plots, robustness, wording
from rankdet.report.contents import ERROR_KINDS
from rankdet.report.evaluation_plots import MOST_VALUES, highest_count
from rankdet.report.fields import LONGEST_NAME, shown
from rankdet.report.reading import ReportRun, read_report_runs, says_loss
from rankdet.report.templates import environment, source
from rankdet.report.training_plots import PARTS, mean_parts

MARK = '<meta name="generator" content="rankdet report">'  # at the start of every such page

_MOST_CONFUSIONS = 10  # pairs of classes that are listed
_MANY_CLASSES = 24  # from here on a table of classes scrolls in its own box


def write_report(
    paths: Sequence[Path], out: Path, *, title: str | None = None, is_forced: bool = False
) -> list[ReportRun]:
    """The runs in these folders (or results files), after a page about them was written to `out`.

    RankdetError if a run cannot be used, or `out` is a file of somebody else's.
    """
    refuse_foreign(out, MARK, is_forced)
    runs = read_report_runs(paths)
    write_page(runs, out, title=title)
    return runs


def write_page(runs: Sequence[ReportRun], out: Path, *, title: str | None = None) -> None:
    """Write the page about runs that have been read; `out` is replaced."""
    write_whole(out, render(runs, title=title).encode("utf-8"))


def render(runs: Sequence[ReportRun], *, title: str | None = None) -> str:
    """The whole page; the same runs give the same text."""
    script = source("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment().get_template("page.html")
    facts = _facts(runs)
    scale = highest_count(runs)
    return page.render(
        title=shown(title, LONGEST_NAME) if title else _title(runs),
        version=__version__,
        style=Markup(source("style.css")),
        script=Markup(script),
        script_hash=digest,
        words=wording,
        legend=pictures.LEGEND,
        runs=[_run(run, scale) for run in runs],
        is_comparison=len(runs) > 1,
        metrics=comparison.metric_rows(runs),
        facts=[(name, values[0]) for name, values in facts if len(set(values)) == 1],
        differing_facts=[(name, values) for name, values in facts if len(set(values)) > 1],
        notes=_notes(runs),
        class_rows=comparison.class_rows(runs),
        is_long=max(len(run.results["classes"]) for run in runs) > _MANY_CLASSES,
        settings=comparison.all_settings(runs),
        differing=comparison.differing_settings(runs),
        warnings=comparison.warnings(runs),
        training=_plots(plots.training_curves(runs)),
        time_plot=_safe(plots.iteration_time(runs)),
        times=_times(runs),
        mean_curve=_safe(plots.precision_recall_mean(runs)) if len(runs) > 1 else None,
        class_bars=_safe(plots.class_bars(runs)),
        has_thresholds=len(runs) <= MOST_VALUES,
        error_bars=_safe(plots.error_bars(runs)),
        error_rows=_error_rows(runs),
        side_by_side=_side_by_side(runs),
        robustness=robustness.section(runs),
        provenance=_provenance(runs),
    )


def headline(run: ReportRun) -> str:
    """The most important numbers in a line, as `AP50 72.3, AP 45.1, AP75 47.0`."""
    metrics = run.results["metrics"]
    return ", ".join(f"{name} {wording.percent(metrics.get(name))}" for name in wording.HEADLINE)


def _title(runs: Sequence[ReportRun]) -> str:
    if len(runs) == 1:
        name = ": ".join(filter(None, _heading(runs[0])))
        return f"{name} on {_data_name(runs[0])}"
    return f"{len(runs)} runs: {listed([_heading(run)[0] for run in runs], 4)}"


def _heading(run: ReportRun) -> tuple[str, str]:
    """What to call a run, and its loss where that does not say it."""
    loss = wording.loss_name(run.loss)
    if run.label == run.loss:
        return loss, ""
    return run.label, "" if says_loss(run.label, run.loss) else loss


def _data_name(run: ReportRun) -> str:
    path = run.results["data"]["path"]
    return PurePath(path).name or path


def _run(run: ReportRun, scale: float) -> dict[str, Any]:
    """What the page shows of one run alone; scale: of the anchors, the same for all runs."""
    results = run.results
    return {
        "label": run.label,
        "heading": _heading(run),
        "classes": results["classes"],
        "metrics": results["metrics"],
        "num_detections": sum(row["num_detections"] for row in results["classes"]),
        "num_objects": sum(row["num_objects"] for row in results["classes"]),
        "errors": results["errors"],
        "curve": _safe(plots.precision_recall(run)),
        "scatter": _safe(plots.score_against_iou(run, scale)),
        "anchors": results["anchors"],
        "confusion": _safe(plots.confusion(run)),
        "has_confusion": results["confusion"] is not None,
        "confusions": _confusions(run),
        "has_pictures": results["pictures"] is not None,
        "pictures": _pictures(run),
    }


def _plots(drawn: dict[str, str | None]) -> list[tuple[str, Markup]]:
    """Those plots that there are, with their names."""
    return [(name, Markup(svg)) for name, svg in drawn.items() if svg is not None]


def _safe(svg: str | None) -> Markup | None:
    return None if svg is None else Markup(svg)


def _facts(runs: Sequence[ReportRun]) -> list[tuple[str, list[str]]]:
    """What a reader wants to know first, beside the metrics: a name, and the value in each run."""
    rows: tuple[tuple[str, Callable[[ReportRun], str]], ...] = (
        ("Data", lambda run: f"{_data_name(run)}, split {run.results['data']['split'] or '?'}"),
        ("Images", lambda run: wording.count(run.results["data"]["num_images"])),
        ("Objects", lambda run: wording.count(run.results["data"]["num_objects"])),
        ("Classes", lambda run: wording.count(len(run.results["classes"]))),
        ("Protocol", lambda run: run.results["protocol"].upper()),
        ("Detector", _detector),
        ("Trained for", _checkpoint),
        ("Training", _training_time),
        ("Evaluation", lambda run: _inference(run, "images_per_second")),
        ("Network", lambda run: _inference(run, "network_images_per_second")),
    )
    return [(name, [text(run) for run in runs]) for name, text in rows]


def _notes(runs: Sequence[ReportRun]) -> list[tuple[str, str]]:
    """Every note of the evaluations once, with the labels of the runs that have it if not all."""
    labels: dict[str, list[str]] = {}
    for run in runs:
        for note in dict.fromkeys(run.results["notes"]):
            labels.setdefault(note, []).append(run.label)
    return [
        (", ".join(named) if len(named) < len(runs) else "", note) for note, named in labels.items()
    ]


def _detector(run: ReportRun) -> str:
    settings = comparison.flat_settings(run.results["config"])
    names = [settings.get(f"detector.{name}") for name in ("name", "backbone")]
    return ", ".join(name for name in names if name) or wording.NOT_AVAILABLE


def _checkpoint(run: ReportRun) -> str:
    checkpoint = run.results["checkpoint"] or {}
    step, epoch = checkpoint.get("step"), checkpoint.get("epoch")
    parts = [checkpoint.get("name")] if step is None else [counted(step, "step")]
    parts += [] if epoch is None else [counted(epoch, "epoch")]
    return ", ".join(part for part in parts if part) or wording.NOT_AVAILABLE


def _training_time(run: ReportRun) -> str:
    return wording.duration((run.results["training"] or {}).get("wall_time_seconds"))


def _inference(run: ReportRun, name: str) -> str:
    return wording.speed((run.results["inference"] or {}).get(name))


def _times(runs: Sequence[ReportRun]) -> list[dict[str, Any]]:
    """The mean time of each part of a step, per run that measured it."""
    measured = [(run, mean_parts(run.rows)) for run in runs]
    return [
        {
            "label": run.label,
            "total": sum(parts),
            "parts": [
                (name, value, wording.share(value, sum(parts)))
                for name, value in zip(PARTS, parts, strict=True)
            ],
        }
        for run, parts in measured
        if parts is not None
    ]


def _confusions(run: ReportRun) -> list[tuple[str, str, int]]:
    """The pairs (true class, detected class) that are confused most often, with their numbers."""
    if run.results["confusion"] is None:
        return []
    names = [row["name"] for row in run.results["classes"]]
    counts = run.results["confusion"]["counts"]
    pairs = [
        (-counts[true][found], true, found)
        for true in range(len(names))
        for found in range(len(names))
        if true != found and counts[true][found]
    ]
    return [(names[true], names[found], -n) for n, true, found in sorted(pairs)[:_MOST_CONFUSIONS]]


def _error_rows(runs: Sequence[ReportRun]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """For each kind of detection its meaning, and per run the number and the share."""
    if all(run.results["errors"] is None for run in runs):
        return []
    return [
        (kind, wording.ERROR_MEANINGS[kind], [_error_cell(run, kind) for run in runs])
        for kind in ERROR_KINDS
    ]


def _error_cell(run: ReportRun, kind: str) -> tuple[str, str]:
    errors = run.results["errors"]
    if errors is None:
        return wording.NOT_AVAILABLE, ""
    whole = errors["num_objects" if kind == "missed" else "num_detections"]
    return wording.count(errors[kind]), wording.share(errors[kind], whole)


def _pictures(run: ReportRun) -> list[dict[str, Any]]:
    """The groups best, worst and missed, each with its figures; groups without any are left out."""
    groups = []
    for kind, (title, meaning) in wording.PICTURE_TITLES.items():
        figures = [pictures.picture_figure(picture) for picture in _of_kind(run, kind)]
        if figures:
            groups.append({"title": title, "meaning": meaning, "figures": figures})
    return groups


def _of_kind(run: ReportRun, kind: str) -> list[dict[str, Any]]:
    return [picture for picture in run.results["pictures"] or [] if kind in picture["kinds"]]


def _side_by_side(runs: Sequence[ReportRun]) -> list[dict[str, Any]]:
    """The sample images that all runs have, each with one figure per run, the first above.

    With one run, its samples. Empty where the runs were not evaluated on the same data.
    """
    if len({run.results["data"]["fingerprint"] for run in runs}) > 1:
        return []
    tables = [
        {(picture["index"], picture["name"]): picture for picture in _of_kind(run, "sample")}
        for run in runs
    ]
    common = [key for key in tables[0] if all(key in table for table in tables)]
    captions = [run.label if len(runs) > 1 else "" for run in runs]
    return [
        {
            "name": key[1],
            "figures": [
                pictures.picture_figure(table[key], caption)
                for table, caption in zip(tables, captions, strict=True)
            ],
        }
        for key in common
    ]


def _provenance(runs: Sequence[ReportRun]) -> list[dict[str, Any]]:
    """Where training and evaluation took place: a table each, with a column per run."""
    parts = (
        ("Training", [(run.results["training"] or {}).get("provenance") for run in runs]),
        ("Evaluation", [run.results["provenance"] for run in runs]),
    )
    result = []
    for title, found in parts:
        tables = [_texts(part or {}) for part in found]
        rows = comparison.aligned(tables, wording.NOT_AVAILABLE)
        result.append({"title": title, "rows": rows})
    return result


def _texts(content: dict[str, Any]) -> dict[str, str]:
    """Every entry as one text: the versions of all packages are a line and not a table."""
    return {name: comparison.setting_text(value) for name, value in content.items()}
