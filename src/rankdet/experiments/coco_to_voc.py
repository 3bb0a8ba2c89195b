"""A detector trained on COCO and fine-tuned on VOC (appendix A4.1): VOC2007 and VOC2012 test."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rankdet.config import Config, to_dict
from rankdet.experiments.arms import evaluated, outcome, run_folder, submitted, trained
from rankdet.experiments.comparison import (
    SERVER_SPLITS,
    Variant,
    data_notes,
    multi_scale_notes,
    server_files,
    variant_config,
)
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import BLUE, GREY, label_axes, new_figure, save_figure
from rankdet.experiments.paper import paper_table
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.scales import Training, multi_scale
from rankdet.experiments.tables import (
    backbone_text,
    caption,
    markdown_table,
    missing_text,
    number,
    page,
)

LABEL = "state-of-the-art-coco-to-voc"
SUMMARY = "RetinaNet trained on COCO and fine-tuned on VOC"
GROUPS = {"Single-Scale": False, "Multi-Scale": True}  # whether each is tested at several scales
_VOC07 = Training(backbone="resnet101", side=500)
_COCO = replace(_VOC07, data="coco")
VARIANTS = {
    "VOC07": Variant("VOC07", training=_VOC07),
    "VOC12": Variant("VOC12", training=replace(_VOC07, data="voc12")),
}


def plan(request: Request) -> list[Row]:
    """Rows of both test sets at one scale and at several; they share their trainings."""
    first = variant_config(Variant("COCO", training=_COCO), request)
    return [
        _row(f"{group}: {column}", VARIANTS[column], has_scales, first, request)
        for group, has_scales in GROUPS.items()
        for column in VARIANTS
    ]


def _row(key: str, variant: Variant, has_scales: bool, first: Config, request: Request) -> Row:
    config = variant_config(variant, request)
    tested = multi_scale(config, request.scale) if has_scales else config
    return Row(
        key=key,
        settings={
            "first": to_dict(first),
            "config": to_dict(config),
            "tested": to_dict(tested)["evaluation"],
        },
        run=partial(_result, variant, has_scales, first, config, tested, request),
        trainings=(first,),
    )


def fine_tuned(config: Config, first: Config, request: Request) -> Config:
    """The settings of the second training: from the weights of the first, as much of it frozen."""
    folder = run_folder(first, request).resolve()
    frozen = config.detector.frozen_stages
    if frozen is None:
        frozen = 0 if config.detector.weights == "none" else 2
    detector = replace(config.detector, weights=str(folder), frozen_stages=frozen)
    return replace(config, detector=detector)


def _result(
    variant: Variant,
    has_scales: bool,
    first: Config,
    config: Config,
    tested: Config,
    request: Request,
) -> dict[str, Any]:
    trained(first, request)
    second = fine_tuned(config, first, request)
    run = trained(second, request)
    result = outcome(second, request)
    result["submission"] = server_files(second, variant.training, request)
    if has_scales and result["metrics"] is not None:
        result["metrics"] = evaluated(run, request, "scales", tested)["metrics"]
    elif has_scales and result["submission"]:
        split = SERVER_SPLITS[variant.training.data]
        result["submission"] = submitted(run, request, split, f"{split}-scales", tested)
    return result


def markdown(record: Record) -> str:
    rows = []
    for entry in paper_table(LABEL)["rows"]:
        values = [number(entry["values"][column]) for column in VARIANTS]
        rows.append([f"{entry['group']}: {entry['name']}", entry["backbone"], "paper", *values])
        if entry["name"] == "Ours":
            keys = [f"{entry['group']}: {column}" for column in VARIANTS]
            backbone = backbone_text(record, keys)
            ours = [_cell(record, key) for key in keys]
            rows.append([f"**{entry['group']}: AP-loss**", backbone, "ours", *ours])
    table = markdown_table(["method", "backbone", "by", *VARIANTS], rows)
    notes = [
        "AP50 in percent. The second training has the length and learning rate of one from "
        "ImageNet's weights: the paper does not say what it changed.",
        *multi_scale_notes(record, "Multi-Scale"),
        *data_notes(list(VARIANTS.values()), {**record, "plan": list(VARIANTS)}),
        caption(LABEL),
    ]
    return page(record, SUMMARY, [table], notes)


def _cell(record: Record, key: str) -> str:
    if text := missing_text(record, key):
        return text
    return number(results_of(record)[key]["metrics"]["AP50"])


def figure(record: Record, path: Path) -> None:
    """AP50 of every method on both test sets; ours blue."""
    results = results_of(record)
    drawn = new_figure(8, 3.4)
    for axes, column in zip(drawn.subplots(1, 2), VARIANTS, strict=True):
        bars = [
            (f"{row['name']}{'+' if GROUPS[row['group']] else ''} (paper)", row["values"][column])
            for row in paper_table(LABEL)["rows"]
        ]
        num_others = len(bars)
        for group, has_scales in GROUPS.items():
            metrics = (results.get(f"{group}: {column}") or {}).get("metrics") or {}
            if metrics.get("AP50") is not None:
                bars.append((f"AP-loss{'+' if has_scales else ''} (ours)", metrics["AP50"]))
        colours = [GREY] * num_others + [BLUE] * (len(bars) - num_others)
        axes.barh(range(len(bars)), [value for _, value in bars], color=colours)
        axes.set_yticks(range(len(bars)), [name for name, _ in bars], fontsize=7)
        label_axes(axes, column, "AP50 in percent", "")
    save_figure(drawn, path)


EXPERIMENT = Experiment("coco-to-voc", SUMMARY, (LABEL,), plan, markdown, figure)
