"""A matplotlib figure as an inline SVG: colours are CSS variables, text stays text."""

from __future__ import annotations

import hashlib
import io
import logging
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 400  # pixels, of every plot: a phone shows it at 360
FONT_SIZE = 11  # pixels at that width
_POINTS_PER_INCH = 72  # matplotlib's SVG has one unit per point: a unit is then a pixel of ours

# Colours that stand for the page's own while matplotlib draws.
INK, GRID = "#a1b001", "#a1b002"
SERIES = tuple(f"#a1b1{number:02x}" for number in range(1, 9))
_VARIABLES = {
    INK: "var(--ink)",
    GRID: "var(--grid)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, start=1)},
}
LINE_STYLES: tuple[Any, ...] = (
    *("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2))),
    *((0, (9, 3)), (0, (3, 1, 1, 1, 1, 1)), (0, (2, 2)), (0, (8, 2, 3, 2))),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rankdet",
    "font.size": FONT_SIZE,
    **dict.fromkeys(["axes.labelsize", "xtick.labelsize", "ytick.labelsize"], FONT_SIZE),
    "legend.fontsize": FONT_SIZE,
    "legend.frameon": False,
    **dict.fromkeys(["figure.facecolor", "axes.facecolor", "savefig.facecolor"], "none"),
    **dict.fromkeys(["text.color", "axes.labelcolor", "axes.edgecolor"], INK),
    **dict.fromkeys(["xtick.color", "ytick.color"], INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.06,
}
_SVG, _HREF = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"


class Drawing:
    """A figure in the making: draw inside `with`, and afterwards `svg` is the finished text.

    description: what a screen reader says. Names that are not ours go through `name` before
    matplotlib sees them.

    >>> with Drawing(200, "An example") as drawing:
    ...     line = drawing.axes("recall in %", "precision in %").plot([0, 100], [90, 10])
    >>> drawing.svg[:50]
    '<svg viewBox="0 0 400 200" class="plot" role="img"'
    """

    def __init__(self, height: float, description: str) -> None:
        self.svg = ""
        self.figure: Figure
        self._height = height
        self._description = printable_name(description, 200)
        self._names: dict[str, str] = {}
        self._context = ExitStack()

    def __enter__(self) -> Drawing:
        with _silent_logger():
            import matplotlib.style
            from matplotlib.figure import Figure

        self._context.enter_context(matplotlib.style.context(["default", _STYLE]))
        self.figure = Figure(dpi=_POINTS_PER_INCH, layout="constrained")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._context:
            if kind is None:
                size = (WIDTH / _POINTS_PER_INCH, self._height / _POINTS_PER_INCH)
                self.figure.set_size_inches(*size)
                stream = io.BytesIO()
                self.figure.savefig(stream, format="svg", metadata={"Date": None})
                self.svg = inline_svg(stream.getvalue(), self._description, self._names)

    def axes(self, x_label: str, y_label: str) -> Axes:
        """The axes of the figure, with labels and a grid."""
        axes = self.figure.add_subplot()
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.tick_params(length=3)
        return axes

    def name(self, text: str, longest: int = 24) -> str:
        """What to give to matplotlib in place of a text that is not ours.

        The text itself comes in when the SVG is ready: matplotlib measures letters that its font
        has, and neither a missing letter nor an underscore in front disturbs it.
        """
        shown = printable_name(text, longest)
        stand_in = f"Q{len(self._names)}".ljust(display_width(shown), "n")
        self._names[stand_in] = shown
        return stand_in

    def legend(self, handles: Sequence[Artist], labels: Sequence[str], longest: int = 40) -> None:
        """Put a legend below the axes, and make the figure higher by it."""
        widest = max(display_width(printable_name(label, longest)) for label in labels)
        num_columns = max(1, min(len(labels), int((WIDTH - 20) / (45 + 0.62 * FONT_SIZE * widest))))
        self.figure.legend(
            handles,
            [self.name(label, longest) for label in labels],
            loc="outside lower center",
            ncols=num_columns,
            handlelength=2.6,
            columnspacing=1.2,
        )
        self._height += 10 + 1.5 * FONT_SIZE * -(-len(labels) // num_columns)


def printable_name(text: str, longest: int) -> str:
    """The text on one line without control characters, cut with an ellipsis.

    >>> printable_name("a\\tb\\0", 9), printable_name("a very long name", 9)
    ('a b\ufffd', 'a very l…')
    """
    words = " ".join(str(text).split())
    clean = "".join(
        "\ufffd"
        if unicodedata.category(letter) in {"Cc", "Cs"} or letter in "\ufffe\uffff"
        else letter
        for letter in words
    )
    if display_width(clean) <= longest and len(clean) <= 2 * longest:
        return clean
    end = 0
    while end < 2 * longest and display_width(clean[: end + 1]) < longest:
        end += 1
    return clean[:end].rstrip() + "…"


def display_width(text: str) -> int:
    """How many columns the text takes: wide letters take two, combining marks none.

    >>> display_width("abc"), display_width("\u4e2d\u6587"), display_width("e\u0301")
    (3, 4, 1)
    """
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in text
    )


def inline_svg(content: bytes, description: str, names: Mapping[str, str]) -> str:
    """Matplotlib's SVG file as an element for a page.

    Its colours are CSS variables, its size is that of its container, and its ids (only those that
    are used) belong to it alone. names: the texts to put in by their stand-ins.
    """
    root = ElementTree.fromstring(content)
    key = hashlib.sha256(content + repr((description, sorted(names.items()))).encode()).hexdigest()
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', content.decode()))
    for element in root.iter():
        _clean(element, f"plot-{key[:10]}-", used)
        if element.tag == "text" and element.text:
            element.text = names.get(element.text, element.text)
    _remove(root)
    view_box = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update(
        {
            "viewBox": view_box,
            "class": "plot",
            "role": "img",
            "aria-label": description,
            "style": "stroke-linejoin: round; stroke-linecap: butt",
        }
    )
    return ElementTree.tostring(root, encoding="unicode")


def _clean(element: ElementTree.Element, prefix: str, used: set[str]) -> None:
    """Change one element in place: its name, ids, colours and numbers."""
    element.tag = element.tag.removeprefix(_SVG)
    element.tail = None
    if element.text and not element.text.strip():
        element.text = None
    attributes = dict(element.attrib)
    element.attrib.clear()
    for name, value in attributes.items():
        if name == "id":
            if value in used:
                element.set(name, prefix + value)
        elif name == _HREF:
            is_data = value.startswith("data:")
            element.set("href", "".join(value.split()) if is_data else f"#{prefix}{value[1:]}")
        elif name == "style":
            element.set(name, _page_style(value))
        elif name == "transform" and value.startswith("rotate(-0 "):
            continue
        elif value.startswith("url(#"):  # not a number, though the key in it may look like one
            element.set(name, value.replace("url(#", f"url(#{prefix}"))
        else:
            element.set(name, _shorter_numbers(value, 2 if name in {"d", "x", "y"} else 5))


def _page_style(style: str) -> str:
    """The style with the page's colours and without a font of its own."""
    parts = [part.strip() for part in style.split(";")]
    kept = [part for part in parts if part and not part.startswith("font-family")]
    return re.sub("#[0-9a-f]{6}", lambda match: _VARIABLES.get(match[0], match[0]), "; ".join(kept))


def _shorter_numbers(value: str, digits: int) -> str:
    """
    >>> _shorter_numbers("M 1.23456 20 \\nL 3.0001 -0.001", 2)
    'M 1.23 20 L 3 0'
    """
    rounded = re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]) + 0:.{digits}f}", value)
    trimmed = re.sub(r"(\.\d*?)0+(?!\d)", r"\1", rounded)
    return " ".join(re.sub(r"-0(?![.\d])", "0", re.sub(r"\.(?!\d)", "", trimmed)).split())


def _remove(element: ElementTree.Element) -> None:
    """Take out what a page must not get: metadata, styles for the whole page, and empty groups."""
    for child in list(element):
        _remove(child)
        is_empty = child.tag in {"g", "defs"} and not len(child)
        if child.tag in {"metadata", "style"} or is_empty:
            element.remove(child)


@contextmanager
def _silent_logger() -> Iterator[None]:
    """Keep matplotlib from telling about its font cache, which the reader cannot do much about."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
