"""Pictures of detections: focal loss above, AP-loss below, on the same images; and AP-loss500."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rankdet.config import Config, to_dict
from rankdet.experiments.arms import last_results, trained
from rankdet.experiments.comparison import Variant, chosen, variant_config
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import new_figure, save_figure
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.scales import Training
from rankdet.experiments.tables import NO_NUMBER, markdown_table, missing_text, page

SUMMARY = "detections of focal loss and AP-loss on the same images"
_SIDE = 320  # pixels of a picture in the record
_MOST_BESIDE = 5  # pictures in a line of the figure
# Inches of the figure: of a full line, of a line's height and of its title, between pictures.
_WIDTH, _HIGHEST, _TITLE, _GAP = 10.0, 2.4, 0.3, 0.06


@dataclass(frozen=True)
class Sheet:
    """A row of pictures: of which training, and how many images."""

    variant: Variant
    num_images: int


SHEETS = (
    Sheet(Variant("Focal Loss", {"loss": {"name": "focal"}}, training=Training(data="coco")), 5),
    Sheet(Variant("AP-Loss", training=Training(data="coco")), 5),
    Sheet(
        Variant(
            "AP-Loss, ResNet-101",
            training=Training(data="coco", backbone="resnet101", side=500),
        ),
        15,
    ),
)
# At voc320, for those who have no COCO.
_ON_VOC = {
    "Focal Loss": Training(),
    "AP-Loss": Training(),
}


def plan(request: Request) -> list[Row]:
    """A row for each sheet. At voc320 without --coco: the first two, on VOC."""
    if request.scale == "voc320" and request.coco is None:
        sheets = [
            Sheet(Variant(s.variant.row, s.variant.changes, training=_ON_VOC[s.variant.row]), 5)
            for s in SHEETS
            if s.variant.row in _ON_VOC
        ]
    else:
        wanted = {variant.row for variant in chosen([s.variant for s in SHEETS], request)}
        sheets = [sheet for sheet in SHEETS if sheet.variant.row in wanted]
    return [_row(sheet, request) for sheet in sheets]


def _row(sheet: Sheet, request: Request) -> Row:
    config = variant_config(sheet.variant, request)
    return Row(
        key=sheet.variant.row,
        settings={"config": to_dict(config), "num_images": sheet.num_images},
        run=partial(_result, sheet, config, request),
        trainings=(config,),
    )


def _result(sheet: Sheet, config: Config, request: Request) -> dict[str, Any]:
    """The pictures as JPEG files in base 64, and the numbers of the training."""
    run = trained(config, request)
    results = last_results(run, request)
    thresholds = list(results["thresholds"].values())
    return {
        "run": run.name,
        "metrics": results["metrics"],
        "pictures": _pictures(run, thresholds, sheet.num_images, request),
    }


def _pictures(
    run: Path, thresholds: list[float | None], num_images: int, request: Request
) -> list[dict[str, Any]]:
    """What prediction would show in some images, as small files."""
    from rankdet.experiments.shown_detections import shown_images
    from rankdet.workflows.pictures import picture

    return [
        {
            "image": shown.name,
            "jpeg": _encoded(picture(shown.pixels, shown.detections, shown.classes)),
        }
        for shown in shown_images(run, thresholds, num_images, request)
    ]


def _encoded(drawn: Any) -> str:
    """A small JPEG file of the picture, in base 64."""
    from PIL import ImageOps

    stream = io.BytesIO()
    ImageOps.contain(drawn, (_SIDE, _SIDE)).save(stream, "JPEG", quality=85)
    return base64.b64encode(stream.getvalue()).decode()


def markdown(record: Record) -> str:
    rows, results = [], results_of(record)
    for key in record["plan"]:
        if key not in results:
            rows.append([key, NO_NUMBER, missing_text(record, key), NO_NUMBER])
            continue
        result = results[key]
        data = record["rows"][key]["settings"]["config"]["data"]
        name = data["path"].rpartition("/")[2]
        rows.append([key, name, str(len(result["pictures"])), result["run"]])
    table = markdown_table(["row of pictures", "data", "images", "run"], rows)
    picture = f"![{SUMMARY}]({record['item']}.png)"
    notes = ["Shown from the score on that has the best F1 of its class on the validation images."]
    return page(record, SUMMARY, [picture, table], notes)


def figure(record: Record, path: Path) -> None:
    """The pictures of each row, up to five beside each other, all of a line equally high."""
    from PIL import Image

    lines = []
    for key, result in results_of(record).items():
        pictures = [
            Image.open(io.BytesIO(base64.b64decode(entry["jpeg"]))) for entry in result["pictures"]
        ]
        for start in range(0, len(pictures), _MOST_BESIDE):
            title = "" if start else key
            lines.append((title, pictures[start : start + _MOST_BESIDE]))
    heights = [_line_height([one.width / one.height for one in line]) for _, line in lines]
    widths = [
        sum(height * one.width / one.height + _GAP for one in line)
        for height, (_, line) in zip(heights, lines, strict=True)
    ]
    width, height = max(widths, default=_WIDTH), sum(heights) + _TITLE * len(lines) or _TITLE
    drawn = new_figure(width, height)
    drawn.set_layout_engine("none")
    top = height
    for line_height, (title, pictures) in zip(heights, lines, strict=True):
        drawn.text(0, (top - _TITLE / 2) / height, title, fontsize=9, va="center")
        top -= _TITLE + line_height
        left = 0.0
        for one in pictures:
            side = line_height * one.width / one.height
            axes = drawn.add_axes(
                (left / width, top / height, side / width, line_height / height),
                xticks=[],
                yticks=[],
            )
            axes.imshow(one, aspect="auto")
            left += side + _GAP
    save_figure(drawn, path)


def _line_height(aspects: list[float]) -> float:
    """Inches: as high as pictures of these widths / heights can be beside each other.

    >>> round(_line_height([1.5, 1.5, 1.5, 1.5, 1.5]), 2), _line_height([1.0])
    (1.29, 2.4)
    """
    return min(_HIGHEST, (_WIDTH - _GAP * len(aspects)) / sum(aspects))


EXPERIMENT = Experiment("pictures", SUMMARY, ("fig-result", "fig-result2"), plan, markdown, figure)
