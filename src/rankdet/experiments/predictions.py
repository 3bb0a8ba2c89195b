"""Predictions of the detector that was trained longest, as boxes: detections beside the objects.

The record has boxes, names and scores, and no pixel of the photographs, which may not be ours to
publish; `pictures` and `rankdet report` show them on the images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rankdet.config import Config, to_dict
from rankdet.errors import listed
from rankdet.experiments import evidence
from rankdet.experiments.arms import last_results, trained
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import BLUE, GREY, VERMILION, new_figure, save_figure
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.schedules import LONGEST
from rankdet.experiments.tables import NO_NUMBER, markdown_table, missing_text, number, page

SUMMARY = "detections of the AP-loss that was trained longest on a dozen images, as boxes"
KEY = evidence.OURS
_NUM_IMAGES = 12
_BESIDE = 4  # panels in a line of the figure
_MOST_LISTED = 12  # names in a cell of the table


def plan(request: Request) -> list[Row]:
    """The training of `longest-retinanet` with the request's seed."""
    config = evidence.RETINANET_LONGEST.first_configs(LONGEST, request)[KEY]
    return [
        Row(
            key=KEY,
            settings={"config": to_dict(config), "num_images": _NUM_IMAGES},
            run=partial(_result, config, request),
            trainings=(config,),
        )
    ]


def _result(config: Config, request: Request) -> dict[str, Any]:
    """Metrics, and of each image its size, its objects and what is detected in it.

    ignored: the classes of objects that count neither way, such as VOC's difficult ones.
    """
    from rankdet.experiments.shown_detections import shown_images

    run = trained(config, request)
    results = last_results(run, request)
    thresholds = list(results["thresholds"].values())
    images = []
    for shown in shown_images(run, thresholds, _NUM_IMAGES, request):
        height, width = shown.pixels.shape[:2]
        kept = ~shown.target.is_ignored
        ignored = shown.target.labels[~kept].tolist()
        objects = _boxes(shown.target.boxes[kept], shown.target.labels[kept], shown.classes)
        detections = _boxes(shown.detections.boxes, shown.detections.labels, shown.classes)
        scores = shown.detections.scores.tolist()
        images.append(
            {
                "image": Path(shown.name).stem,  # folders are nobody's business
                "width": width,
                "height": height,
                "objects": objects,
                "ignored": sorted({shown.classes[label] for label in ignored}),
                "detections": [
                    {**one, "score": round(score, 4)}
                    for one, score in zip(detections, scores, strict=True)
                ],
            }
        )
    return {"run": run.name, "metrics": results["metrics"], "images": images}


def _boxes(boxes: Any, labels: Any, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Ready for JSON: x1, y1, x2, y2 in pixels of the image, and the name of the class."""
    return [
        {"box": [round(edge, 1) for edge in box], "class": classes[label]}
        for box, label in zip(boxes.tolist(), labels.tolist(), strict=True)
    ]


def markdown(record: Record) -> str:
    """A line for each image: what is in it, and what was detected."""
    result = results_of(record).get(KEY)
    if result is None:
        return page(record, SUMMARY, [missing_text(record, KEY)])
    rows = [
        [
            one["image"],
            listed([thing["class"] for thing in one["objects"]], _MOST_LISTED) or NO_NUMBER,
            listed([_label(thing) for thing in one["detections"]], _MOST_LISTED) or NO_NUMBER,
        ]
        for one in result["images"]
    ]
    metrics = ", ".join(f"{name} {number(value)}" for name, value in result["metrics"].items())
    notes = [
        f"Of the detector on all images: {metrics}.",
        "Images with several objects, evenly spaced over the split; nobody chose them. Detections "
        "from the score on that has the best F1 of its class on the same split.",
        "Grey and dashed: objects, without difficult ones. Blue: detections of a class that the "
        "image has; orange: of one that it does not have.",
    ]
    picture = f"![{SUMMARY}]({record['item']}.png)"
    table = markdown_table(["image", "objects", "detections"], rows)
    return page(record, SUMMARY, [picture, table], notes)


def _label(thing: Mapping[str, Any]) -> str:
    return f"{thing['class']} {thing['score']:.2f}"


def figure(record: Record, path: Path) -> None:
    """A panel for each image: objects and detections, the surest on top; see the notes."""
    images = (results_of(record).get(KEY) or {"images": []})["images"]
    num_lines = max(-(-len(images) // _BESIDE), 1)
    drawn = new_figure(3 * _BESIDE, 2.6 * num_lines)
    panels = drawn.subplots(num_lines, _BESIDE, squeeze=False).ravel()
    for axes in panels:
        axes.set_axis_off()
    for axes, one in zip(panels, images, strict=False):
        _draw(axes, one)
    save_figure(drawn, path)


def _draw(axes: Any, one: Mapping[str, Any]) -> None:
    axes.add_patch(_rectangle((0, 0, one["width"], one["height"]), edgecolor="#DDDDDD"))
    for thing in one["objects"]:
        axes.add_patch(_rectangle(thing["box"], edgecolor=GREY, linestyle="--", linewidth=2.5))
        left, _, _, bottom = thing["box"]
        axes.text(left, bottom, thing["class"], fontsize=6, color=GREY, va="bottom")  # inside
    classes = {thing["class"] for thing in one["objects"]} | set(one["ignored"])
    for thing in reversed(one["detections"]):
        # A class that the image does not have is wrong, wherever it is.
        colour = BLUE if thing["class"] in classes else VERMILION
        axes.add_patch(_rectangle(thing["box"], edgecolor=colour, linewidth=1))
        axes.text(*thing["box"][:2], _label(thing), fontsize=6, color=colour, va="bottom")
    axes.set(xlim=(0, one["width"]), ylim=(one["height"], 0), aspect="equal")
    axes.set_title(one["image"], fontsize=7)


def _rectangle(box: Sequence[float], **style: Any) -> Any:
    from matplotlib.patches import Rectangle

    left, top, right, bottom = box
    return Rectangle((left, top), right - left, bottom - top, fill=False, **style)


EXPERIMENT = Experiment("predictions", SUMMARY, (), plan, markdown, figure)
