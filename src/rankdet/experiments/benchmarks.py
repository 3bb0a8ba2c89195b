"""The benchmark rows of the paper: RetinaNet with AP-loss and ResNet-101, beside other methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rankdet.config import Config, to_dict
from rankdet.experiments.arms import class_results, evaluated, outcome, submitted, trained
from rankdet.experiments.comparison import (
    SERVER_SPLITS,
    Variant,
    chosen,
    data_notes,
    multi_scale_notes,
    server_files,
    variant_config,
)
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import BLUE, GREY, label_axes, new_figure, save_figure
from rankdet.experiments.paper import paper, paper_table
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.scales import Training, multi_scale
from rankdet.experiments.tables import (
    NO_NUMBER,
    backbone_text,
    caption,
    markdown_table,
    missing_text,
    number,
    page,
)

# The paper's short names of VOC's classes, where they differ.
CLASS_NAMES = {
    "aero": "aeroplane",
    "bike": "bicycle",
    "mbike": "motorbike",
    "plant": "pottedplant",
    "table": "diningtable",
    "tv": "tvmonitor",
}

# What a speed depends on, by its key in a result.
_CONDITIONS = {
    "batch_size": "images at a time",
    "images": "side of an image",
    "precision": "precision",
    "machine": "machine",
}
_SPEED_NOTE = (
    "Inference speed: network and postprocessing, as the evaluation ran it. The paper does not say "
    "how many images it looked at together, nor in which precision."
)


@dataclass(frozen=True)
class Entry:
    """A row of ours. row: its name in the paper's table; has_scales: tested at several scales."""

    row: str
    training: Training
    has_scales: bool = False

    @property
    def variant(self) -> Variant:
        return Variant(self.row, training=self.training)


@dataclass(frozen=True)
class Benchmark:
    """A table of the paper with other methods' rows; protocol: in which ours is evaluated."""

    title: str
    label: str
    entries: tuple[Entry, ...]
    protocol: str

    def plan(self, request: Request) -> list[Row]:
        wanted = {v.row for v in chosen([entry.variant for entry in self.entries], request)}
        return [self._row(entry, request) for entry in self.entries if entry.row in wanted]

    def _row(self, entry: Entry, request: Request) -> Row:
        config = variant_config(entry.variant, request)
        tested = multi_scale(config, request.scale) if entry.has_scales else config
        tested = replace(tested, evaluation=replace(tested.evaluation, protocol=self.protocol))
        return Row(
            key=entry.row,
            settings={"config": to_dict(config), "tested": to_dict(tested)["evaluation"]},
            run=partial(_result, entry, config, tested, request),
            trainings=(config,),
        )

    def markdown(self, record: Record) -> str:
        columns = paper_table(self.label)["columns"]
        results = results_of(record)
        rows = []
        for row in paper_table(self.label)["rows"]:
            values = [number(row["values"][column]) for column in columns]
            values = [NO_NUMBER if value == "n/a" else value for value in values]
            rows.append([row["name"], row["backbone"], "paper", *values])
            if row["name"] in {entry.row for entry in self.entries}:
                ours = _ours(record, row["name"], columns)
                backbone = backbone_text(record, [row["name"]])
                rows.append([f"**{row['name']}**", backbone, "ours", *ours])
        table = markdown_table(["method", "backbone", "by", *columns], rows)
        variants = [entry.variant for entry in self.entries]
        notes = [*_other_classes(results, columns), *data_notes(variants, record)]
        notes += [*multi_scale_notes(record, "+"), _SPEED_NOTE]
        return page(record, self.title, [table, _speeds(results)], [*notes, caption(self.label)])

    def figure(self, record: Record, path: Path) -> None:
        """The first column of the table as bars: other methods grey, ours blue."""
        table = paper_table(self.label)
        column = table["columns"][0]
        results = results_of(record)
        bars = [(f"{row['name']} (paper)", row["values"][column], GREY) for row in table["rows"]]
        for name, result in results.items():
            value = (result["metrics"] or {}).get(column)
            if value is not None:
                bars.append((f"{name} (ours)", value, BLUE))
        drawn = new_figure(7, 0.24 * len(bars) + 1)
        axes = drawn.subplots()
        names, values, colours = zip(*reversed(bars), strict=True)
        axes.barh(range(len(bars)), values, color=colours)
        axes.set_yticks(range(len(bars)), names, fontsize=7)
        label_axes(axes, self.title, f"{column} in percent", "")
        save_figure(drawn, path)


