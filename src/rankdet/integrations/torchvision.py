"""Another class loss for a torchvision RetinaNet that the user already has and trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torchvision.models.detection import RetinaNet
from torchvision.models.detection._utils import Matcher
from torchvision.models.detection.retinanet import RetinaNetClassificationHead

from rankdet.losses import BACKGROUND, IGNORED

Loss = Callable[[Tensor, Tensor], Tensor]


def set_class_loss(model: RetinaNet, loss: Loss) -> None:
    """Let torchvision's RetinaNet train with another class loss, over the whole batch at once.

    In training mode `model(images, targets)["classification"]` is then `loss(logits, labels)` with
    logits (B, A, K) and labels (B, A): a column 0..K-1, BACKGROUND or IGNORED. All else stays: the
    parameters are the same objects, so that an optimiser made before still works, the state dict
    has the same keys (a loss with a state of its own, GHMLoss, adds it), and so has what the model
    gives in evaluation mode. Another call replaces the loss.

    Call it before the model is wrapped in DistributedDataParallel or compiled.

    Args:
        model: `torchvision.models.detection.RetinaNet`, of any backbone.
        loss: a module of `rankdet.losses` whose activation is "sigmoid", or a function of
            (logits, labels) that returns a scalar.

    >>> from rankdet.losses import APLoss
    >>> from torchvision.models.detection import retinanet_resnet50_fpn
    >>> model = retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=3)
    >>> set_class_loss(model, APLoss())
    """
    _check_loss(loss)
    _check_model(model)
    model.head.classification_head = ClassificationHead(model.head.classification_head, loss)


class ClassificationHead(RetinaNetClassificationHead):  # type: ignore[misc]  # it is untyped
    """torchvision's head with the layers of another one, and another loss."""

    def __init__(self, head: RetinaNetClassificationHead, loss: Loss) -> None:
        nn.Module.__init__(self)  # not the base's, which would make new layers
        self.conv = head.conv
        self.cls_logits = head.cls_logits
        self.num_classes = head.num_classes
        self.num_anchors = head.num_anchors
        self.BETWEEN_THRESHOLDS = head.BETWEEN_THRESHOLDS
        self.loss = loss
        self.train(head.training)

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


def _label_anchors(classes: Tensor, matched: Tensor) -> Tensor:
    """(A,) int64: the class of each anchor's object, BACKGROUND or IGNORED.

    >>> _label_anchors(torch.tensor([7, 3]), torch.tensor([1, -1, -2, 0]))
    tensor([ 3, -1, -2,  7])
    """
    labels = torch.where(matched == Matcher.BETWEEN_THRESHOLDS, IGNORED, BACKGROUND)
    if len(classes) == 0:
        return labels
    return torch.where(matched >= 0, classes[matched.clamp(min=0)], labels)


def _check_loss(loss: object) -> None:
    if isinstance(loss, type) or not callable(loss):
        raise TypeError(f"loss: expected a loss such as APLoss(), got {loss!r}")
    if getattr(loss, "activation", "sigmoid") != "sigmoid":
        raise ValueError(
            f"loss: {type(loss).__name__} trains a softmax over the classes and background; "
            "torchvision's RetinaNet has no such column and scores with a sigmoid: "
            "expected a loss whose activation is 'sigmoid', for example APLoss()"
        )


def _check_model(model: object) -> None:
    """Raise unless nothing of the model's own would be lost by another head."""
    if not isinstance(model, RetinaNet):
        inner = getattr(model, "module", getattr(model, "_orig_mod", None))
        hint = "; call set_class_loss before wrapping it" if isinstance(inner, RetinaNet) else ""
        raise TypeError(
            "model: expected torchvision.models.detection.RetinaNet, "
            f"got {type(model).__module__}.{type(model).__qualname__}{hint}"
        )
    head = getattr(model.head, "classification_head", None)
    if type(head) not in (RetinaNetClassificationHead, ClassificationHead):
        raise TypeError(
            "model.head.classification_head: expected torchvision's RetinaNetClassificationHead "
            f"itself, got {type(head).__module__}.{type(head).__qualname__}"
        )
