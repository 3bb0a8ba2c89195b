"""Pictures with boxes: places, looks, labels, and nothing that is not escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdet.report.pictures import LEGEND, LOOKS, picture_figure


class Elements(HTMLParser):
    """All elements as (tag, attributes), and the text of all labels."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.labels: list[str] = []
        self.titles: list[str] = []
        self._open: list[str] | None = None
        self.feed(markup)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))
        is_label = tag == "span" and "tag " in (dict(attributes).get("class") or "")
        self._open = self.labels if is_label else self.titles if tag == "title" else None

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self._open.append(data)

    def edges(self) -> list[dict[str, str | None]]:
        """The boxes that are seen, without those behind them that make them stand out."""
        return [
            attributes
            for tag, attributes in self.found
            if tag == "rect" and (attributes["class"] or "").startswith("edge")
        ]


def picture(**changes: Any) -> dict[str, Any]:
    content = {"name": "val/000003", "width": 200, "height": 100, "jpeg": "/9j/AA=="}
    return content | {"objects": [], "detections": []} | changes


def detection(box: list[float], kind: str = "correct", **changes: Any) -> dict[str, Any]:
    return {"box": box, "class": "cat", "score": 0.874, "kind": kind} | changes


def test_a_box_is_placed_in_percent_of_the_picture() -> None:
    elements = Elements(picture_figure(picture(detections=[detection([20, 30, 70, 80])])))
    (edge,) = elements.edges()
    assert [edge[name] for name in ("x", "y", "width", "height")] == [
        *("10.0%", "30.0%", "25.0%", "50.0%")
    ]
    assert elements.labels == ["cat 0.87"]
    assert elements.titles == ["cat 0.87 (correct)"]


def test_the_image_is_inside_and_described() -> None:
    elements = Elements(picture_figure(picture()))
    (image,) = [attributes for tag, attributes in elements.found if tag == "img"]
    assert image["src"] == "data:image/jpeg;base64,/9j/AA=="
    assert (image["width"], image["height"]) == ("200", "100")
    assert image["alt"] == "val/000003: 0 correct, 0 wrong, 0 missed"


@pytest.mark.parametrize(
    ("kind", "look"),
    [
        ("correct", "correct"),
        ("localisation", "wrong"),
        ("duplicate", "wrong"),
        ("class", "wrong"),
        ("background", "wrong"),
        ("uncounted", "uncounted"),
    ],
)
def test_the_look_follows_the_kind(kind: str, look: str) -> None:
    elements = Elements(picture_figure(picture(detections=[detection([0, 40, 50, 90], kind)])))
    assert [edge["class"] for edge in elements.edges()] == [f"edge {look}"]


def test_objects_are_drawn_unless_they_were_found() -> None:
    objects = [
        {"box": [0, 40, 20, 60], "class": "cat", "state": "found"},
        {"box": [50, 40, 70, 60], "class": "dog", "state": "missed"},
        {"box": [140, 40, 160, 60], "class": "cow", "state": "ignored"},
    ]
    elements = Elements(picture_figure(picture(objects=objects)))
    assert {edge["class"] for edge in elements.edges()} == {"edge missed", "edge uncounted"}
    assert sorted(elements.labels) == ["cow", "dog"]
    assert "dog (missed object)" in elements.titles


def test_every_look_is_in_the_legend() -> None:
    assert {look for look, _ in LEGEND} == set(LOOKS.values())


def test_what_is_right_lies_on_top() -> None:
    boxes = [detection([10, 40, 60, 90], kind) for kind in ("correct", "class", "uncounted")]
    elements = Elements(picture_figure(picture(detections=boxes)))
    looks = [edge["class"] for edge in elements.edges()]
    assert looks == ["edge uncounted", "edge wrong", "edge correct"]


def test_boxes_end_at_the_edge_of_the_picture() -> None:
    elements = Elements(picture_figure(picture(detections=[detection([-50, -1e6, 300, 150])])))
    (edge,) = elements.edges()
    assert [edge[name] for name in ("x", "y", "width", "height")] == [
        *("0.0%", "0.0%", "100.0%", "100.0%")
    ]


