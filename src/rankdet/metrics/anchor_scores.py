"""Scores of anchors against their overlap with objects: the paper's figure `dist`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
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
        # (NUM_BINS ** 2 + 1,) int64, on the device of the outputs: of the cells, and of the images.
        self.counts: Tensor | None = None

    @torch.no_grad()
    def add(self, stage: Predictions, targets: Sequence[Target], sizes: Tensor) -> None:
        """Count the anchors of B images.

        targets: in pixels of the images that the detector saw. sizes (B, 2): their height and width
        without padding. Boxes, labels and sizes may be on another device than the outputs.
        """
        device = stage.anchors.device
        if self.counts is None:
            self.counts = empty_counts(device)
        if not targets or not any(map(len, targets)):
            return
        boxes = _padded([target.boxes for target in targets]).to(stage.anchors)
        labels = _padded([target.labels for target in targets]).to(device)
        is_object = _padded([~target.is_ignored for target in targets]).to(device)
        sizes = sizes.to(device)
        self.counts[-1] += is_object.any(dim=1).sum()
        num_images, num_anchors = stage.logits.shape[:2]
        for images, anchors in self._parts(num_images, num_anchors, boxes.shape[1]):
            part = _of_anchors(stage.select(images), anchors)
            self._add(part, boxes[images], labels[images], is_object[images], sizes[images])

    def _parts(
        self, num_images: int, num_anchors: int, num_objects: int
    ) -> Iterator[tuple[slice, slice]]:
        """Images and anchors that are looked at together, with not too many pairs."""
        images_at_once = max(1, self.pairs_at_once // (num_anchors * num_objects))
        anchors_at_once = max(1, self.pairs_at_once // (images_at_once * num_objects))
        for image in range(0, num_images, images_at_once):
            for anchor in range(0, num_anchors, anchors_at_once):
                images = slice(image, image + images_at_once)
                yield images, slice(anchor, anchor + anchors_at_once)

    def _add(
        self, stage: Predictions, boxes: Tensor, labels: Tensor, is_object: Tensor, sizes: Tensor
    ) -> None:
        """Count anchors of B images with G places for objects: boxes (B, G, 4), the others (B, G).

        Nothing here waits for the device: what is not to be counted is added as 0, not left out.
        """
        assert self.counts is not None
        anchors = stage.anchors if stage.has_own_anchors else stage.anchors[None]
        iou = torch.where(is_object[:, None], _iou(anchors, boxes), -1.0)
        overlap, owner = iou.max(dim=2)
        scores = self._scores(stage.logits, labels.gather(1, owner))
        is_counted = (anchors[..., 0] < sizes[:, 1:]) & (anchors[..., 1] < sizes[:, :1])
        is_counted = is_counted & is_object.any(dim=1, keepdim=True)
        if stage.is_padding is not None:
            is_counted &= ~stage.is_padding
        cells = NUM_BINS * _bins(overlap) + _bins(scores)
        self.counts.scatter_add_(0, cells.flatten(), is_counted.to(torch.int64).flatten())

    @property
    def num_images(self) -> int:
        """With objects. Waits for the device."""
        return 0 if self.counts is None else int(self.counts[-1])

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: cells are [bin of the IoU, bin of the score, number of anchors]."""
        counts = empty_counts() if self.counts is None else self.counts.cpu()
        places = counts[:-1].nonzero().flatten()
        columns = (places // NUM_BINS, places % NUM_BINS, counts[places])
        cells = torch.stack(columns, dim=1).tolist()
        return {
            "num_images": int(counts[-1]),
            "num_anchors": sum(count for _, _, count in cells),
            "bins": NUM_BINS,
            "cells": cells,
        }

    def _scores(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(B, A) the score of each anchor (B, A, C) for the class (B, A) of its object."""
        if self.activation == "sigmoid":
            return logits.gather(2, labels.unsqueeze(2)).squeeze(2).float().sigmoid()
        probabilities = logits.softmax(dim=2, dtype=torch.float32)
        return probabilities.gather(2, labels.unsqueeze(2) + 1).squeeze(2)


def empty_counts(device: torch.device | None = None) -> Tensor:
    """What `AnchorScores.counts` is before the first image."""
    return torch.zeros(NUM_BINS**2 + 1, dtype=torch.int64, device=device)


def _padded(columns: list[Tensor]) -> Tensor:
    """(B, G, ...) of B tensors (g, ...), with zeros after the end of those that are shorter."""
    return torch.nn.utils.rnn.pad_sequence(columns, batch_first=True)


def _of_anchors(stage: Predictions, anchors: slice) -> Predictions:
    """The logits and boxes of some of the anchors; what else there is stays as it was."""
    return dataclasses.replace(
        stage,
        logits=stage.logits[:, anchors],
        anchors=stage.anchors[..., anchors, :],
        is_padding=None if stage.is_padding is None else stage.is_padding[:, anchors],
    )


def _bins(values: Tensor) -> Tensor:
    """The bin of each value in [0, 1]; 1 belongs to the last."""
    return (values * NUM_BINS).long().clamp(0, NUM_BINS - 1)


def _iou(anchors: Tensor, boxes: Tensor) -> Tensor:
    """(B, A, G) intersection over union of anchors (B or 1, A, 4) and boxes (B, G, 4)."""
    low = torch.maximum(anchors[:, :, None, :2], boxes[:, None, :, :2])
    high = torch.minimum(anchors[:, :, None, 2:], boxes[:, None, :, 2:])
    shared = (high - low).clamp(min=0).prod(dim=3)
    areas = (anchors[..., 2:] - anchors[..., :2]).prod(dim=2)
    box_areas = (boxes[..., 2:] - boxes[..., :2]).prod(dim=2)
    return shared / (areas[:, :, None] + box_areas[:, None] - shared)
