"""From a detector's outputs to detections: the best candidates, then suppression of repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.ops import batched_nms

from rankdet.boxes import clip_boxes, decode_boxes
from rankdet.detectors.suppression import suppress_together
from rankdet.structures import Detections, Predictions

_SHORTEST_SIDE = 1e-3  # pixels: a box that is narrower or lower is no detection


class Postprocess:
    """What a detector found, in two steps: candidates, and class-wise non-maximum suppression.

    Multi-scale testing merges the candidates of several views between the two.
    Boxes are in pixels of the images that the detector saw: the caller scales them back.

    Args:
        activation: "sigmoid", or "softmax" whose column 0 is background; of the class loss.
        box_weights: of the coding of boxes, see `rankdet.boxes`.
        score_threshold: a candidate's score is greater than this.
        num_candidates: how many (anchor, class) pairs a level of the pyramid gives at most.
        nms_iou: a box is dropped if its IoU with a better one of its class is greater than this.
        max_detections: how many are kept in an image at most.
        last_level_threshold: the score threshold of the last of several levels; 0 as in the paper's
            code, so that no image is without candidates; None: the same as for the other levels, as
            in torchvision.
    """

    def __init__(
        self,
        *,
        activation: str,
        box_weights: Sequence[float],
        score_threshold: float = 0.01,
        num_candidates: int = 1000,
        nms_iou: float = 0.5,
        max_detections: int = 100,
        last_level_threshold: float | None = 0.0,
    ) -> None:
        if activation not in ("sigmoid", "softmax"):
            raise ValueError(f"activation: expected 'sigmoid' or 'softmax', got {activation!r}")
        self.activation = activation
        self.box_weights = tuple(box_weights)
        self.score_threshold = score_threshold
        self.num_candidates = num_candidates
        self.nms_iou = nms_iou
        self.max_detections = max_detections
        self.last_level_threshold = last_level_threshold

    def __call__(
        self, stages: Sequence[Predictions], sizes: Tensor | Sequence[tuple[int, int]]
    ) -> list[Detections]:
        """The detections of each image, best first; see `candidates` and `suppress`."""
        if stages[-1].logits.is_cuda:
            return self._together(stages, sizes)
        return [self.suppress(candidates) for candidates in self.candidates(stages, sizes)]

    def _together(
        self, stages: Sequence[Predictions], sizes: Tensor | Sequence[tuple[int, int]]
    ) -> list[Detections]:
        """The same for all images at once: the host waits for the device a few times in all."""
        boxes, scores, labels, counts = self._padded_candidates(stages, sizes)
        kept = suppress_together(
            boxes, labels, counts, nms_iou=self.nms_iou, max_detections=self.max_detections
        )
        return [
            Detections(boxes[image], scores[image], labels[image]).select(places)
            for image, places in enumerate(kept)
        ]

    @torch.no_grad()
    def candidates(
        self, stages: Sequence[Predictions], sizes: Tensor | Sequence[tuple[int, int]]
    ) -> list[Detections]:
        """The best boxes of each image by the last stage, best first, before suppression.

        Args:
            stages: what the detector returns.
            sizes: (B, 2), height and width of each image inside of the padded ones; boxes are
                clipped to it. A box without area or with a coordinate that is not finite is
                dropped, and so are a score that is NaN and an anchor that is padding.
        """
        boxes, scores, labels, counts = self._padded_candidates(stages, sizes)
        # Slices need no further word of the device.
        return [
            Detections(boxes[image, :count], scores[image, :count], labels[image, :count])
            for image, count in enumerate(counts.tolist())
        ]

    @torch.no_grad()
    def _padded_candidates(
        self, stages: Sequence[Predictions], sizes: Tensor | Sequence[tuple[int, int]]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Boxes (B, D, 4), scores and labels (B, D), best first; how many are candidates (B,)."""
        stage = stages[-1]
        scores, anchor_index, labels = self._best_scores(stage)
        deltas, anchors = _chosen_boxes(stage, anchor_index, labels)
        boxes = decode_boxes(deltas, anchors, self.box_weights).float()
        boxes = clip_boxes(boxes, torch.as_tensor(sizes).reshape(-1, 2).to(boxes.device))
        is_kept = (scores > 0) & _has_area(boxes)

        # Those that are kept to the front, best first.
        scores, order = torch.where(is_kept, scores, -1.0).sort(dim=1, descending=True, stable=True)
        labels = labels.gather(1, order)
        boxes = boxes.gather(1, order.unsqueeze(2).expand(-1, -1, 4))
        return boxes, scores, labels, is_kept.sum(dim=1)

    @torch.no_grad()
    def suppress(self, detections: Detections) -> Detections:
        """The best `max_detections` that no better box of their class overlaps, best first.

        Equal scores stay in the order in which they came.
        """
        boxes, scores, labels = detections.boxes, detections.scores, detections.labels
        kept = batched_nms(boxes, scores, labels, self.nms_iou).sort().values
        order = scores[kept].sort(descending=True, stable=True).indices
        return detections.select(kept[order[: self.max_detections]])

    def _best_scores(self, stage: Predictions) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, anchors and classes (B, D) of the best pairs of each level; score 0: none."""
        if self.activation == "softmax":
            values = stage.logits.softmax(dim=2, dtype=torch.float32)[:, :, 1:]
        else:
            values = stage.logits  # the sigmoid keeps their order, and few of them are needed
        if stage.is_padding is not None:
            values = values.masked_fill(stage.is_padding.unsqueeze(2), -math.inf)
        num_classes = values.shape[2]
        scores, places = [], []
        num_before = 0
        for level, level_values in enumerate(values.split(stage.level_sizes, dim=1)):
            flat = level_values.flatten(1)
            # NaN would come first; -inf is above no threshold either way.
            flat = torch.where(flat.isnan(), -math.inf, flat)
            best, place = flat.topk(min(self.num_candidates, flat.shape[1]), dim=1)
            score = best.float().sigmoid() if self.activation == "sigmoid" else best
            threshold = self._threshold(level, len(stage.level_sizes))
            scores.append(torch.where(score > threshold, score, 0.0))
            places.append(place + num_before * num_classes)
            num_before += level_values.shape[1]
        place = torch.cat(places, dim=1)
        return torch.cat(scores, dim=1), place // num_classes, place % num_classes

    def _threshold(self, level: int, num_levels: int) -> float:
        is_last = level == num_levels - 1 and num_levels > 1
        if is_last and self.last_level_threshold is not None:
            return self.last_level_threshold
        return self.score_threshold


def _chosen_boxes(
    stage: Predictions, anchor_index: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Deltas and anchors (B, D, 4) of the chosen pairs of anchor and class (B, D)."""
    place = anchor_index.unsqueeze(2).expand(-1, -1, 4)
    anchors = (
        stage.anchors.gather(1, place) if stage.has_own_anchors else stage.anchors[anchor_index]
    )
    if stage.deltas.ndim == 3:
        return stage.deltas.gather(1, place), anchors
    num_classes = stage.deltas.shape[2]
    of_class = (anchor_index * num_classes + labels).unsqueeze(2).expand(-1, -1, 4)
    return stage.deltas.flatten(1, 2).gather(1, of_class), anchors


def _has_area(boxes: Tensor) -> Tensor:
    """(B, D) bool: whether both sides of a clipped box are worth speaking of.

    A coordinate that is NaN makes a side NaN, and one that was infinite made it 0 by the clipping:
    both give False.
    """
    return ((boxes[..., 2:] - boxes[..., :2]) >= _SHORTEST_SIDE).all(dim=-1)
