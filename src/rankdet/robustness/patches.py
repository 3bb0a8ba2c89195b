"""Patches at the centre of objects, half as wide and half as high as their boxes.

Pure functions of an image (3, H, W), uint8 in 0..255 or float in 0..1, and boxes (G, 4), xyxy
pixels. The image itself is not changed. What a patch shows is always taken from the image as it
was: where patches overlap, the later object's lies on top, and never shows part of another patch.

The paper: "The patch is of half width or half height of the ground-truth bounding box annotation",
read here as both.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

Window = tuple[int, int, int, int]  # left, top, right, bottom; the last two lie outside


def centre_windows(boxes: Tensor, size: tuple[int, int]) -> list[Window]:
    """The middle half of each box in whole pixels, inside of an image of this (height, width).

    A window is round(side / 2) pixels long (half a pixel is rounded up), at least one and at most
    as long as the image.

    >>> centre_windows(torch.tensor([[0.0, 0, 8, 4], [9, 9, 10, 10]]), (10, 10))
    [(2, 1, 6, 3), (9, 9, 10, 10)]
    """
    height, width = size
    windows = []
    for x1, y1, x2, y2 in boxes.tolist():
        left, right = _middle(x1, x2, width)
        top, bottom = _middle(y1, y2, height)
        windows.append((left, top, right, bottom))
    return windows


def _middle(start: float, end: float, limit: int) -> tuple[int, int]:
    length = min(max(_rounded((end - start) / 2), 1), limit)
    first = _rounded((start + end - length) / 2)
    first = min(max(first, 0), limit - length)
    return first, first + length


def _rounded(value: float) -> int:
    """Halves go up, where Python's `round` would take the even neighbour."""
    return int(np.floor(value + 0.5))


def black_patches(image: Tensor, boxes: Tensor) -> Tensor:
    """The image with zeros at the centre of each object: the paper's Black-Patch."""
    result = image.clone()
    for left, top, right, bottom in _windows(image, boxes):
        result[:, top:bottom, left:right] = 0
    return result


def flip_patches(image: Tensor, boxes: Tensor, random: np.random.Generator) -> Tensor:
    """The image with the centre of each object mirrored: the paper's Flip-Patch.

    Left-right, top-bottom or both, with equal probability, drawn for each object.
    """
    result = image.clone()
    choices: tuple[tuple[int, ...], ...] = ((2,), (1,), (1, 2))  # left-right, top-bottom, both
    for left, top, right, bottom in _windows(image, boxes):
        sides = choices[random.integers(len(choices))]
        result[:, top:bottom, left:right] = image[:, top:bottom, left:right].flip(sides)
    return result


def random_patches(image: Tensor, boxes: Tensor, random: np.random.Generator) -> Tensor:
    """The image with a piece from elsewhere at the centre of each object: Random-Patch.

    The piece has the patch's size and comes from a place outside of this object's box, each place
    equally likely; where the image has no such place, from `outside_place`'s substitute. Other
    objects may be in it: the paper asks for "outside of a bounding box" alone.
    """
    result = image.clone()
    size = (image.shape[1], image.shape[2])
    windows = _windows(image, boxes)
    for (left, top, right, bottom), box in zip(windows, boxes.tolist(), strict=True):
        height, width = bottom - top, right - left
        x, y = outside_place(box, (height, width), size, random)
        result[:, top:bottom, left:right] = image[:, y : y + height, x : x + width]
    return result


def outside_place(
    box: list[float],
    piece: tuple[int, int],
    size: tuple[int, int],
    random: np.random.Generator,
) -> tuple[int, int]:
    """(left, top) of a piece (height, width) of an image of this size that misses the box.

    All such places are equally likely. If there is none, because the box fills the image, it is the
    corner of the image where the piece overlaps the box least: no place overlaps it less. Of equal
    corners it is the first of top left, top right, bottom left, bottom right.

    >>> random = np.random.default_rng(0)
    >>> outside_place([0.0, 0, 7, 10], (2, 3), (10, 10), random)[0]  # right of the box
    7
    >>> outside_place([0.0, 0, 10, 9], (2, 3), (10, 10), random)  # no room: at the bottom
    (0, 8)
    """
    (height, width), (image_height, image_width) = piece, size
    x1, y1, x2, y2 = box
    lefts, tops = image_width - width + 1, image_height - height + 1  # how many places there are
    beside = _outside(x1, x2, width, image_width)
    above = _outside(y1, y2, height, image_height)
    # Either the columns miss the box, with any rows; or they do not, and the rows miss it.
    num_beside = len(beside) * tops
    inside = np.setdiff1d(np.arange(lefts), beside, assume_unique=True)
    number = num_beside + len(inside) * len(above)
    if not number:
        corners = [(x, y) for y in (0, tops - 1) for x in (0, lefts - 1)]
        return min(
            corners,
            key=lambda place: _shared(place[0], width, x1, x2) * _shared(place[1], height, y1, y2),
        )
    drawn = int(random.integers(number))
    if drawn < num_beside:
        return int(beside[drawn // tops]), drawn % tops
    drawn -= num_beside
    return int(inside[drawn // len(above)]), int(above[drawn % len(above)])


def _outside(start: float, end: float, length: int, limit: int) -> np.ndarray:
    """The first pixels of all stretches of this length, within 0..limit, that miss start..end."""
    first = np.arange(limit - length + 1)
    return first[(first + length <= start) | (first >= end)]


def _shared(first: int, length: int, start: float, end: float) -> float:
    return max(0.0, min(first + length, end) - max(first, start))


def paste_patch(image: Tensor, boxes: Tensor, patch: Tensor) -> Tensor:
    """The image with one patch, resized to each place, at the centre of each object.

    patch (3, h, w): float in 0..1, such as `train_patch` gives: the paper's Adversarial-Patch.
    """
    result = image.clone()
    for left, top, right, bottom in _windows(image, boxes):
        content = resized(patch, (bottom - top, right - left))
        if image.dtype == torch.uint8:
            content = (content * 255).round()
        result[:, top:bottom, left:right] = content.to(image.dtype)
    return result


def resized(patch: Tensor, size: tuple[int, int]) -> Tensor:
    """(3, height, width): the patch in another size, bilinear with antialiasing, differentiable."""
    result = F.interpolate(patch.unsqueeze(0), size=size, mode="bilinear", antialias=True)
    return result[0].clamp(0, 1)


def _windows(image: Tensor, boxes: Tensor) -> Iterator[Window]:
    if image.ndim != 3 or not (image.dtype == torch.uint8 or image.is_floating_point()):
        got = f"{tuple(image.shape)} of {image.dtype}"
        raise ValueError(f"image: expected (3, H, W) of uint8 or a float type, got {got}")
    return iter(centre_windows(boxes, (image.shape[1], image.shape[2])))
