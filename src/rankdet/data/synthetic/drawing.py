"""Shapes, patterns and paint for drawn images: arrays of pixels, no randomness.

Only additions, products, quotients, square roots and roundings of single numbers are used on
arrays: IEEE 754 fixes their results, so that an image is the same on every machine. A shape is a
distance: below 0 inside, above 0 outside, and about one pixel's length per pixel near its edge.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

Shape = Literal[
    "disc",
    "ring",
    "crescent",
    "triangle",
    "square",
    "pentagon",
    "star",
    "cross",
    "bar",
    "half disc",
    "lens",
    "arc",
]
Pattern = Literal["plain", "stripes", "checks", "dots", "gradient", "noise"]
Colour = tuple[float, float, float]  # red, green, blue in 0..255

_GRID = 2.0**20  # cosines are rounded to this grid: the last bit differs between C libraries


def direction(angle: float) -> tuple[float, float]:
    """(cosine, sine) of an angle in radians, the same on every machine."""
    return round(math.cos(angle) * _GRID) / _GRID, round(math.sin(angle) * _GRID) / _GRID


def shape_distance(shape: Shape, u: np.ndarray, v: np.ndarray, form: float) -> np.ndarray:
    """How far each point (u, v) lies outside of the shape, which fits into the unit circle.

    u and v have one shape, which the result has too. form in 0..1 varies a shape within its class:
    the hole of a ring, the arms of a cross, ...

    >>> shape_distance("disc", np.array([0.0, 3.0]), np.array([0.0, 4.0]), 0.5).tolist()
    [-1.0, 4.0]
    """
    distance: np.ndarray
    match shape:
        case "disc":
            distance = _length(u, v) - 1
        case "ring":
            radius = _length(u, v)
            distance = np.maximum(radius - 1, (0.4 + 0.25 * form) - radius)
        case "crescent":
            bite = _length(u - 0.5, v)
            distance = np.maximum(_length(u, v) - 1, (0.75 + 0.1 * form) - bite)
        case "triangle":
            distance = _largest_two(u, v, 3, 0.5)[0]
        case "square":
            distance = np.maximum(np.abs(u), np.abs(v)) - math.sqrt(0.5)
        case "pentagon":
            distance = _largest_two(u, v, 5, direction(math.pi / 5)[0])[0]
        case "star":
            # A point of a pentagram lies inside of at least four of its five lines. A share of
            # the fifth makes the star fatter; the offset keeps its tips on the unit circle.
            thin, share = direction(math.pi * 2 / 5)[0], 0.2 * form
            first, second = _largest_two(u, v, 5, thin + share * (1 - thin))
            distance = second + share * (first - second)
        case "cross":
            x, y, half = np.abs(u), np.abs(v), 0.24 + 0.12 * form
            distance = np.maximum(np.minimum(x, y) - half, np.maximum(x, y) - 0.93)
        case "bar":
            distance = np.maximum(np.abs(u) - 0.95, np.abs(v) - (0.12 + 0.16 * form))
        case "half disc":
            distance = np.maximum(_length(u, v) - 1, u)
        case "lens":
            offset = 0.5 + 0.2 * form
            reach = math.sqrt(1 + offset * offset)
            distance = np.maximum(_length(u - offset, v), _length(u + offset, v)) - reach
        case "arc":
            radius = _length(u, v)
            distance = np.maximum(np.maximum(radius - 1, 0.6 - radius), u - 0.2 * form)
    return distance


def _length(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    length: np.ndarray = np.sqrt(u * u + v * v)
    return length


def _largest_two(
    u: np.ndarray, v: np.ndarray, num_lines: int, offset: float
) -> tuple[np.ndarray, np.ndarray]:
    """The largest and the second largest distance to lines around the origin, `offset` from it."""
    first = np.full_like(u, -np.inf)
    second = first
    for i in range(num_lines):
        cosine, sine = direction((2 * i + 1) * math.pi / num_lines)
        distance = u * cosine + v * sine - offset
        second = np.maximum(second, np.minimum(first, distance))
        first = np.maximum(first, distance)
    return first, second


def pattern_weight(
    pattern: Pattern,
    x: np.ndarray,
    y: np.ndarray,
    angle: float,
    period: float,
    grid: np.ndarray,
) -> np.ndarray:
    """(h, w): how much of a texture's second colour each pixel shows, 0..1.

    x (1, w) and y (h, 1) are pixels, angle (radians) says how the pattern is turned, period is its
    length in pixels. grid (n, n) holds the values 0..1 between which "noise" is drawn, repeated
    beyond its end.
    """
    if pattern == "noise":
        return _smooth_noise(x / period, y / period, grid)
    cosine, sine = direction(angle)
    u, v = x * cosine + y * sine, y * cosine - x * sine
    weight: np.ndarray
    match pattern:
        case "plain":
            weight = np.zeros_like(u)
        case "stripes":
            weight = 0.5 + 0.5 * _square_wave(u, period)
        case "checks":
            weight = 0.5 + 0.5 * _square_wave(u, period) * _square_wave(v, period)
        case "dots":
            u, v = u / period, v / period
            u, v = u - np.floor(u) - 0.5, v - np.floor(v) - 0.5
            weight = np.clip(0.5 + (0.32 - _length(u, v)) * period, 0, 1)
        case "gradient":
            weight = np.clip(0.5 + u / (4 * period), 0, 1)
    return weight


def _square_wave(x: np.ndarray, period: float) -> np.ndarray:
    """-1 and 1 in turn, with slopes of about one pixel between them."""
    phase = x / period
    triangle = np.abs(phase - np.floor(phase) - 0.5) * 4 - 1
    return np.clip(triangle * (period / 4), -1, 1)


def _smooth_noise(x: np.ndarray, y: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """(h, w): the values of a grid at x (1, w), y (h, 1), with smooth transitions between them."""
    left, top = np.floor(x[0]), np.floor(y[:, 0])
    size = len(grid)
    column, row = left.astype(np.int64) % size, top.astype(np.int64) % size
    rows = grid[row] + _smooth_step(y - top[:, None]) * (grid[(row + 1) % size] - grid[row])
    before, after = rows[:, column], rows[:, (column + 1) % size]
    noise: np.ndarray = before + _smooth_step(x - left) * (after - before)
    return noise


def _smooth_step(x: np.ndarray) -> np.ndarray:
    step: np.ndarray = x * x * (3 - 2 * x)
    return step


def coverage(distance: np.ndarray, softness: float = 1.0) -> np.ndarray:
    """How much of each pixel a shape covers, 0..1; at least 0.5 where the distance is <= 0."""
    return np.clip(0.5 - distance / softness, 0, 1)


def mix(first: Colour, second: Colour, weight: np.ndarray) -> np.ndarray:
    """(3, h, w): the first colour where weight (h, w) is 0, the second one where it is 1."""
    start = np.array(first, dtype=np.float32)[:, None, None]
    end = np.array(second, dtype=np.float32)[:, None, None]
    mixed: np.ndarray = start + weight * (end - start)
    return mixed


def paint(canvas: np.ndarray, paint: np.ndarray, opacity: np.ndarray) -> None:
    """Lay paint (3, h, w) over the canvas (3, h, w) in place, as dense as opacity (h, w) says."""
    canvas += opacity * (paint - canvas)


def blur(canvas: np.ndarray) -> np.ndarray:
    """(3, h, w) smoothed with (1, 2, 1) / 4 in both directions; the outermost pixels stay."""
    soft = canvas.copy()
    soft[:, 1:-1] = (canvas[:, :-2] + 2 * canvas[:, 1:-1] + canvas[:, 2:]) / 4
    result = soft.copy()
    result[:, :, 1:-1] = (soft[:, :, :-2] + 2 * soft[:, :, 1:-1] + soft[:, :, 2:]) / 4
    return result
