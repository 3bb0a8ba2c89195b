"""Detections drawn on their image: readable on light and on dark pictures, large and small."""

from __future__ import annotations

import colorsys
import io
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from rankdet.errors import printable
from rankdet.structures import Detections

MARK = "drawn by rankdet"  # in the comment of every JPEG file that we write

_GOLDEN = (math.sqrt(5) - 1) / 2  # steps of this much around the colour circle stay far apart
_SHORT, _LONG = 480, 2000  # pixels: smaller images are shown in whole multiples of their size
_LONGEST = 65_000  # pixels: JPEG knows no more
_SMALLEST_TEXT, _LARGEST_TEXT = 12, 48
_QUALITY = 92

Rectangle = tuple[int, int, int, int]  # left, top, right, bottom; the last two lie outside


def picture(pixels: np.ndarray, detections: Detections, classes: Sequence[str]) -> Image.Image:
    """The image with boxes, class names and scores; the best detections lie on top.

    pixels: (height, width, 3) uint8. detections: in pixels of the image. A small image is shown
    larger, so that its labels can be read; only one that JPEG cannot hold is shown smaller.
    """
    height, width = pixels.shape[:2]
    scale = _scale(width, height)
    canvas = Image.fromarray(pixels)
    if scale != 1:
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        how = Image.Resampling.BICUBIC if scale > 1 else Image.Resampling.LANCZOS
        canvas = canvas.resize(size, how)
    text_size = round(0.026 * math.sqrt(canvas.width * canvas.height))
    text_size = min(max(text_size, _SMALLEST_TEXT), _LARGEST_TEXT)
    line = max(2, text_size // 7)
    draw = ImageDraw.Draw(canvas)
    boxes = [
        _inside([edge * scale for edge in box], canvas.size) for box in detections.boxes.tolist()
    ]
    colours = [class_colour(label) for label in detections.labels.tolist()]
    for box, colour in reversed(list(zip(boxes, colours, strict=True))):
        _draw_box(draw, box, colour, line)
    names = [printable(classes[label]) for label in detections.labels.tolist()]
    texts = [
        f"{name} {score:.2f}" for name, score in zip(names, detections.scores.tolist(), strict=True)
    ]
    _draw_labels(draw, boxes, texts, colours, text_size)
    return canvas


def jpeg(image: Image.Image) -> bytes:
    """The content of a JPEG file, with our mark near its start."""
    stream = io.BytesIO()
    # Colours in full resolution: the thin lines would else be pale.
    image.save(stream, "JPEG", quality=_QUALITY, subsampling=0, comment=MARK)
    return stream.getvalue()


def contact_sheet(
    images: Sequence[Image.Image], *, columns: int = 4, side: int = 240
) -> Image.Image:
    """The pictures in rows, each as large as fits into side x side pixels, on white.

    >>> contact_sheet([Image.new("RGB", (480, 480))] * 6).size
    (960, 480)
    """
    if not images:
        raise ValueError("expected at least one picture, got none")
    columns = min(columns, len(images))
    sheet = Image.new("RGB", (columns * side, math.ceil(len(images) / columns) * side), "white")
    for number, image in enumerate(images):
        fitted = ImageOps.contain(image, (side - 4, side - 4))
        left, top = number % columns * side, number // columns * side
        sheet.paste(fitted, (left + (side - fitted.width) // 2, top + (side - fitted.height) // 2))
    return sheet


def class_colour(label: int) -> tuple[int, int, int]:
    """The colour of a class: bright, and always the same for one label.

    >>> class_colour(0), class_colour(1)
    ((255, 56, 56), (56, 114, 255))
    """
    red, green, blue = colorsys.hsv_to_rgb((label * _GOLDEN) % 1, 0.78, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def _scale(width: int, height: int) -> float:
    """By how much an image is enlarged or reduced.

    >>> _scale(500, 375), _scale(160, 120), _scale(1900, 10), _scale(130000, 10)
    (1, 4, 1, 0.5)
    """
    short, long = min(width, height), max(width, height)
    if long > _LONGEST:
        return _LONGEST / long
    return max(1, min(_SHORT // short, _LONG // long))


def _inside(box: Sequence[float], size: tuple[int, int]) -> Rectangle:
    """The box in whole pixels of the picture, at least one wide and high."""
    width, height = size
    left = min(max(round(box[0]), 0), width - 1)
    top = min(max(round(box[1]), 0), height - 1)
    right = min(max(round(box[2]), left + 1), width)
    bottom = min(max(round(box[3]), top + 1), height)
    return left, top, right, bottom


def _draw_box(
    draw: ImageDraw.ImageDraw, box: Rectangle, colour: tuple[int, int, int], line: int
) -> None:
    """A line of the class's colour between two dark ones: one of them differs from any image."""
    left, top, right, bottom = box
    around = (left - 1, top - 1, right, bottom)
    draw.rectangle(around, outline="black", width=line + 2)
    draw.rectangle((left, top, right - 1, bottom - 1), outline=colour, width=line)


def _draw_labels(
    draw: ImageDraw.ImageDraw,
    boxes: Sequence[Rectangle],
    texts: Sequence[str],
    colours: Sequence[tuple[int, int, int]],
    text_size: int,
) -> None:
    """The text of each box on a plate of its colour; the best choose their places first."""
    font = ImageFont.load_default(text_size)
    ascent, descent = font.getmetrics()  # type: ignore[union-attr]
    margin = max(2, text_size // 6)
    canvas = draw.im.size
    plates: list[tuple[Rectangle, str, tuple[int, int, int]]] = []
    for box, text, colour in zip(boxes, texts, colours, strict=True):
        text = _fitting(text, font, canvas[0] - 2 * margin)
        size = (math.ceil(font.getlength(text)) + 2 * margin, ascent + descent + margin)
        if text and size[1] <= canvas[1]:
            place = label_place(box, size, canvas, [plate for plate, _, _ in plates])
            plates.append((place, text, colour))
    for (left, top, right, bottom), text, colour in reversed(plates):
        draw.rectangle((left, top, right - 1, bottom - 1), fill=colour)
        ink = "black" if _brightness(colour) > 0.45 else "white"
        draw.text((left + margin, top + margin // 2), text, fill=ink, font=font)


def label_place(
    box: Rectangle,
    size: tuple[int, int],
    canvas: tuple[int, int],
    taken: Sequence[Rectangle],
) -> Rectangle:
    """Where a label of this (width, height) goes: above its box, else within, below, or beside.

    Always inside of the canvas (width, height). The first place that no other label has is taken;
    where all are taken, that within the upper edge of the box.

    >>> label_place((10, 40, 90, 80), (50, 12), (200, 100), [])
    (10, 28, 60, 40)
    >>> label_place((170, 5, 200, 80), (50, 12), (200, 100), [])
    (150, 5, 200, 17)
    """
    width, height = size
    left, top, right, bottom = box
    corners = [
        (left, top - height),
        (left, top),
        (left, bottom),
        (left, bottom - height),
        (right, top),
        (left - width, top),
    ]
    places = []
    for x, y in corners:
        x_inside = min(max(x, 0), canvas[0] - width)
        y_inside = min(max(y, 0), canvas[1] - height)
        places.append(((x_inside, y_inside, x_inside + width, y_inside + height), y == y_inside))
    free = [place for place, is_free in places if is_free and not _meets(place, taken)]
    return free[0] if free else places[1][0]


def _meets(place: Rectangle, others: Sequence[Rectangle]) -> bool:
    left, top, right, bottom = place
    return any(
        left < other[2] and other[0] < right and top < other[3] and other[1] < bottom
        for other in others
    )


def _fitting(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """The text, its name cut if need be; the score at its end is kept. Empty if nothing fits."""
    name, _, score = text.rpartition(" ")
    if font.getlength(text) <= width:
        return text
    for length in range(len(name) - 1, 0, -1):
        shorter = f"{name[:length]}... {score}"
        if font.getlength(shorter) <= width:
            return shorter
    return score if font.getlength(score) <= width else ""


def _brightness(colour: tuple[int, int, int]) -> float:
    red, green, blue = colour
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255
