"""The region proposal network, the first stage of Faster R-CNN (Ren et al. 2015).

It says of each anchor whether there is an object, of whatever class, and where. Its best boxes,
without repeats, are the proposals. In training it learns from some anchors of each image, by binary
cross-entropy: the published detectors do the same, and the paper changes the second stage alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import batched_nms

from rankdet.boxes import clip_boxes, decode_boxes
from rankdet.detectors.anchors import PyramidAnchors
from rankdet.detectors.assign import Assignment, IoUAssigner
from rankdet.detectors.draws import drawn, lots
from rankdet.losses.collectives import eager_where_synchronized, global_mean, own_group
from rankdet.losses.entries import read_entries, softplus
from rankdet.losses.labels import BACKGROUND, IGNORED
from rankdet.losses.module import ClassLoss
from rankdet.structures import Predictions, Target

BOX_WEIGHTS = (1.0, 1.0, 1.0, 1.0)  # of the coding of its boxes, see `rankdet.boxes`
_OBJECT = 0  # the only class
_SHORTEST_SIDE = 1e-3  # pixels: a box that is narrower or lower is no proposal


class RegionProposalNetwork(nn.Module):
    """Objectness and boxes of the anchors of a pyramid; head: torchvision's RPNHead."""

    head: RPNHead

    def __init__(self, head: RPNHead, anchors: PyramidAnchors) -> None:
        super().__init__()
        self.head = head
        self.anchors = anchors

    def forward(self, maps: Mapping[str, Tensor], image_size: tuple[int, int]) -> Predictions:
        """The stage "rpn", with logits (B, A, 1), for maps of images of that height and width."""
        levels = list(maps.values())
        logits, deltas = self.head(levels)
        anchors = self.anchors(levels, image_size)
        return Predictions(
            name="rpn",
            logits=torch.cat([_by_anchor(level, 1) for level in logits], dim=1),
            deltas=torch.cat([_by_anchor(level, 4) for level in deltas], dim=1),
            anchors=anchors.boxes,
            level_sizes=anchors.level_sizes,
        )


def _by_anchor(values: Tensor, width: int) -> Tensor:
    """(B, rows * columns * N, width) from a map (B, N * width, rows, columns) of N anchors."""
    num_images, _, rows, columns = values.shape
    by_anchor = values.reshape(num_images, -1, width, rows, columns).permute(0, 3, 4, 1, 2)
    return by_anchor.flatten(1, 3)


class Proposals(NamedTuple):
    """boxes (B, P, 4) float32 of each image, best first, and is_padding (B, P) at their end.

    Padding has the box (0, 0, 1, 1). P is at least 1.
    """

    boxes: Tensor
    is_padding: Tensor


@torch.no_grad()
def propose(
    stage: Predictions,
    sizes: Tensor | Sequence[tuple[int, int]],
    *,
    num_candidates: int,
    num_proposals: int,
    nms_iou: float = 0.7,
) -> Proposals:
    """The best boxes of each image by the first stage, without repeats; no gradient flows.

    Args:
        stage: what the network says, logits (B, A, 1).
        sizes: (B, 2), height and width of each image inside of the padded ones; boxes are clipped
            to it.
            A box without area or with a number that is not finite is no proposal.
        num_candidates: of each level, before repeats are dropped.
        num_proposals: of each image, afterwards.
        nms_iou: a box is dropped if its IoU with a better one of its level is greater than this.
    """
    scores, anchor_index, levels = _best_of_levels(stage, num_candidates)
    deltas = stage.deltas.gather(1, anchor_index.unsqueeze(2).expand(-1, -1, 4))
    boxes = decode_boxes(deltas, stage.anchors[anchor_index], BOX_WEIGHTS)
    boxes = clip_boxes(boxes, torch.as_tensor(sizes).to(boxes.device))
    is_sound = ((boxes[..., 2:] - boxes[..., :2]) >= _SHORTEST_SIDE).all(dim=2) & scores.isfinite()
    scores = torch.where(is_sound, scores, -math.inf)
    boxes = torch.where(is_sound.unsqueeze(2), boxes, 0.0)  # empty: they suppress nothing

    num_images = len(boxes)
    groups = torch.arange(num_images, device=boxes.device).unsqueeze(1) * len(stage.level_sizes)
    # In float64: the function shifts each group aside, far enough for float32 to lose digits.
    kept = batched_nms(
        boxes.flatten(0, 1).double(),
        scores.flatten().double(),
        (groups + levels).flatten(),
        nms_iou,
    )
    is_kept = torch.zeros_like(is_sound).flatten().index_fill_(0, kept, True).view_as(is_sound)
    is_kept &= is_sound
    num_most = min(num_proposals, max(1, int(is_kept.sum(dim=1).max())))
    scores, order = torch.where(is_kept, scores, -math.inf).sort(
        dim=1, descending=True, stable=True
    )
    order, is_padding = order[:, :num_most], scores[:, :num_most] == -math.inf
    boxes = boxes.gather(1, order.unsqueeze(2).expand(-1, -1, 4))
    return Proposals(unit_where(is_padding, boxes), is_padding)


