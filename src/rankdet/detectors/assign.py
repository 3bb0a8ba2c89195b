"""Which anchors are objects, and which object each of them is.

Axes: B images, A anchors, G objects of the image that has most. Images with fewer are filled up
with empty boxes, which overlap nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rankdet.losses.fused import can_read
from rankdet.losses.labels import BACKGROUND, IGNORED
from rankdet.structures import Predictions, Target

# Pairs of object and anchor that are looked at together: about 0.3 GB of float32 temporaries.
_PAIRS_AT_ONCE = 2**24


@dataclass(frozen=True)
class Assignment:
    """What each of the A anchors is in each of the B images.

    labels (B, A) int64: the object's class 0..K-1, BACKGROUND or IGNORED. matched_index (B, A)
    int64: the object's row in that image's Target, -1 where the anchor is no object. quality (B, A)
    float32: the IoU of each positive with its object, 0 elsewhere.
    """

    labels: Tensor
    matched_index: Tensor
    quality: Tensor


class IoUAssigner:
    """Anchors become objects by their overlap (IoU) with them.

    Positive: the anchor's IoU with the object that it overlaps most, its own object, is at least
    `positive_iou`; or, with `is_best_positive`, it has the best IoU, tied or alone, that some
    object reaches with any anchor, as long as this is not 0. Its class and box are those of its own
    object, which can be another than the one that made it positive. Negative: its IoU with its own
    object is less than `negative_iou`. Between: ignored. Of objects with equal IoU the first
    counts. Padding is ignored.

    An object with `is_ignored` takes no part in that. An anchor that is not positive is ignored if
    its IoU with such an object is at least `negative_iou`, or if at least `positive_iou` of the
    anchor's area lies in it: a crowd's box holds many small objects.
    Differs from the paper: its recipes drop these objects, and their region becomes background.

    >>> anchors = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 4.5], [20, 0, 30, 10]])
    >>> target = Target(anchors[:1], torch.tensor([7]), torch.tensor([False]), torch.ones(1), 1,
    ...                 size=(40, 40))
    >>> predictions = Predictions("", torch.zeros(1, 3, 8), torch.zeros(1, 3, 4), anchors, (3,))
    >>> IoUAssigner()(predictions, [target]).labels  # class 7, ignored, background
    tensor([[ 7, -2, -1]])
    """

    def __init__(
        self,
        positive_iou: float = 0.5,
        negative_iou: float = 0.4,
        *,
        is_best_positive: bool = True,
        pairs_at_once: int = _PAIRS_AT_ONCE,
    ) -> None:
        if not 0 < negative_iou <= positive_iou <= 1:
            raise ValueError(
                "negative_iou, positive_iou: expected 0 < negative_iou <= positive_iou <= 1, "
                f"got {negative_iou} and {positive_iou}"
            )
        self.positive_iou = positive_iou
        self.negative_iou = negative_iou
        self.is_best_positive = is_best_positive
        self.pairs_at_once = pairs_at_once

    @torch.no_grad()
    def __call__(self, predictions: Predictions, targets: Sequence[Target]) -> Assignment:
        """The assignment of every anchor in every image; the targets are on the anchors' device."""
        check_targets(predictions, targets)
        anchors, is_padding = predictions.anchors, predictions.is_padding
        if is_padding is None:
            return self._assign_all(anchors, targets)
        # An empty box overlaps nothing, so that none is the best of an object.
        assignment = self._assign_all(anchors.masked_fill(is_padding.unsqueeze(2), 0.0), targets)
        labels = assignment.labels.masked_fill(is_padding, IGNORED)
        return Assignment(labels, assignment.matched_index, assignment.quality)

    def _assign_all(self, anchors: Tensor, targets: Sequence[Target]) -> Assignment:
        if not any(len(target) for target in targets):
            return _all_background(len(targets), anchors)
        if anchors.ndim == 2 and can_read(anchors):
            from rankdet.detectors import assign_triton  # Triton is not needed elsewhere

            ious = (self.positive_iou, self.negative_iou)
            return Assignment(
                *assign_triton.assign(
                    anchors, targets, *ious, is_best_positive=self.is_best_positive
                )
            )
        return self.assign_plainly(anchors, targets)

    def assign_plainly(self, anchors: Tensor, targets: Sequence[Target]) -> Assignment:
        """The assignment in plain torch: on the CPU, and the judge of the kernels.

        anchors: (A, 4), or (B, A, 4) of each image its own.
        """
        boxes = padded([target.boxes for target in targets])
        is_ignored = padded([target.is_ignored for target in targets])
        classes = padded([target.labels for target in targets])

        num_at_once = max(1, self.pairs_at_once // is_ignored.numel())
        blocks = anchors.split(num_at_once, dim=-2)
        first = _Overlaps(boxes, is_ignored, blocks[0])

        def overlaps(number: int) -> _Overlaps:  # the first, often the only one, is made once
            return first if number == 0 else _Overlaps(boxes, is_ignored, blocks[number])

        best_of_object = first.iou.amax(dim=2)
        for number in range(1, len(blocks)):
            best_of_object = best_of_object.maximum(overlaps(number).iou.amax(dim=2))
        # No IoU is 2: where no anchor touches the object, none is its best.
        has_best = (best_of_object > 0) & self.is_best_positive
        best_of_object = torch.where(has_best, best_of_object, 2.0)
        parts = [
            self._assign(overlaps(number), best_of_object, classes) for number in range(len(blocks))
        ]
        return Assignment(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))

    def _assign(
        self, overlaps: _Overlaps, best_of_object: Tensor, classes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """labels, matched_index and quality of one block of anchors."""
        best, index = overlaps.iou.max(dim=1)
        is_best_of_object = (overlaps.iou == best_of_object.unsqueeze(2)).any(dim=1)
        is_positive = (best >= self.positive_iou) | is_best_of_object
        is_ignored = (best >= self.negative_iou) | overlaps.is_on_ignored(
            iou=self.negative_iou, covered=self.positive_iou
        )
        labels = torch.where(is_ignored, IGNORED, BACKGROUND)
        labels = torch.where(is_positive, classes.gather(1, index), labels)
        return labels, torch.where(is_positive, index, -1), torch.where(is_positive, best, 0.0)


class _Overlaps:
    """Overlaps of the objects of each image with a block of anchors, (A, 4) or (B, A, 4).

    iou (B, G, A): as `torchvision.ops.box_iou`; 0 for ignored objects.
    """

    def __init__(self, boxes: Tensor, is_ignored: Tensor, anchors: Tensor) -> None:
        self.is_ignored = is_ignored.unsqueeze(2)
        anchors = anchors.unsqueeze(-3)  # the axis of the objects
        self.anchor_areas = _areas(anchors)
        self.intersections = _intersections(boxes, anchors)
        unions = (_areas(boxes).unsqueeze(2) + self.anchor_areas).sub_(self.intersections)
        # 0 / 0, of an empty box and an empty anchor, is NaN, which is greater than no threshold.
        self.any_iou = self.intersections / unions
        self.iou = self.any_iou.masked_fill(self.is_ignored, 0.0)

    def is_on_ignored(self, iou: float, covered: float) -> Tensor:
        """(B, A) bool: the IoU with an ignored object, or the anchor's part in it, is so large."""
        part = self.intersections / self.anchor_areas
        return (((self.any_iou >= iou) | (part >= covered)) & self.is_ignored).any(dim=1)


def matched_boxes(assignment: Assignment, targets: Sequence[Target], anchors: Tensor) -> Tensor:
    """(B, A, 4) float32: the box of each positive's object; elsewhere the anchor itself.

    >>> assignment = Assignment(torch.tensor([[0, -1]]), torch.tensor([[0, -1]]), torch.zeros(1, 2))
    >>> target = Target(torch.tensor([[1.0, 1, 9, 9]]), torch.tensor([0]), torch.tensor([False]),
    ...                 torch.ones(1), 1, size=(9, 9))
    >>> matched_boxes(assignment, [target], torch.zeros(2, 4))
    tensor([[[1., 1., 9., 9.],
             [0., 0., 0., 0.]]])
    """
    everywhere = anchors.expand(len(targets), -1, -1)  # of shared ones, (A, 4), or of their own
    if not any(len(target) for target in targets):
        return everywhere
    index = assignment.matched_index.unsqueeze(2)
    boxes = padded([target.boxes for target in targets])
    found = boxes.gather(1, index.clamp(min=0).expand(-1, -1, 4))
    return torch.where(index >= 0, found, everywhere)


def padded(tensors: list[Tensor]) -> Tensor:
    """(B, G, ...): the tensors under each other, shorter ones filled up with 0 at their end."""
    return pad_sequence(tensors, batch_first=True)


def check_targets(predictions: Predictions, targets: Sequence[Target]) -> None:
    """Raise ValueError, with expected and got, unless there is one target for each image."""
    if len(targets) != len(predictions.logits):
        raise ValueError(
            f"targets: expected {len(predictions.logits)}, one for each image, got {len(targets)}"
        )


def _all_background(num_images: int, anchors: Tensor) -> Assignment:
    shape, device = (num_images, anchors.shape[-2]), anchors.device
    return Assignment(
        labels=torch.full(shape, BACKGROUND, device=device),
        matched_index=torch.full(shape, -1, device=device),
        quality=torch.zeros(shape, device=device),
    )


def _areas(boxes: Tensor) -> Tensor:
    """(...): width times height."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def _intersections(boxes: Tensor, anchors: Tensor) -> Tensor:
    """(B, G, A): the area that each box (B, G, 4) shares with each anchor ((B,) 1, A, 4)."""
    left, top, right, bottom = boxes.unsqueeze(2).unbind(-1)
    anchor_left, anchor_top, anchor_right, anchor_bottom = anchors.unbind(-1)
    width = torch.minimum(right, anchor_right).sub_(torch.maximum(left, anchor_left))
    height = torch.minimum(bottom, anchor_bottom).sub_(torch.maximum(top, anchor_top))
    return width.clamp_(min=0).mul_(height.clamp_(min=0))
