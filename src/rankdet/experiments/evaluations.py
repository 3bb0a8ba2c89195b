"""Trained detectors tested again: a table of files that `rankdet evaluate --out` wrote.

An experiment judges a training by its own last evaluation. What the same detector reaches with
images of other sizes is measured by `rankdet evaluate`; those files stand in
FOLDER/evaluations, beside the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankdet.errors import RankdetError
from rankdet.experiments.benchmarks import inference_of
from rankdet.experiments.comparison import LOSSES, METRICS
from rankdet.experiments.tables import best_shown, markdown_table, number
from rankdet.report.reading import read_report_run

FOLDER = "evaluations"
Evaluations = Mapping[str, Mapping[str, Any]]


def read_evaluations(folder: Path) -> dict[str, dict[str, Any]]:
    """The files in FOLDER/evaluations by their names; none where there is no such folder.

    RankdetError if one is damaged (`read_report_run` tells), or not of VOC's protocol.
    """
    found = {}
    for file in sorted((folder / FOLDER).glob("*.json")):
        results = read_report_run(file).results
        if results["protocol"] != "voc":
            raise RankdetError(
                f"{file}: protocol = {results['protocol']}: expected voc, as all of the page is. "
                "Move the file to another folder."
            )
        found[file.stem] = results
    return found


def evaluations_part(evaluations: Evaluations) -> str:
    """The part of the page: a table of all, and AP50 of each class."""
    counts = sorted({one["data"]["num_images"] for one in evaluations.values()})
    origins = sorted(
        f"- `{name}`: step {one['checkpoint']['step']}, commit {one['provenance']['commit']}, "
        f"{one['provenance']['machine']}: `{one['provenance']['command']}`"
        for name, one in evaluations.items()
    )
    return "\n\n".join(
        [
            "## evaluations: a trained detector tested again, also at several scales",
            f"Tested on {', '.join(map(str, counts))} images; one training is one seed.",
            _metrics_table(evaluations),
            *_notes(evaluations),
            "AP50 of each class:",
            _class_table(evaluations),
            "\n".join(origins),
        ]
    )


def _notes(evaluations: Evaluations) -> list[str]:
    """What the files themselves say about their numbers."""
    lines = [f"- `{name}`: {note}" for name, one in evaluations.items() for note in one["notes"]]
    return ["\n".join(lines)] if lines else []


def _metrics_table(evaluations: Evaluations) -> str:
    names = {loss: name for name, loss in LOSSES.items()}
    best = {
        metric: best_shown(one["metrics"][metric] for one in evaluations.values())
        for metric in METRICS
    }
    rows = []
    for name, one in evaluations.items():
        config = one["config"]
        texts = {metric: number(one["metrics"][metric]) for metric in METRICS}
        rows.append(
            [
                f"`{name}`",
                f"{config['detector']['name']}, {config['detector']['backbone']}",
                names.get(config["loss"]["name"], config["loss"]["name"]),
                str(one["checkpoint"]["epoch"]),
                inference_of(one)["images"],
                *(f"**{text}**" if text == best[key] else text for key, text in texts.items()),
            ]
        )
    heading = ["file", "detector", "training loss", "epochs", "images, shorter sides", *METRICS]
    return markdown_table(heading, rows)


def _class_table(evaluations: Evaluations) -> str:
    columns = {
        name: {row["name"]: row["ap50"] for row in one["classes"]}
        for name, one in evaluations.items()
    }
    classes = list(dict.fromkeys(name for column in columns.values() for name in column))
    rows = [[name, *(number(column.get(name)) for column in columns.values())] for name in classes]
    return markdown_table(["class", *(f"`{name}`" for name in columns)], rows)
