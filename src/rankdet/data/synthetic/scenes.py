"""What the drawn images show: which shapes lie where, in which style, and their boxes.

A scene is a function of a key (integers) and the image's side alone. Classes are independent of
everything else: neither colour, nor texture, nor size, nor place tells a class, its outline alone
does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rankdet.data.synthetic import drawing
from rankdet.data.synthetic.drawing import Colour, Pattern, Shape

CLASSES: tuple[Shape, ...] = ("disc", "ring", "triangle", "square", "star", "cross")
DEFAULT_SIZE, MIN_SIZE, MAX_SIZE = 160, 64, 2048  # pixels of an image's side
SMALLEST_VISIBLE = 0.25  # share of a shape's pixels that is always to be seen
CLEARLY_VISIBLE = 0.4  # below, an object is ignored
SMALLEST_SIDE = 10  # pixels; an object whose box has a shorter side is ignored

# Shapes of no class, some of them much like a class.
_FOREIGN: tuple[Shape, ...] = ("crescent", "pentagon", "bar", "half disc", "lens", "arc")
_SMALLEST_RADIUS = 12.0  # pixels
_LARGEST_RADIUS = 0.3  # of the image's side
_MAX_FOREIGN = 1  # shapes of no class in one image
_BESIDE = 0.2  # how often an item is put beside another one
_SMALLEST_CONTRAST = 100.0  # of an item to its background, summed over the colours
_TRIES = 8  # places that are tried for an object before it is given up
_MARGIN = 4  # pixels around a shape for soft edges and shadows
# Of 100 images, how many are to have 0, 1, ... 8 objects.
_NUM_OBJECTS = [0] * 5 + [1] * 28 + [2] * 28 + [3] * 19 + [4] * 10 + [5] * 5 + [6] * 3 + [7] + [8]
PATTERNS: tuple[Pattern, ...] = ("plain", "stripes", "checks", "dots", "gradient", "noise")
COLOURS: tuple[Colour, ...] = (
    (232, 93, 79),
    (244, 147, 66),
    (246, 194, 77),
    (154, 170, 78),
    (88, 166, 108),
    (58, 150, 148),
    (86, 170, 214),
    (62, 110, 190),
    (88, 80, 164),
    (142, 98, 178),
    (222, 120, 164),
    (176, 52, 78),
    (222, 200, 164),
    (62, 66, 76),
    (240, 236, 226),
    (134, 94, 68),
)
_GROUNDS: tuple[Colour, ...] = (
    (226, 221, 210),
    (203, 212, 214),
    (178, 190, 176),
    (148, 160, 168),
    (120, 116, 110),
    (96, 110, 120),
    (70, 76, 86),
    (216, 198, 186),
    (186, 172, 190),
    (58, 68, 70),
)
_T = TypeVar("_T")


class Stream:
    """Random numbers that depend on a key alone.

    Made from the raw bits of PCG64, whose stream NumPy keeps for all versions; that of the
    distributions of `numpy.random.Generator` may change.
    """

    def __init__(self, key: Sequence[int]) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(list(key)))

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * ((int(self._bits.random_raw()) >> 11) * 2.0**-53)

    def below(self, count: int) -> int:
        """An integer in 0..count-1."""
        return int(self.uniform() * count)

    def chance(self, probability: float) -> bool:
        return self.uniform() < probability

    def choice(self, options: Sequence[_T]) -> _T:
        return options[self.below(len(options))]

    def bytes(self, *shape: int) -> np.ndarray:
        """uint8 of that shape, all values alike."""
        count = math.prod(shape)
        raw = self._bits.random_raw((count + 7) // 8)
        return raw.astype("<u8").view(np.uint8)[:count].reshape(shape)


@dataclass(frozen=True)
class Style:
    """How a shape is painted. period is in pixels, angle in radians."""

    pattern: Pattern
    colour: Colour
    second: Colour
    angle: float
    period: float
    opacity: float
    shade: float  # how much brighter the lit side is
    outline: float  # opacity of a dark line along the edge
    shadow: float  # opacity of the shadow that is cast on what lies below


@dataclass(frozen=True)
class Item:
    """A shape in its place: distance (h, w) in pixels over a window of the image.

    label: its class, or None for a shape of no class. (left, top): the window's first pixel.
    num_pixels: of the whole shape, those beyond the image's edge included.
    """

    label: int | None
    left: int
    top: int
    distance: np.ndarray
    num_pixels: int
    style: Style

    @property
    def mask(self) -> np.ndarray:
        """(h, w) bool: the pixels of the window whose centre lies in the shape."""
        is_inside: np.ndarray = self.distance <= 0
        return is_inside

    @property
    def window(self) -> tuple[slice, slice]:
        """The rows and columns of the image that the window covers."""
        height, width = self.distance.shape
        return slice(self.top, self.top + height), slice(self.left, self.left + width)

    def box(self) -> tuple[int, int, int, int]:
        """The smallest (left, top, right, bottom) around the pixels of the mask."""
        rows = np.flatnonzero(self.mask.any(axis=1))
        columns = np.flatnonzero(self.mask.any(axis=0))
        return (
            self.left + int(columns[0]),
            self.top + int(rows[0]),
            self.left + int(columns[-1]) + 1,
            self.top + int(rows[-1]) + 1,
        )


@dataclass(frozen=True)
class Scene:
    """Items from back to front on a background between two colours.

    The items with a class are the objects, in this order: boxes (G, 4) int64 as (left, top, right,
    bottom), labels (G,) int64, is_ignored (G,) bool, visible (G,) float64: the share of the whole
    shape that lies within the image and under no other item.
    """

    size: int
    ground: tuple[Colour, Colour]
    items: tuple[Item, ...]
    boxes: np.ndarray
    labels: np.ndarray
    is_ignored: np.ndarray
    visible: np.ndarray


def arrange(key: Sequence[int], size: int) -> Scene:
    """The scene of an image of size x size pixels."""
    stream = Stream([*key, 0])
    ground = _ground(stream)
    kinds: list[int | None] = [
        stream.below(len(CLASSES)) for _ in range(stream.choice(_NUM_OBJECTS))
    ]
    for _ in range(stream.below(_MAX_FOREIGN + 1)):
        kinds.insert(stream.below(len(kinds) + 1), None)
    pile = _Pile(size)
    for label in kinds:
        for _ in range(_TRIES):
            if pile.add(_draw_item(stream, label, ground, size, pile.items)):
                break
    items = pile.items
    objects = [i for i, item in enumerate(items) if item.label is not None]
    boxes = np.array([items[i].box() for i in objects], dtype=np.int64).reshape(-1, 4)
    visible = np.array(
        [pile.num_visible[i] / items[i].num_pixels for i in objects], dtype=np.float64
    )
    shorter_side = (boxes[:, 2:] - boxes[:, :2]).min(axis=1, initial=size)
    return Scene(
        size=size,
        ground=ground,
        items=tuple(items),
        boxes=boxes,
        labels=np.array([items[i].label for i in objects], dtype=np.int64),
        is_ignored=(visible < CLEARLY_VISIBLE) | (shorter_side < SMALLEST_SIDE),
        visible=visible,
    )


class _Pile:
    """Items on top of each other, and how many pixels of each are to be seen."""

    def __init__(self, size: int) -> None:
        self.items: list[Item] = []
        self.num_visible: list[int] = []
        self._owner = np.full((size, size), -1, dtype=np.int64)  # the number of the topmost item

    def add(self, item: Item) -> bool:
        """Whether the item is on top now: not if too little of it or of another were to be seen."""
        mask = item.mask
        below = self._owner[item.window]
        num_hidden = np.bincount(below[mask] + 1, minlength=len(self.items) + 1)[1:].tolist()
        num_visible = [n - lost for n, lost in zip(self.num_visible, num_hidden, strict=True)]
        num_visible.append(int(np.count_nonzero(mask)))
        for other, num in zip([*self.items, item], num_visible, strict=True):
            if num < SMALLEST_VISIBLE * other.num_pixels:
                return False
        below[mask] = len(self.items)
        self.items.append(item)
        self.num_visible = num_visible
        return True


def _draw_item(
    stream: Stream,
    label: int | None,
    ground: tuple[Colour, Colour],
    size: int,
    items: list[Item],
) -> Item:
    shape = stream.choice(_FOREIGN) if label is None else CLASSES[label]
    # Sizes are alike on a logarithmic scale. Rounded as `direction` is: see there.
    ratio = size * _LARGEST_RADIUS / _SMALLEST_RADIUS
    radius = round(_SMALLEST_RADIUS * math.exp(math.log(ratio) * stream.uniform()) * 64) / 64
    x, y = _centre(stream, radius, size, items)
    cosine, sine = drawing.direction(stream.uniform(0, 2 * math.pi))
    aspect = stream.uniform(0.78, 1)
    form = stream.uniform()
    style = _style(stream, radius, ground)

    # The whole shape first, beyond the image's edge too: its pixels are counted.
    reach = math.ceil(radius) + _MARGIN
    left, top = math.floor(x) - reach, math.floor(y) - reach
    side = 2 * reach + 1
    across = (np.arange(left, left + side) + (0.5 - x)).astype(np.float32)[None, :]
    down = (np.arange(top, top + side) + (0.5 - y)).astype(np.float32)[:, None]
    u = (across * cosine + down * sine) / radius
    v = (down * cosine - across * sine) / (radius * aspect)
    distance = drawing.shape_distance(shape, u, v, form) * (radius * math.sqrt(aspect))
    num_pixels = int(np.count_nonzero(distance <= 0))

    first_row, first_column = max(0, -top), max(0, -left)
    last_row, last_column = min(side, size - top), min(side, size - left)
    within = distance[first_row:last_row, first_column:last_column]
    return Item(label, left + first_column, top + first_row, within, num_pixels, style)


def _centre(stream: Stream, radius: float, size: int, items: list[Item]) -> tuple[float, float]:
    """(x, y) of a new item: anywhere, or beside another one, so that shapes often overlap."""
    if not items or stream.chance(1 - _BESIDE):
        low, high = 0.1 * radius, size - 0.1 * radius
        return stream.uniform(low, high), stream.uniform(low, high)
    left, top, right, bottom = stream.choice(items).box()
    reach = ((right - left) + (bottom - top)) / 4 + 0.8 * radius
    cosine, sine = drawing.direction(stream.uniform(0, 2 * math.pi))
    reach *= stream.uniform(0.5, 1)
    return (left + right) / 2 + reach * cosine, (top + bottom) / 2 + reach * sine


def _style(stream: Stream, radius: float, ground: tuple[Colour, Colour]) -> Style:
    colour = stream.choice(COLOURS)
    while min(_difference(colour, ground[0]), _difference(colour, ground[1])) < _SMALLEST_CONTRAST:
        colour = stream.choice(COLOURS)
    other = stream.choice(COLOURS)
    contrast = stream.uniform(0.25, 0.85)
    second = tuple(a + contrast * (b - a) for a, b in zip(colour, other, strict=True))
    return Style(
        pattern=stream.choice(PATTERNS),
        colour=_varied(stream, colour),
        second=_varied(stream, (second[0], second[1], second[2])),
        angle=stream.uniform(0, 2 * math.pi),
        period=max(3.0, radius * stream.uniform(0.25, 0.8)),
        opacity=stream.uniform(0.8, 1),
        shade=stream.uniform(0, 0.3),
        outline=stream.uniform(0.2, 0.6) if stream.chance(0.35) else 0.0,
        shadow=stream.uniform(0.1, 0.4) if stream.chance(0.6) else 0.0,
    )


def _ground(stream: Stream) -> tuple[Colour, Colour]:
    """The two colours of a background, not far from each other."""
    first, other = stream.choice(_GROUNDS), stream.choice(_GROUNDS)
    share = stream.uniform(0, 0.4)
    second = tuple(a + share * (b - a) for a, b in zip(first, other, strict=True))
    return _varied(stream, first), _varied(stream, (second[0], second[1], second[2]))


def _varied(stream: Stream, colour: Colour, most: float = 14) -> Colour:
    red, green, blue = (c + stream.uniform(-most, most) for c in colour)
    return red, green, blue


def _difference(first: Colour, second: Colour) -> float:
    return sum(abs(a - b) for a, b in zip(first, second, strict=True))