def _result(entry: Entry, config: Config, tested: Config, request: Request) -> dict[str, Any]:
    """The outcome of the training, with the numbers of the evaluation that the row is about."""
    run = trained(config, request)
    result = {**outcome(config, request), "classes": None, "inference": None}
    if result["metrics"] is None:
        result["submission"] = _submission(entry, config, tested, run, request)
        return result
    name = f"{tested.evaluation.protocol}{'-scales' if entry.has_scales else ''}"
    results = evaluated(run, request, name, tested)
    result |= {
        "metrics": results["metrics"],
        "classes": class_results(results),
        "inference": inference_of(results),
        "submission": _submission(entry, config, tested, run, request),
    }
    return result


def _submission(
    entry: Entry, config: Config, tested: Config, run: Path, request: Request
) -> str | None:
    if not entry.has_scales:
        return server_files(config, entry.training, request)
    if server_files(config, entry.training, request) is None:
        return None
    split = SERVER_SPLITS[entry.training.data]
    return submitted(run, request, split, f"{split}-scales", tested)


def inference_of(results: Mapping[str, Any]) -> dict[str, Any]:
    """The speed in a results.json, and what it depends on."""
    evaluation = results["config"]["evaluation"]
    if evaluation["fixed_size"]:
        images = f"{evaluation['fixed_size']} x {evaluation['fixed_size']}"
    else:
        images = ", ".join(str(side) for side in evaluation["scales"] or [evaluation["shorter"]])
    return {
        **results["inference"],
        "batch_size": evaluation["batch_size"],
        "images": images + (" mirrored, too" if evaluation["flip"] else ""),
        "precision": "float32",  # of every evaluation
        "machine": results["provenance"]["machine"],
    }


def _ours(record: Record, row: str, columns: Sequence[str]) -> list[str]:
    """The cells of a row of ours."""
    if text := missing_text(record, row):
        return [text, *[NO_NUMBER] * (len(columns) - 1)]
    result = results_of(record)[row]
    values = {**result["classes"], **result["metrics"]}
    cells = []
    for column in columns:
        name = CLASS_NAMES.get(column, column)
        cells.append(number(values[name]) if name in values else NO_NUMBER)
    return cells


def _other_classes(results: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """A note with the numbers of classes that the paper's table does not have."""
    known = {CLASS_NAMES.get(column, column) for column in columns}
    notes = []
    for name, result in results.items():
        others = {key: ap for key, ap in (result["classes"] or {}).items() if key not in known}
        if others and len(others) <= 20:
            texts = ", ".join(f"{key} {number(ap)}" for key, ap in others.items())
            notes.append(f"AP50 of the classes of {name} (ours): {texts}.")
    return notes


def _speeds(results: Mapping[str, Any]) -> str:
    """How many images are looked at in a second: network and postprocessing, and with loading."""
    rows = []
    for name, result in results.items():
        if result["inference"] is not None:
            own = result["inference"]
            network, loaded = own["network_images_per_second"], own["images_per_second"]
            conditions = [str(own.get(key, NO_NUMBER)) for key in _CONDITIONS]
            speeds = [f"{network:.1f}", f"{1000 / network:.1f}", f"{loaded:.1f}"]
            rows.append([name, *speeds, *conditions])
    said = paper()["statements"]["inference_speed"]
    speed = said["images_per_second"]
    conditions = [str(said.get(key, NO_NUMBER)) for key in _CONDITIONS]
    rows.append(["paper", f"{speed:.0f}", f"{1000 / speed:.0f}", NO_NUMBER, *conditions])
    heading = ["inference speed", "images/s", "ms/image", "images/s with loading"]
    return markdown_table([*heading, *_CONDITIONS.values()], rows)


def _entries(data: str, *, has_800: bool = False) -> tuple[Entry, ...]:
    at_500 = Training(data=data, backbone="resnet101", side=500)
    larger = (Entry("AP-loss800", replace(at_500, side=800)),) if has_800 else ()
    return (
        Entry("AP-loss500", at_500),
        *larger,
        Entry("AP-loss500+", at_500, has_scales=True),
    )


def _experiment(name: str, benchmark: Benchmark) -> Experiment:
    return Experiment(
        name=name,
        summary=benchmark.title,
        labels=(benchmark.label,),
        plan=benchmark.plan,
        markdown=benchmark.markdown,
        figure=benchmark.figure,
    )


VOC07 = _experiment(
    "benchmark-voc07",
    Benchmark(
        "AP-loss500 beside other methods on VOC2007 test",
        "state-of-the-art-voc07",
        _entries("voc"),
        "voc",
    ),
)
VOC12 = _experiment(
    "benchmark-voc12",
    Benchmark(
        "AP-loss500 beside other methods on VOC2012 test",
        "state-of-the-art-voc12",
        _entries("voc12"),
        "voc",
    ),
)
COCO = _experiment(
    "benchmark-coco",
    Benchmark(
        "AP-loss500 and AP-loss800 beside other methods on COCO",
        "state-of-the-art-coco",
        _entries("coco", has_800=True),
        "coco",
    ),
)