def unit_where(is_padding: Tensor, boxes: Tensor) -> Tensor:
    """The boxes, (0, 0, 1, 1) where there is none: a box without sides has no logarithm of them."""
    unit = boxes.new_tensor([0.0, 0.0, 1.0, 1.0])
    return torch.where(is_padding.unsqueeze(2), unit, boxes)


def _best_of_levels(stage: Predictions, num_candidates: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (B, N), anchors (B, N) and levels (N,) of the best anchors of each level."""
    scores, places, levels = [], [], []
    num_before = 0
    for number, level in enumerate(stage.logits.detach().squeeze(2).split(stage.level_sizes, 1)):
        level = torch.where(level.isnan(), -math.inf, level.float())
        best, place = level.topk(min(num_candidates, level.shape[1]), dim=1)
        scores.append(best)
        places.append(place + num_before)
        levels.append(torch.full((best.shape[1],), number, device=best.device))
        num_before += level.shape[1]
    return torch.cat(scores, dim=1), torch.cat(places, dim=1), torch.cat(levels)


class SampledAnchors:
    """An assigner: objects by their overlap, and all but a random sample of each image is ignored.

    An anchor is an object from an IoU of positive_iou on, or if it is the best of an object; below
    negative_iou it is background; see `IoUAssigner`. There is one class: labels are 0, BACKGROUND
    or IGNORED. Of each image num_samples anchors stay, of which objects are positive_share at most,
    chosen at random; the rest is ignored. See `lots` for what the choice depends on.
    """

    def __init__(
        self,
        positive_iou: float = 0.7,
        negative_iou: float = 0.3,
        num_samples: int = 256,
        positive_share: float = 0.5,
    ) -> None:
        self.assigner = IoUAssigner(positive_iou, negative_iou)
        self.num_samples = num_samples
        self.num_positives = int(num_samples * positive_share)

    @torch.no_grad()
    def __call__(self, predictions: Predictions, targets: Sequence[Target]) -> Assignment:
        """The assignment of every anchor in every image."""
        whole = self.assigner(predictions, targets)
        if not targets:
            return whole
        labels = self._sampled(whole.labels, targets)
        is_positive = labels >= 0
        return Assignment(
            labels,
            torch.where(is_positive, whole.matched_index, -1),
            torch.where(is_positive, whole.quality, 0.0),
        )

    def _sampled(self, labels: Tensor, targets: Sequence[Target]) -> Tensor:
        """(B, A): the labels of the anchors that are drawn, IGNORED elsewhere."""
        numbers = lots(targets, labels.shape[1], labels.device, "anchors")
        places, is_positive = drawn(torch.where(labels >= 0, numbers, -1), self.num_positives)
        others, is_other = drawn(torch.where(labels == BACKGROUND, numbers, -1), self.num_samples)
        # As many as the objects leave room for.
        num_left = self.num_samples - is_positive.sum(dim=1, keepdim=True)
        is_other &= torch.arange(others.shape[1], device=labels.device) < num_left
        none = torch.zeros_like(labels, dtype=torch.bool)
        labels = torch.where(none.scatter(1, others, is_other), BACKGROUND, IGNORED)
        return torch.where(none.scatter(1, places, is_positive), _OBJECT, labels)


@eager_where_synchronized
def objectness_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    check_finite: bool | None = None,
    synchronize: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Binary cross-entropy, the mean over the anchors that are not ignored: a scalar.

    Args:
        logits: (R, 1) or (B, A, 1).
        labels: (R,) or (B, A) integers: 0 for an object, BACKGROUND or IGNORED.
        check_finite, synchronize, process_group: as in `focal_loss`.

    >>> objectness_loss(torch.zeros(3, 1), torch.tensor([0, BACKGROUND, IGNORED]))  # log 2
    tensor(0.6931)
    """
    group = own_group(synchronize, process_group)
    scores, is_positive, is_counted, soundness = read_entries(
        logits, labels, None, check_finite, group
    )
    # An ignored entry stands as a negative of score -10,000, whose loss is 0.
    loss = softplus(torch.where(is_positive, -scores, scores)).sum()
    number = is_counted.sum()
    return global_mean(loss / number.clamp(min=1) * soundness, number, group)


class ObjectnessLoss(ClassLoss):
    """`objectness_loss` with its settings."""

    def __init__(
        self,
        check_finite: bool | None = None,
        *,
        synchronize: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(synchronize, process_group)
        self.check_finite = check_finite

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return objectness_loss(
            logits,
            labels,
            check_finite=self.check_finite,
            synchronize=self.synchronize,
            process_group=self.process_group,
        )
