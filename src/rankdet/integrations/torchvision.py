"""Another class loss for a torchvision detector that the user already has and trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, RetinaNet
from torchvision.models.detection._utils import Matcher
from torchvision.models.detection.retinanet import RetinaNetClassificationHead
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss
from torchvision.models.detection.ssd import SSD
from torchvision.ops import batched_nms, clip_boxes_to_image, remove_small_boxes

from rankdet.losses import BACKGROUND, IGNORED

Loss = Callable[[Tensor, Tensor], Tensor]

_SHORTEST_SIDE = 1e-2  # pixels, of a detection of Faster R-CNN, as torchvision has it


def set_class_loss(model: RetinaNet | SSD | FasterRCNN, loss: Loss) -> None:
    """Let a detector of torchvision train with another class loss, over the whole batch at once.

    In training mode the class loss that `model(images, targets)` returns is then
    `loss(logits, labels)`; labels are a column 0..K-1, BACKGROUND or IGNORED:

    - RetinaNet, "classification": logits (B, A, K), labels (B, A).
    - SSD, "classification": the same for its default boxes. Its head has a column for background
      too: a loss whose activation is "softmax" gets all K + 1 columns, in place of torchvision's
      mining; one with "sigmoid" gets the K of the classes.
    - Faster R-CNN, "loss_classifier": logits (R, K) or (R, K + 1) of all RoIs of the batch, labels
      (R,). The proposals, and the loss of the network that makes them, stay torchvision's.

    K + 1 is the model's num_classes, and class c of the targets the label c - 1, for SSD and Faster
    R-CNN; RetinaNet has no background, K is its num_classes and class c the label c.

    With a sigmoid loss SSD and Faster R-CNN score by the sigmoid in evaluation mode as well. All
    else stays: the parameters are the same objects, so that an optimiser made before still works,
    the state dict has the same keys (a loss with a state of its own, GHMLoss, adds it), and so has
    what the model gives in evaluation mode. Another call replaces the loss.

    The heads of SSD and Faster R-CNN are made for a softmax: untrained, they give every box a
    sigmoid score of about 0.5. Ranking losses do not mind. Focal loss and GHM begin with huge
    values: fill the bias of the class outputs with -4.6 first, a score of 0.01, as RetinaNet has.

    Call it before the model is wrapped in DistributedDataParallel or compiled.

    Args:
        model: torchvision's RetinaNet, SSD (also SSDlite) or FasterRCNN, of any backbone.
        loss: a module of `rankdet.losses`, or a function of (logits, labels) that returns a scalar;
            its `activation`, if it has none, is "sigmoid". RetinaNet takes sigmoid losses alone.

    >>> from rankdet.losses import APLoss
    >>> from torchvision.models.detection import retinanet_resnet50_fpn
    >>> model = retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=3)
    >>> set_class_loss(model, APLoss())
    """
    if isinstance(loss, type) or not callable(loss):
        raise TypeError(f"loss: expected a loss such as APLoss(), got {loss!r}")
    part, changed = _part_with_loss(model)
    if changed is ClassificationHead:
        _refuse_softmax(loss)
    # Another class for the same object: its layers, its hooks, its mode stay.
    part.__class__ = changed
    if "loss" in part._modules:  # or else torch refuses what is no module in its place
        del part.loss
    part.loss = loss  # type: ignore[assignment]  # a module or a function


class ClassificationHead(RetinaNetClassificationHead):  # type: ignore[misc]  # it is untyped
    """The head of torchvision's RetinaNet with another loss."""

    loss: Loss

    def compute_loss(
        self,
        targets: Sequence[Mapping[str, Tensor]],
        head_outputs: Mapping[str, Tensor],
        matched_idxs: Sequence[Tensor],
    ) -> Tensor:
        """The class loss of the batch; `RetinaNet` calls this in training mode.

        matched_idxs: for each image (A,), the row of the anchor's object or a constant of Matcher.
        """
        labels = torch.stack(
            [
                _label_anchors(target["labels"], matched)
                for target, matched in zip(targets, matched_idxs, strict=True)
            ]
        )
        return self.loss(head_outputs["cls_logits"], labels)


