"""A scene as pixels: background, clutter, textured shapes from back to front, light and camera."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rankdet.data.synthetic import drawing, scenes
from rankdet.data.synthetic.drawing import Shape
from rankdet.data.synthetic.scenes import Item, Scene, Stream


def render(scene: Scene, key: Sequence[int]) -> np.ndarray:
    """(3, size, size) uint8 RGB: the scene as an image. key is the one of `scenes.arrange`."""
    canvas = _paint_ground(Stream([*key, 1]), scene)
    stream = Stream([*key, 2])
    for item in scene.items:
        _paint_item(stream, canvas, item)
    # A stream for each step: ground and light stay the same when an item is taken away.
    return _photograph(Stream([*key, 3]), canvas)


def _paint_ground(stream: Stream, scene: Scene) -> np.ndarray:
    """(3, size, size) float32: a gradient with noise, a faint pattern, soft blobs and strokes."""
    size = scene.size
    steps = np.arange(size, dtype=np.float32)
    x, y = (steps - size / 2)[None, :], (steps - size / 2)[:, None]
    angle = stream.uniform(0, 2 * math.pi)
    grid = _noise_grid(stream, 16)
    period = stream.uniform(0.15, 0.4) * size
    noise = drawing.pattern_weight("noise", x, y, angle, period, grid)
    slope = drawing.pattern_weight("gradient", x, y, angle, size / 4, grid)
    canvas = drawing.mix(*scene.ground, 0.6 * noise + 0.4 * slope)
    pattern = stream.choice(scenes.PATTERNS)
    faint = drawing.pattern_weight(pattern, x, y, angle, stream.uniform(4, size / 8), grid)
    canvas += stream.uniform(-28, 28) * (faint - 0.5)
    for _ in range(stream.below(5)):
        _paint_clutter(stream, canvas, "disc", stream.uniform(0.05, 0.25) * size, 1.0)
    for _ in range(stream.below(7)):
        radius = stream.uniform(0.05, 0.3) * size
        _paint_clutter(stream, canvas, "bar", radius, stream.uniform(2.5, 9) / radius)
    return canvas


def _noise_grid(stream: Stream, size: int) -> np.ndarray:
    return stream.bytes(size, size).astype(np.float32) / 255


def _paint_clutter(
    stream: Stream, canvas: np.ndarray, shape: Shape, radius: float, aspect: float
) -> None:
    """Paint a faint shape: discs with soft edges (blobs), bars with hard ones (strokes)."""
    size = canvas.shape[1]
    x, y = stream.uniform(0, size), stream.uniform(0, size)
    cosine, sine = drawing.direction(stream.uniform(0, 2 * math.pi))
    softness = radius if shape == "disc" else 1.0
    colour = stream.choice(scenes.COLOURS)
    opacity = stream.uniform(0.08, 0.3) if shape == "disc" else stream.uniform(0.15, 0.6)
    reach = math.ceil(radius + softness)
    left, right = max(0, math.floor(x) - reach), min(size, math.floor(x) + reach)
    top, bottom = max(0, math.floor(y) - reach), min(size, math.floor(y) + reach)
    across = (np.arange(left, right) + (0.5 - x)).astype(np.float32)[None, :]
    down = (np.arange(top, bottom) + (0.5 - y)).astype(np.float32)[:, None]
    u = (across * cosine + down * sine) / radius
    v = (down * cosine - across * sine) / (radius * aspect)
    distance = drawing.shape_distance(shape, u, v, 0.0) * (radius * min(1.0, aspect))
    solid = np.array(colour, dtype=np.float32)[:, None, None]
    cover = opacity * drawing.coverage(distance, softness)
    drawing.paint(canvas[:, top:bottom, left:right], solid, cover)


def _paint_item(stream: Stream, canvas: np.ndarray, item: Item) -> None:
    style = item.style
    rows, columns = item.window
    if style.shadow:
        # Towards the lower right: the window's pixels, moved by two.
        behind = canvas[:, rows, columns][:, 2:, 2:]
        soft = drawing.coverage(item.distance, 4)[:-2, :-2]
        behind *= 1 - style.shadow * soft
    height, width = item.distance.shape
    x = (np.arange(width, dtype=np.float32) - width / 2)[None, :]
    y = (np.arange(height, dtype=np.float32) - height / 2)[:, None]
    grid = _noise_grid(stream, 16)
    weight = drawing.pattern_weight(style.pattern, x, y, style.angle, style.period, grid)
    colours = drawing.mix(style.colour, style.second, weight)
    colours *= 1 - style.shade * (x + y) / (width + height)
    if style.outline:
        line = np.clip(1.5 - np.abs(item.distance + 1), 0, 1)
        colours *= 1 - style.outline * line
    opacity = style.opacity * drawing.coverage(item.distance)
    drawing.paint(canvas[:, rows, columns], colours, opacity)


def _photograph(stream: Stream, canvas: np.ndarray) -> np.ndarray:
    """The canvas under a light from one side, with a camera's blur, contrast and noise; uint8."""
    size = canvas.shape[1]
    if stream.chance(0.25):
        canvas = drawing.blur(canvas)
    cosine, sine = drawing.direction(stream.uniform(0, 2 * math.pi))
    steps = np.arange(size, dtype=np.float32) / size - 0.5
    light = steps[None, :] * cosine + steps[:, None] * sine
    contrast, middle = stream.uniform(0.75, 1.15), stream.uniform(112, 144)
    canvas = canvas * (1 + stream.uniform(0, 0.5) * light)
    canvas = (canvas - 128) * contrast + middle
    strength = stream.uniform(0, 14) / 128
    noise = stream.bytes(2, 3, size, size).astype(np.int16)
    canvas += (noise[0] - noise[1]) * np.float32(strength / 2)
    pixels: np.ndarray = np.clip(np.rint(canvas), 0, 255).astype(np.uint8)
    return pixels
