"""Scores of anchors against their overlap with objects: the paper's figure `dist`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rankdet.structures import Predictions, Target

NUM_BINS = 100  # of the IoU and of the score, over [0, 1]
_PAIRS_AT_ONCE = 2**22  # of an anchor and an object: about 0.1 GB of float32 temporaries


class AnchorScores:
    """Counts of anchors by the IoU with their object and by their score for that object's class.

    An anchor's object is the one that it overlaps most, the first of equals; ignored objects are
    none. Images without objects are left out, and so are anchors that lie wholly in the padding, or
    that are padding themselves.
    """

    def __init__(self, activation: str, *, pairs_at_once: int = _PAIRS_AT_ONCE) -> None:
        """activation: "sigmoid", or "softmax" whose column 0 is background; of the class loss."""
        if activation not in ("sigmoid", "softmax"):
            raise ValueError(f"activation: expected 'sigmoid' or 'softmax', got {activation!r}")
        self.activation = activation
        self.pairs_at_once = pairs_at_once
        self.num_images = 0
        self.counts: Tensor | None = None  # (NUM_BINS ** 2,) int64, on the device of the outputs

    @torch.no_grad()
    def add(self, stage: Predictions, targets: Sequence[Target], sizes: Tensor) -> None:
        """Count the anchors of B images.

        targets: in pixels of the images that the detector saw. sizes (B, 2): their height and width
        without padding. Boxes, labels and sizes may be on another device than the outputs.
        """
        if self.counts is None:
            self.counts = torch.zeros(NUM_BINS**2, dtype=torch.int64, device=stage.anchors.device)
        images = zip(stage.logits, targets, sizes.tolist(), strict=True)
        for image, (logits, target, (height, width)) in enumerate(images):
            anchors = stage.anchors[image] if stage.has_own_anchors else stage.anchors
            objects = target.select(~target.is_ignored)
            if not len(objects):
                continue
            self.num_images += 1
            overlap, owner = self._matched(anchors, objects.boxes.to(anchors))
            labels = objects.labels.to(anchors.device)[owner]
            cells = NUM_BINS * _bins(overlap) + _bins(self._scores(logits, labels))
            # Added as 0, not left out: a selection would have to wait for the device.
            is_inside = (anchors[:, 0] < width) & (anchors[:, 1] < height)
            if stage.is_padding is not None:
                is_inside &= ~stage.is_padding[image]
            self.counts.scatter_add_(0, cells, is_inside.to(torch.int64))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: cells are [bin of the IoU, bin of the score, number of anchors]."""
        cells: list[list[int]] = []
        if self.counts is not None:
            counts = self.counts.cpu()
            places = counts.nonzero().flatten()
            columns = (places // NUM_BINS, places % NUM_BINS, counts[places])
            cells = torch.stack(columns, dim=1).tolist()
        return {
            "num_images": self.num_images,
            "num_anchors": sum(count for _, _, count in cells),
            "bins": NUM_BINS,
            "cells": cells,
        }

    def _matched(self, anchors: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """(IoU, row) (A,) of the box (G, 4) that each anchor overlaps most."""
        blocks = anchors.split(max(1, self.pairs_at_once // len(boxes)))
        best = [_iou(block, boxes).max(dim=1) for block in blocks]
        return torch.cat([b.values for b in best]), torch.cat([b.indices for b in best])

    def _scores(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(A,) the score of each anchor (A, C) for the class of its object."""
        if self.activation == "sigmoid":
            return logits.gather(1, labels.unsqueeze(1)).squeeze(1).float().sigmoid()
        probabilities = logits.softmax(dim=1, dtype=torch.float32)
        return probabilities.gather(1, labels.unsqueeze(1) + 1).squeeze(1)


def _bins(values: Tensor) -> Tensor:
    """The bin of each value in [0, 1]; 1 belongs to the last."""
    return (values * NUM_BINS).long().clamp(0, NUM_BINS - 1)


def _iou(anchors: Tensor, boxes: Tensor) -> Tensor:
    """(A, G) intersection over union."""
    low = torch.maximum(anchors[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(anchors[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(dim=2)
    areas = (anchors[:, 2:] - anchors[:, :2]).prod(dim=1)
    box_areas = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
    return shared / (areas[:, None] + box_areas[None] - shared)