class SSDWithLoss(SSD):  # type: ignore[misc]
    """torchvision's SSD with another class loss, and the scores that belong to it."""

    loss: Loss

    def compute_loss(
        self,
        targets: Sequence[Mapping[str, Tensor]],
        head_outputs: Mapping[str, Tensor],
        anchors: Sequence[Tensor],
        matched_idxs: Sequence[Tensor],
    ) -> dict[str, Tensor]:
        """Both losses of the batch; `SSD` calls this in training mode."""
        labels = torch.stack(
            [
                _label_anchors(target["labels"] - 1, matched)
                for target, matched in zip(targets, matched_idxs, strict=True)
            ]
        )
        class_loss = _loss_of_columns(self.loss, head_outputs["cls_logits"], labels)
        losses: dict[str, Tensor] = super().compute_loss(
            targets, head_outputs, anchors, matched_idxs
        )
        return {**losses, "classification": class_loss}

    def postprocess_detections(
        self,
        head_outputs: Mapping[str, Tensor],
        image_anchors: Sequence[Tensor],
        image_shapes: Sequence[tuple[int, int]],
    ) -> list[dict[str, Tensor]]:
        """The detections of each image; `SSD` calls this in evaluation mode."""
        if _activation(self.loss) == "softmax":
            found: list[dict[str, Tensor]] = super().postprocess_detections(
                head_outputs, image_anchors, image_shapes
            )
            return found
        scores = head_outputs["cls_logits"][:, :, 1:].sigmoid()
        return [
            _detections(
                self.box_coder.decode_single(deltas, anchors)[:, None],
                image_scores,
                image_shape,
                score_threshold=self.score_thresh,
                num_candidates=self.topk_candidates,
                nms_iou=self.nms_thresh,
                max_detections=self.detections_per_img,
            )
            for deltas, image_scores, anchors, image_shape in zip(
                head_outputs["bbox_regression"], scores, image_anchors, image_shapes, strict=True
            )
        ]


