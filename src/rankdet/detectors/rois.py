"""Which boxes the second stage of Faster R-CNN learns from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankdet.detectors.assign import IoUAssigner, padded
from rankdet.detectors.draws import PREFERRED, drawn, lots
from rankdet.detectors.rpn import Proposals, unit_where
from rankdet.losses.labels import BACKGROUND
from rankdet.structures import Predictions, Target


def roi_assigner(positive_iou: float = 0.5) -> IoUAssigner:
    """What an RoI is: an object from this IoU on, background below.

    An object that no RoI overlaps so much has none: it does not take the best there is.
    """
    return IoUAssigner(positive_iou, positive_iou, is_best_positive=False)


@torch.no_grad()
def choose_rois(
    proposals: Proposals,
    targets: Sequence[Target],
    num_rois: int,
    positive_iou: float = 0.5,
) -> Proposals:
    """The RoIs of each image to learn from, positives first: all of them, and random negatives.

    The candidates are the proposals and the boxes of the objects. There is no quota: positives are
    all that there are, up to num_rois (a random choice if there are more), and negatives fill up.
    Differs from torchvision and Detectron2, where at most a quarter is positive: the paper has no
    such constraint in either arm.

    Objects with `is_ignored` are no candidates, and what lies on them (`IoUAssigner`) is not drawn.
    See `lots` for what the choice depends on. With fewer candidates than num_rois there is padding
    at the end.
    """
    boxes, is_padding = _with_objects(proposals, targets)
    num_images, num_boxes = is_padding.shape
    if num_images == 0:
        return proposals
    stage = Predictions(
        name="candidates",
        logits=boxes.new_empty(num_images, num_boxes, 0),
        deltas=boxes.new_empty(num_images, num_boxes, 0),
        anchors=boxes,
        level_sizes=(num_boxes,),
        is_padding=is_padding,
    )
    labels = roi_assigner(positive_iou)(stage, targets).labels
    numbers = lots(targets, num_boxes, boxes.device, "rois")
    numbers = torch.where(labels >= 0, numbers + PREFERRED, numbers)
    places, is_roi = drawn(
        torch.where((labels >= 0) | (labels == BACKGROUND), numbers, -1), num_rois
    )
    rois = boxes.gather(1, places.unsqueeze(2).expand(-1, -1, 4))
    return Proposals(unit_where(~is_roi, rois), ~is_roi)


def _with_objects(proposals: Proposals, targets: Sequence[Target]) -> tuple[Tensor, Tensor]:
    """Boxes (B, P + G, 4), the proposals and then the objects, and is_padding (B, P + G)."""
    if not any(len(target) for target in targets):
        return proposals
    objects = padded([target.boxes for target in targets])
    is_none = ~padded([~target.is_ignored for target in targets])
    return (
        torch.cat([proposals.boxes, unit_where(is_none, objects)], dim=1),
        torch.cat([proposals.is_padding, is_none], dim=1),
    )
