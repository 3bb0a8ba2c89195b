"""The default boxes of SSD, by torchvision's generator: its sizes are shares of the image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.image_list import ImageList

from rankdet.detectors.anchors import Grid, KeptAnchors


@dataclass(frozen=True)
class BoxLayout:
    """Which boxes stand at each place of each map.

    scales: of each map, as shares of the image's sides, and one more; a place has a box of the
    scale and one of the geometric mean with the next scale, both as wide as high in an image that
    is so itself. ratios: of each map; a place has two more boxes for each, of a width ratio times
    the height and the other way round. strides: of the first maps, in pixels; the boxes of the
    others, which are a few places wide, are spread evenly over the image. is_clipped: whether no
    box is wider or higher than the image.
    """

    scales: tuple[float, ...]
    ratios: tuple[tuple[float, ...], ...]
    strides: tuple[int, ...]
    is_clipped: bool

    @property
    def nums_per_place(self) -> tuple[int, ...]:
        """How many boxes a place of each map has.

        >>> BoxLayout((0.1, 0.3, 0.9), ((2.0,), (2.0, 3.0)), (8,), True).nums_per_place
        (4, 6)
        """
        return tuple(2 + 2 * len(ratios) for ratios in self.ratios)


class DefaultBoxes(KeptAnchors):
    """The default boxes of all maps of a layout."""

    def __init__(self, layout: BoxLayout) -> None:
        super().__init__()
        self.layout = layout
        self.nums_per_place = layout.nums_per_place
        # A generator for each map: torchvision's takes steps for all maps or for none.
        strides = (*layout.strides, *[None] * (len(layout.ratios) - len(layout.strides)))
        self.generators = [
            DefaultBoxGenerator(
                [list(layout.ratios[level])],
                scales=list(layout.scales[level : level + 2]),
                steps=None if stride is None else [stride],
                clip=layout.is_clipped,
            )
            for level, stride in enumerate(strides)
        ]

    def make_levels(
        self, grids: tuple[Grid, ...], image_size: tuple[int, int], device: torch.device
    ) -> list[Tensor]:
        images = ImageList(torch.empty(1, 3, *image_size, device="meta"), [image_size])
        return [
            generator(images, [torch.empty(1, 1, *grid, dtype=torch.float32, device=device)])[0]
            for generator, grid in zip(self.generators, grids, strict=True)
        ]