class RoIHeadsWithLoss(RoIHeads):  # type: ignore[misc]
    """The second stage of torchvision's Faster R-CNN with another class loss, and its scores."""

    loss: Loss

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """The detections of each image in evaluation mode, the losses in training mode."""
        if not self.training:
            result: tuple[list[dict[str, Tensor]], dict[str, Tensor]] = super().forward(
                features, proposals, image_shapes, targets
            )
            return result
        proposals, _, labels, goals = self.select_training_samples(proposals, targets)
        logits, deltas = self.box_predictor(
            self.box_head(self.box_roi_pool(features, proposals, image_shapes))
        )
        # Their 0 for background becomes ours; RoIs to be ignored are not among the samples.
        class_loss = _loss_of_columns(self.loss, logits, torch.cat(labels) - 1)
        _, box_loss = fastrcnn_loss(logits, deltas, labels, goals)
        return [], {"loss_classifier": class_loss, "loss_box_reg": box_loss}

    def postprocess_detections(
        self,
        class_logits: Tensor,
        box_regression: Tensor,
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Boxes, scores and labels of each image; `RoIHeads` calls this in evaluation mode."""
        if _activation(self.loss) == "softmax":
            found: tuple[list[Tensor], list[Tensor], list[Tensor]] = super().postprocess_detections(
                class_logits, box_regression, proposals, image_shapes
            )
            return found
        sizes = [len(boxes) for boxes in proposals]
        boxes = self.box_coder.decode(box_regression, proposals)[:, 1:].split(sizes)
        scores = class_logits[:, 1:].sigmoid().split(sizes)
        images = [
            _detections(
                *image,
                score_threshold=self.score_thresh,
                nms_iou=self.nms_thresh,
                max_detections=self.detections_per_img,
                shortest_side=_SHORTEST_SIDE,
            )
            for image in zip(boxes, scores, image_shapes, strict=True)
        ]
        all_boxes, all_scores, all_labels = (
            [image[name] for image in images] for name in ("boxes", "scores", "labels")
        )
        return all_boxes, all_scores, all_labels


def _label_anchors(classes: Tensor, matched: Tensor) -> Tensor:
    """(A,) int64: the class of each anchor's object, BACKGROUND or IGNORED.

    >>> _label_anchors(torch.tensor([7, 3]), torch.tensor([1, -1, -2, 0]))
    tensor([ 3, -1, -2,  7])
    """
    labels = torch.where(matched == Matcher.BETWEEN_THRESHOLDS, IGNORED, BACKGROUND)
    if len(classes) == 0:
        return labels
    return torch.where(matched >= 0, classes[matched.clamp(min=0)], labels)


def _loss_of_columns(loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of those columns that it is for, of logits whose column 0 is background."""
    return loss(logits if _activation(loss) == "softmax" else logits[..., 1:], labels)


def _activation(loss: Loss) -> str:
    return getattr(loss, "activation", "sigmoid")


def _detections(
    boxes: Tensor,
    scores: Tensor,
    image_shape: tuple[int, int],
    *,
    score_threshold: float,
    nms_iou: float,
    max_detections: int,
    num_candidates: int | None = None,
    shortest_side: float = 0.0,
) -> dict[str, Tensor]:
    """The best boxes of an image, without repeats; as torchvision chooses them, class by class.

    Args:
        boxes: (R, K, 4), or (R, 1, 4) if they are the same for all classes.
        scores: (R, K), of the classes 1..K.
        num_candidates: the most of a class before suppression; None: all.
    """
    num_rows, num_classes = scores.shape
    best, rows = scores.topk(min(num_candidates or num_rows, num_rows), dim=0)
    labels = torch.arange(num_classes, device=scores.device).expand_as(rows)
    is_kept = best > score_threshold
    best, rows, labels = best[is_kept], rows[is_kept], labels[is_kept]
    chosen = boxes.expand(-1, num_classes, -1)[rows, labels]
    chosen = clip_boxes_to_image(chosen, image_shape)
    large = remove_small_boxes(chosen, shortest_side)
    chosen, best, labels = chosen[large], best[large], labels[large] + 1
    kept = batched_nms(chosen, best, labels, nms_iou)[:max_detections]
    return {"boxes": chosen[kept], "scores": best[kept], "labels": labels[kept]}


def _refuse_softmax(loss: Loss) -> None:
    if _activation(loss) != "sigmoid":
        raise ValueError(
            f"loss: {type(loss).__name__} trains a softmax over the classes and background; "
            "torchvision's RetinaNet has no such column and scores with a sigmoid: "
            "expected a loss whose activation is 'sigmoid', for example APLoss()"
        )


def _part_with_loss(model: Any) -> tuple[nn.Module, type[nn.Module]]:
    """The part of a model that has the class loss, and the class that it shall have.

    Raises TypeError for other models, and where something of the user's own would be lost.
    """
    if isinstance(model, RetinaNet):
        where = "model.head.classification_head"
        part: Any = getattr(model.head, "classification_head", None)
        original, changed = RetinaNetClassificationHead, ClassificationHead
    elif isinstance(model, SSD):
        where, part, original, changed = "model", model, SSD, SSDWithLoss
    elif isinstance(model, FasterRCNN):
        where, part = "model.roi_heads", model.roi_heads
        original, changed = RoIHeads, RoIHeadsWithLoss
    else:
        raise TypeError(_refusal(model))
    if type(part) not in (original, changed):
        raise TypeError(
            f"{where}: expected torchvision's {original.__name__} itself, got {_full_name(part)}"
        )
    if isinstance(part, RoIHeads) and (part.has_mask() or part.has_keypoint()):
        raise TypeError(
            "model: expected a Faster R-CNN without masks and keypoints, "
            f"got {_full_name(model)}; their losses would be lost"
        )
    return part, changed


def _refusal(model: object) -> str:
    inner = getattr(model, "module", getattr(model, "_orig_mod", None))
    is_wrapped = isinstance(inner, (RetinaNet, SSD, FasterRCNN))
    hint = "; call set_class_loss before wrapping it" if is_wrapped else ""
    return (
        "model: expected RetinaNet, SSD or FasterRCNN of torchvision.models.detection, "
        f"got {_full_name(model)}{hint}"
    )


def _full_name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
