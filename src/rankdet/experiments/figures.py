"""What all pictures share: colours that colour-blind readers can tell apart, and how to save."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its yellow, which is too pale for a line on white.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F"

FIGURE_MARK = "rankdet reproduce"  # at the start of each of our PNG files


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that size in inches, drawn off screen (without pyplot's global state)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def label_axes(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    """Give the axes a title and labels, a light grid, and no frame at the top and right."""
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def begin_at_zero(axes: Axes) -> None:
    """Let what is drawn stand above 0, with room between the highest of it and the frame."""
    highest = axes.dataLim.y1  # minus infinity if there is nothing
    axes.set_ylim(0, 1.06 * highest if highest > 0 else None)


def count_in_wholes(axis: Axis) -> None:
    """Ticks at whole numbers alone, for what is counted."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


def save_figure(figure: Figure, path: Path) -> Path:
    """The path of the PNG file that was written."""
    figure.savefig(path, dpi=130, metadata={"Comment": FIGURE_MARK})
    return path


def with_few_colours(figure: bytes) -> bytes:
    """The PNG file with a palette of 256 colours: it looks the same, at a part of the size."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    mark, stream = PngInfo(), io.BytesIO()
    mark.add_text("Comment", FIGURE_MARK)
    with Image.open(io.BytesIO(figure)) as image:
        colours = image.convert("RGB")
    palette = colours.quantize(256, kmeans=1)
    few = colours.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)  # for photographs
    few.save(stream, "PNG", optimize=True, pnginfo=mark)
    return stream.getvalue()