def test_corners_in_the_wrong_order_are_put_right() -> None:
    (edge,) = Elements(picture_figure(picture(detections=[detection([70, 80, 20, 30])]))).edges()
    assert (edge["x"], edge["width"], edge["height"]) == ("10.0%", "25.0%", "50.0%")


def test_a_label_stands_above_its_box_or_inside_where_there_is_no_room() -> None:
    def top(box: list[float]) -> float:
        markup = picture_figure(picture(detections=[detection(box)]))
        found = re.search(r'<span class="tag[^>]*top: ([\d.]+)%', markup)
        assert found
        return float(found[1])

    assert top([20, 50, 70, 80]) == pytest.approx(50 - 100 * 15 / 145, abs=0.01)
    assert top([20, 5, 70, 80]) == 5.0


def test_a_label_ends_within_the_picture() -> None:
    markup = picture_figure(picture(detections=[detection([195, 50, 200, 80])]))
    found = re.search(r"left: ([\d.]+)%; top", markup)
    assert found
    assert float(found[1]) <= 100 - 100 * (7.2 * len("cat 0.87")) / 290


def test_labels_keep_the_score_of_a_long_name() -> None:
    long = detection([20, 50, 70, 80], **{"class": "x" * 200})
    (label,) = Elements(picture_figure(picture(detections=[long]))).labels
    assert label == "x" * 17 + "… 0.87"


@given(
    st.lists(
        st.tuples(st.floats(-20, 220), st.floats(-20, 120), st.floats(0, 90), st.floats(0, 90)),
        max_size=12,
    )
)
def test_labels_never_overlap(places: list[tuple[float, float, float, float]]) -> None:
    boxes = [detection([x, y, x + width, y + height]) for x, y, width, height in places]
    elements = Elements(picture_figure(picture(detections=boxes)))
    assert len(elements.edges()) == len(boxes)
    assert len(elements.labels) <= len(boxes)
    corners = []
    for tag, attributes in elements.found:
        if tag == "span" and "tag " in (attributes["class"] or ""):
            left, top = map(float, re.findall(r"[\d.]+", attributes["style"] or ""))
            corners.append((2.9 * left, 1.45 * top))
    width = 7.2 * len("cat 0.87") + 6
    for index, (x, y) in enumerate(corners):
        assert -0.1 <= x <= 290.1 - width
        assert -0.1 <= y <= 130.1
        for other_x, other_y in corners[:index]:
            assert abs(x - other_x) > width - 0.1 or abs(y - other_y) > 14.9


def test_one_box_always_has_its_label() -> None:
    for box in ([0, 0, 200, 100], [0, 0, 1, 1], [199, 99, 200, 100], [-9, -9, -5, -5]):
        assert Elements(picture_figure(picture(detections=[detection(box)]))).labels


def test_names_are_escaped(hostile_names: tuple[str, ...]) -> None:
    for name in hostile_names:
        content = picture(
            name=name,
            objects=[{"box": [0, 0, 9, 9], "class": name, "state": "missed"}],
            detections=[detection([20, 30, 70, 80], **{"class": name})],
        )
        elements = Elements(picture_figure(content, caption=name))
        tags = {tag for tag, _ in elements.found}
        assert tags <= {"figure", "div", "img", "svg", "rect", "title", "span", "figcaption"} | {
            *("br", "strong")
        }
        assert not any("data-hostile" in attributes for _, attributes in elements.found)
        assert not any(
            attribute.startswith("on") for _, found in elements.found for attribute in found
        )


def test_the_caption_says_what_is_to_be_seen() -> None:
    content = picture(
        objects=[{"box": [0, 0, 9, 9], "class": "dog", "state": "missed"}],
        detections=[
            detection([20, 30, 70, 80], kind) for kind in ("correct", "class", "uncounted")
        ],
    )
    markup = picture_figure(content, caption="focal")
    assert "<strong>focal</strong>" in markup
    assert "1 correct, 1 wrong, 1 missed" in markup
