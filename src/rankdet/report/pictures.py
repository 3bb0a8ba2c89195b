"""Pictures with boxes: what is right, wrong and missed differs in colour and in line style.

The boxes are drawn in vectors over the JPEG, with places in percent of its size: lines and labels
are as thick and as large on a phone as on a wide screen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup

from rankdet.report.svg import display_width, printable_name
from rankdet.report.templates import environment

# A box's look by the kind of a detection or the state of an object; found objects have the box of
# their detection.
LOOKS = {
    "correct": "correct",
    **dict.fromkeys(("localisation", "duplicate", "class", "background"), "wrong"),
    "uncounted": "uncounted",
    "missed": "missed",
    "ignored": "uncounted",
}
LEGEND = (
    ("correct", "correct detection"),
    ("wrong", "wrong detection"),
    ("missed", "missed object"),
    ("uncounted", "not counted"),
)
_REASONS = {
    "correct": "correct",
    "localisation": "wrong: badly placed",
    "duplicate": "wrong: object found twice",
    "class": "wrong: other class",
    "background": "wrong: nothing there",
    "uncounted": "not counted",
    "missed": "missed object",
    "ignored": "ignored object",
}
# The last ones lie on top, and get the best places for their labels.
_ORDER = {"uncounted": 0, "wrong": 1, "missed": 2, "correct": 3}
_MAX_HEIGHT = 22  # of a picture, in rem: a high one would leave gaps beside it
_PIXELS_PER_REM = 16

# Labels are placed as if the picture was this wide, about the least that it is on a screen. All in
# pixels; a font with wide letters is assumed.
_WIDTH = 290.0
_LABEL_HEIGHT = 15.0
_CHARACTER_WIDTH = 7.2
_LABEL_PADDING = 6.0
_LONGEST_NAME = 18  # columns of a class on a label

Rectangle = tuple[float, float, float, float]  # x1, y1, x2, y2


def picture_figure(picture: Mapping[str, Any], caption: str = "") -> Markup:
    """The figure: the JPEG, boxes, labels such as "cat 0.87", and a caption with the name.

    picture: one entry of "pictures" of a results file, checked. caption: stands before the name.
    """
    template = environment().get_template("picture.html")
    return Markup(template.render(picture=_shown(picture), caption=caption))


def _shown(picture: Mapping[str, Any]) -> dict[str, Any]:
    width, height = picture["width"], picture["height"]
    max_width = round(_MAX_HEIGHT * width / height, 2)
    boxes = sorted(_boxes(picture), key=lambda box: (_ORDER[box["look"]], box["score"] or 0))
    assumed = min(_WIDTH, _PIXELS_PER_REM * max_width)
    _place_labels(boxes, assumed, assumed * height / width)
    return {
        "name": picture["name"],
        "jpeg": picture["jpeg"],
        "width": width,
        "height": height,
        "max_width": max_width,
        "boxes": boxes,
        "summary": summary(picture),
    }


def _boxes(picture: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for found in picture["detections"]:
        label = f"{printable_name(found['class'], _LONGEST_NAME)} {found['score']:.2f}"
        yield _box(picture, found["box"], found["kind"], label, found["score"])
    for thing in picture["objects"]:
        if thing["state"] != "found":
            label = printable_name(thing["class"], _LONGEST_NAME)
            yield _box(picture, thing["box"], thing["state"], label, None)


def _box(
    picture: Mapping[str, Any], corners: list[float], kind: str, label: str, score: float | None
) -> dict[str, Any]:
    """A box as the template wants it: places in percent, cut at the picture's edge."""
    x1, x2 = sorted(_percent(corners[position], picture["width"]) for position in (0, 2))
    y1, y2 = sorted(_percent(corners[position], picture["height"]) for position in (1, 3))
    return {
        "left": x1,
        "top": y1,
        "width": round(x2 - x1, 2),
        "height": round(y2 - y1, 2),
        "look": LOOKS[kind],
        "title": f"{label} ({_REASONS[kind]})",
        "label": label,
        "score": score,
        "place": None,
    }


def _percent(value: float, size: int) -> float:
    return round(min(max(100 * value / size, 0.0), 100.0), 2)


def _place_labels(boxes: list[dict[str, Any]], width: float, height: float) -> None:
    """Give each box the place of its label in percent, None where all places are taken."""
    taken: list[Rectangle] = []
    for box in reversed(boxes):
        for rectangle in _candidates(box, width, height):
            if not any(_overlap(rectangle, other) for other in taken):
                taken.append(rectangle)
                left, top = rectangle[:2]
                box["place"] = (round(100 * left / width, 2), round(100 * top / height, 2))
                break


def _candidates(box: Mapping[str, Any], width: float, height: float) -> Iterable[Rectangle]:
    """Places for a label, best first: above the box, inside at the top, below, at the bottom."""
    length = min(_CHARACTER_WIDTH * display_width(box["label"]) + _LABEL_PADDING, width)
    left = min(box["left"] / 100 * width, width - length)
    top, bottom = (box["top"] / 100 * height, (box["top"] + box["height"]) / 100 * height)
    for place in (top - _LABEL_HEIGHT, top, bottom, bottom - _LABEL_HEIGHT):
        if 0 <= place <= height - _LABEL_HEIGHT:
            yield (left, place, left + length, place + _LABEL_HEIGHT)


def _overlap(one: Rectangle, other: Rectangle) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def summary(picture: Mapping[str, Any]) -> str:
    """What is to be seen, in words.

    >>> summary({"detections": [{"kind": "correct"}, {"kind": "class"}], "objects": []})
    '1 correct, 1 wrong, 0 missed'
    """
    looks = Counter(LOOKS[found["kind"]] for found in picture["detections"])
    num_missed = sum(thing["state"] == "missed" for thing in picture["objects"])
    return f"{looks['correct']} correct, {looks['wrong']} wrong, {num_missed} missed"
