"""Boxes and labels on an image: where they lie, and that they can be seen."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from rankdet.structures import Detections
from rankdet.workflows import pictures
from rankdet.workflows.pictures import class_colour, jpeg, label_place, picture

CLASSES = ("cat", "dog", "bus")


def detections(*rows: tuple[list[float], float, int]) -> Detections:
    boxes, scores, labels = zip(*rows, strict=True) if rows else ((), (), ())
    return Detections(
        torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        torch.tensor(scores, dtype=torch.float32),
        torch.tensor(labels, dtype=torch.int64),
    )


def plain(height: int = 480, width: int = 640, value: int = 0) -> np.ndarray:
    return np.full((height, width, 3), value, dtype=np.uint8)


def places_of(image: Image.Image, colour: tuple[int, int, int]) -> set[tuple[int, int]]:
    """(x, y) of all pixels of a colour."""
    rows, columns = (np.asarray(image) == colour).all(axis=2).nonzero()
    return set(zip(columns.tolist(), rows.tolist(), strict=True))


# --- boxes


@pytest.mark.parametrize("value", [0, 255])
def test_a_box_has_the_colour_of_its_class_at_its_edges(value: int) -> None:
    image = picture(plain(value=value), detections(([100, 200, 300, 400], 0.5, 1)), CLASSES)
    assert image.size == (640, 480)
    coloured = places_of(image, class_colour(1))
    for x, y in ((100, 300), (299, 300), (200, 200), (200, 399), (100, 399), (299, 399)):
        assert (x, y) in coloured
    for x, y in ((99, 300), (300, 300), (200, 400), (200, 300)):
        assert (x, y) not in coloured


def test_a_dark_line_lies_on_both_sides_of_the_coloured_one() -> None:
    image = picture(plain(value=255), detections(([100, 200, 300, 400], 0.5, 1)), CLASSES)
    pixels = np.asarray(image)
    row = pixels[300, 95:110].tolist()
    colour, black, white = list(class_colour(1)), [0, 0, 0], [255, 255, 255]
    assert row == [white] * 4 + [black] + [colour] * 2 + [black] + [white] * 7
    row = pixels[300, 290:305].tolist()
    assert row == [white] * 7 + [black] + [colour] * 2 + [black] + [white] * 4


def test_nothing_found_leaves_the_image() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (480, 500, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(picture(pixels, detections(), CLASSES)), pixels)


def test_the_pixels_that_were_given_are_not_drawn_on() -> None:
    pixels = plain()
    picture(pixels, detections(([100, 200, 300, 400], 0.5, 1)), CLASSES)
    assert not pixels.any()


def test_the_best_detection_lies_on_top() -> None:
    image = picture(
        plain(),
        detections(([100, 100, 300, 300], 0.9, 0), ([100, 100, 300, 300], 0.5, 1)),
        CLASSES,
    )
    assert (100, 200) in places_of(image, class_colour(0))


def test_classes_have_different_colours_that_stay() -> None:
    assert len({class_colour(label) for label in range(80)}) == 80
    assert class_colour(3) == class_colour(3)


# --- sizes


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        ((640, 480), (640, 480)),
        ((160, 160), (480, 480)),
        ((100, 50), (900, 450)),
        ((5000, 3), (5000, 3)),
        ((1, 1), (480, 480)),
        ((130_000, 2), (65_000, 1)),
    ],
)
def test_small_images_are_enlarged_and_too_long_ones_reduced(
    size: tuple[int, int], shown: tuple[int, int]
) -> None:
    width, height = size
    image = picture(plain(height, width), detections(([0, 0, width, height], 0.5, 0)), CLASSES)
    assert image.size == shown
    assert Image.open(io.BytesIO(jpeg(image))).size == shown


def test_the_boxes_of_an_enlarged_image_are_enlarged_with_it() -> None:
    image = picture(plain(160, 160), detections(([40, 50, 100, 150], 0.5, 2)), CLASSES)
    coloured = places_of(image, class_colour(2))
    assert (120, 300) in coloured
    assert (299, 300) in coloured
    assert (119, 300) not in coloured
    assert (300, 300) not in coloured


def test_a_box_beyond_the_image_is_drawn_at_its_edge() -> None:
    image = picture(plain(), detections(([-50, 100, 5000, 900], 0.5, 0)), CLASSES)
    coloured = places_of(image, class_colour(0))
    assert {(0, 300), (639, 300), (300, 479)} <= coloured


def test_a_box_without_extent_is_still_drawn() -> None:
    image = picture(plain(), detections(([640, 480, 640, 480], 0.5, 0)), CLASSES)
    assert (639, 479) in places_of(image, class_colour(0))


# --- labels


def texts_of(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> list[str]:
    """The texts that are drawn, from the worst detection to the best."""
    drawn: list[str] = []
    original = ImageDraw.ImageDraw.text

    def text(self: Any, place: Any, content: str, **keywords: Any) -> None:
        drawn.append(content)
        original(self, place, content, **keywords)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)
    picture(*arguments)
    return drawn


def test_a_label_has_name_and_score(monkeypatch: pytest.MonkeyPatch) -> None:
    found = detections(([100, 100, 300, 300], 0.987, 0), ([10, 300, 50, 400], 0.0349, 2))
    assert texts_of(monkeypatch, plain(), found, CLASSES) == ["bus 0.03", "cat 0.99"]


def test_labels_of_boxes_at_one_place_do_not_cover_each_other() -> None:
    box = [100.0, 200.0, 300.0, 400.0]
    both = picture(plain(), detections((box, 0.9, 0), (box, 0.5, 1)), CLASSES)
    one = picture(plain(), detections((box, 0.5, 1)), CLASSES)
    num_alone = len(places_of(one, class_colour(1)))  # its label and the box, which is now hidden
    assert len(places_of(both, class_colour(1))) > 0.3 * num_alone
    assert len(places_of(both, class_colour(0))) > 0.7 * num_alone


def test_control_characters_of_a_name_are_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = detections(([100, 100, 300, 300], 0.5, 0))
    assert texts_of(monkeypatch, plain(), found, ["a\nb"]) == ["a\\nb 0.50"]


def test_a_name_that_is_too_long_is_cut_before_the_score(monkeypatch: pytest.MonkeyPatch) -> None:
    found = detections(([100, 100, 300, 300], 0.5, 0))
    (text,) = texts_of(monkeypatch, plain(), found, ["giraffe " * 50])
    assert text.startswith("giraffe giraffe")
    assert text.endswith("... 0.50")
    font = ImageFont.load_default(14)
    assert 500 < font.getlength(text) < 640


def test_where_nothing_fits_there_is_no_label(monkeypatch: pytest.MonkeyPatch) -> None:
    found = detections(([0, 0, 1900, 4], 0.5, 0))
    assert texts_of(monkeypatch, plain(4, 1900), found, CLASSES) == []
    found = detections(([0, 0, 4, 1900], 0.5, 0))
    assert texts_of(monkeypatch, plain(1900, 4), found, CLASSES) == []
    found = detections(([0, 0, 45, 1900], 0.5, 0))
    assert texts_of(monkeypatch, plain(1900, 45), found, ["x" * 30]) == ["0.50"]


def test_a_label_is_a_plate_of_the_colour_with_ink_on_it() -> None:
    image = picture(plain(value=128), detections(([100, 200, 300, 400], 0.5, 1)), CLASSES)
    pixels = np.asarray(image)[185:200, 100:150].reshape(-1, 3).tolist()
    assert pixels.count(list(class_colour(1))) > 300
    assert [255, 255, 255] in pixels  # the second class's colour is dark


def test_bright_colours_have_dark_ink() -> None:
    image = picture(plain(value=128), detections(([100, 200, 300, 400], 0.5, 2)), CLASSES)
    pixels = np.asarray(image)[185:198, 100:150].reshape(-1, 3).tolist()
    assert [0, 0, 0] in pixels
    assert [255, 255, 255] not in pixels


@pytest.mark.parametrize(
    ("box", "taken", "place"),
    [
        ((10, 40, 90, 80), [], (10, 28, 60, 40)),  # above
        ((10, 5, 90, 80), [], (10, 5, 60, 17)),  # no room above: within
        ((180, 40, 200, 80), [], (150, 28, 200, 40)),  # moved to the left
        ((10, 40, 90, 80), [(10, 28, 60, 40)], (10, 40, 60, 52)),
        ((10, 40, 90, 80), [(10, 28, 60, 52)], (10, 80, 60, 92)),  # below
        ((10, 40, 90, 80), [(10, 28, 60, 52), (10, 80, 60, 92)], (10, 68, 60, 80)),
        ((10, 40, 90, 80), [(10, 28, 60, 92)], (90, 40, 140, 52)),  # to the right
        ((100, 40, 140, 80), [(100, 0, 200, 100)], (50, 40, 100, 52)),  # to the left
        ((10, 40, 90, 80), [(0, 0, 200, 100)], (10, 40, 60, 52)),  # nowhere: within
    ],
)
def test_a_label_takes_the_first_free_place(
    box: tuple[int, int, int, int],
    taken: list[tuple[int, int, int, int]],
    place: tuple[int, int, int, int],
) -> None:
    assert label_place(box, (50, 12), (200, 100), taken) == place


@settings(max_examples=200, deadline=None)
@given(
    box=st.tuples(*[st.integers(0, 99)] * 2, *[st.integers(100, 120)] * 2),
    size=st.tuples(st.integers(1, 100), st.integers(1, 100)),
    taken=st.lists(st.tuples(*[st.integers(0, 60)] * 2, *[st.integers(61, 120)] * 2), max_size=3),
)
def test_a_label_never_leaves_the_image(
    box: tuple[int, int, int, int],
    size: tuple[int, int],
    taken: list[tuple[int, int, int, int]],
) -> None:
    left, top, right, bottom = label_place(box, size, (110, 105), taken)
    assert (right - left, bottom - top) == size
    assert left >= 0
    assert top >= 0
    assert right <= 110
    assert bottom <= 105


# --- the file


def test_the_file_is_a_jpeg_with_our_mark_near_its_start() -> None:
    content = jpeg(picture(plain(), detections(), CLASSES))
    assert content.startswith(b"\xff\xd8\xff")
    assert pictures.MARK.encode() in content[:1000]
    with Image.open(io.BytesIO(content)) as image:
        assert image.size == (640, 480)
