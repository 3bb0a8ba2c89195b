"""The numbers of a demo as a record to keep, and the README's table that is made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankdet.metrics.evaluation import percent_text
from rankdet.report.reading import ReportRun
from rankdet.report.wording import HEADLINE, loss_name

MARK = '"rankdet_demo_record"'  # at the start of each of our files
_VERSION = 1


def demo_record(runs: Sequence[ReportRun]) -> dict[str, Any]:
    """What is kept of the runs, ready for JSON: numbers, settings and origin; no pictures."""
    return {
        MARK.strip('"'): _VERSION,
        "runs": [
            {
                "loss": run.loss,
                "metrics": run.results["metrics"],
                "classes": run.results["classes"],
                "errors": run.results["errors"],
                "data": run.results["data"],
                "checkpoint": run.results["checkpoint"],
                "training": run.results["training"],
                "inference": run.results["inference"],
                "config": run.results["config"],
                "provenance": run.results["provenance"],
            }
            for run in runs
        ],
    }


def markdown(record: Mapping[str, Any]) -> str:
    """The README's table of a record: a row for each loss, and where the numbers come from."""
    runs = record["runs"]
    lines = [f"| loss | {' | '.join(HEADLINE)} |", "| --- |" + " --- |" * len(HEADLINE)]
    for run in runs:
        numbers = (percent_text(run["metrics"][name]) for name in HEADLINE)
        lines.append(f"| {loss_name(run['loss'])} | {' | '.join(numbers)} |")
    first = runs[0]
    num_images, step = first["data"]["num_images"], first["checkpoint"]["step"]
    origin = first["training"]["provenance"]
    lines += [
        "",
        f"In percent, on {num_images} images, after {step:,} steps each. "
        f"`{origin['command']}`, commit {origin['commit']}, seed {origin['seed']}, "
        f"{origin['threads']} threads, torch {origin['versions']['torch']}, {origin['machine']}.",
    ]
    return "\n".join(lines)
