"""The anchors of a feature pyramid, by torchvision's generator, and their keeping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchvision.models.detection.anchor_utils import AnchorGenerator

ANCHOR_GRIDS = ("centred", "torchvision")
Grid = tuple[int, int]  # rows and columns of a map
_MOST_KEPT = 16  # sizes of images whose anchors are kept, about a megabyte each


class Anchors(NamedTuple):
    """boxes (A, 4) of all levels, and how many each level has."""

    boxes: Tensor
    level_sizes: tuple[int, ...]


class KeptAnchors:
    """The anchors of maps, in the order of the heads' outputs; a subclass makes them.

    Those of the latest sizes are kept: making them takes a device dozens of small operations.
    """

    def __init__(self) -> None:
        self._kept: dict[Any, Anchors] = {}

    def __call__(self, maps: Sequence[Tensor], image_size: tuple[int, int]) -> Anchors:
        """The anchors for maps (B, C, rows, columns) of images of that height and width."""
        grids = tuple((level.shape[-2], level.shape[-1]) for level in maps)
        key = (grids, image_size, maps[0].device)
        kept = self._kept.pop(key, None)
        if kept is None:
            with torch.inference_mode(False):  # they may be kept for a training
                levels = self.make_levels(*key)
                kept = Anchors(torch.cat(levels), tuple(len(level) for level in levels))
        self._kept[key] = kept  # the last one, whether new or not
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept

    def make_levels(
        self, grids: tuple[Grid, ...], image_size: tuple[int, int], device: torch.device
    ) -> list[Tensor]:
        """The anchors (A_l, 4) float32 of each map, which has that many rows and columns."""
        raise NotImplementedError


class PyramidAnchors(KeptAnchors):
    """The anchors of all maps of a pyramid.

    Args:
        strides: of each map, in pixels.
        scale, num_octave_steps: an anchor has the area (scale * stride * 2^(i / steps))^2.
        ratios: of height to width.
        grid: "centred" is as in the paper's code: sizes as they come out, and each anchor in the
            middle of its stride x stride pixels. "torchvision": whole pixels, the upper left
            corner, and spread evenly where a side is no multiple of the last stride.
    """

    def __init__(
        self,
        strides: Sequence[int],
        scale: float,
        num_octave_steps: int,
        ratios: Sequence[float],
        grid: str = "centred",
    ) -> None:
        super().__init__()
        if num_octave_steps < 1 or not ratios:
            got = f"{num_octave_steps} and {tuple(ratios)}"
            raise ValueError(
                f"anchor_octaves, anchor_ratios: expected at least one of each, got {got}"
            )
        if scale * strides[0] < 1:
            raise ValueError(f"anchor_scale: expected anchors of at least a pixel, got {scale}")
        if grid not in ANCHOR_GRIDS:
            raise ValueError(f"anchor_grid: expected 'centred' or 'torchvision', got {grid!r}")
        self.strides = tuple(strides)
        self.ratios = tuple(ratios)
        self.num_per_place = num_octave_steps * len(self.ratios)
        self.grid = grid
        with torch.device("cpu"):  # to be looked at, wherever the network is made
            self.generator = _generator(self.strides, scale, num_octave_steps, self.ratios, grid)
        if any((cell[:, 2:] <= cell[:, :2]).any() for cell in self.generator.cell_anchors):
            raise ValueError(
                f"anchor_scale, anchor_ratios: expected no anchor that the grid {grid!r} rounds to "
                f"0 pixels, got {scale} and {self.ratios}"
            )

    def make_levels(
        self, grids: tuple[Grid, ...], image_size: tuple[int, int], device: torch.device
    ) -> list[Tensor]:
        if self.grid == "centred":  # an image's anchors do not move with its padding
            strides = [(stride, stride) for stride in self.strides]
        else:  # differs where a side is no multiple of the last stride
            strides = [(image_size[0] // rows, image_size[1] // columns) for rows, columns in grids]
        self.generator.set_cell_anchors(torch.float32, device)
        levels: list[Tensor] = self.generator.grid_anchors(list(grids), strides)
        return levels


def _generator(
    strides: tuple[int, ...],
    scale: float,
    num_octave_steps: int,
    ratios: tuple[float, ...],
    grid: str,
) -> AnchorGenerator:
    """torchvision's generator for these strides.

    >>> _generator((8,), 4.0, 1, (1.0,), "centred").cell_anchors
    [tensor([[-12., -12.,  20.,  20.]])]
    """
    sizes = [
        tuple(scale * stride * 2 ** (step / num_octave_steps) for step in range(num_octave_steps))
        for stride in strides
    ]
    whole = tuple(tuple(int(size) for size in level) for level in sizes)
    generator = AnchorGenerator(whole, (ratios,) * len(whole))
    if grid == "centred":
        generator.cell_anchors = [
            _cell_anchors(level, ratios) + stride / 2
            for level, stride in zip(sizes, strides, strict=True)
        ]
    return generator


def _cell_anchors(sizes: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """(R * S, 4): an anchor of each ratio and size around the origin, in torchvision's order."""
    roots = torch.tensor(ratios, dtype=torch.float64).sqrt()[:, None]
    widths = (torch.tensor(sizes) / roots).flatten()
    heights = (torch.tensor(sizes) * roots).flatten()
    return (torch.stack([-widths, -heights, widths, heights], dim=1) / 2).float()
