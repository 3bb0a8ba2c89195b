"""The training loss of a detector: class loss and box loss of each of its stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn import functional as F

from rankdet.boxes import encode_boxes
from rankdet.detectors.assign import Assignment, matched_boxes
from rankdet.losses import ap_loss
from rankdet.losses.collectives import (
    eager_where_synchronized,
    global_mean,
    own_group,
    summed,
)
from rankdet.losses.fused import can_read
from rankdet.losses.labels import IGNORED
from rankdet.structures import Predictions, Target

Assigner = Callable[[Predictions, Sequence[Target]], Assignment]


BOX_MEANS = ("positives", "all")  # what the sum of a box loss is divided by


@dataclass(frozen=True)
class Losses:
    """The parts of the loss by name, scalars, and the assignment of each stage.

    Names are "class" and "box"; with several stages the stage's name and a point stand before.
    counts: of each stage whose images have anchors of their own, such as RoIs, how many there are
    in the batch of this process ("roi.boxes") and how many of them are objects ("roi.positives").
    """

    parts: dict[str, Tensor]
    assignments: list[Assignment]
    counts: dict[str, Tensor] = field(default_factory=dict)

    @property
    def total(self) -> Tensor:
        """The sum of the parts, to call `backward` on."""
        return torch.stack(list(self.parts.values())).sum()


class StageCriterion(nn.Module):
    """How one stage is trained: what its anchors are, and its class loss and box loss.

    The box loss is smooth L1 between the deltas and the encoded boxes of the positives, times
    `box_weight`: the mean over 4 x (positives of the batch), or their sum divided by the number of
    all anchors that are not ignored, see `box_mean`.

    Args:
        assigner: says what each anchor is, for instance `IoUAssigner()`.
        class_loss: a module or function of logits (B, A, C) and labels (B, A), see
            `rankdet.losses`.
        box_weights: of the coding of boxes, see `rankdet.boxes`.
        box_weight: the factor of the box loss.
        beta: where smooth L1 goes over from the square to the absolute value.
        box_mean: "positives", or "all" as in both stages of Faster R-CNN.
    """

    def __init__(
        self,
        assigner: Assigner,
        class_loss: Callable[[Tensor, Tensor], Tensor],
        *,
        box_weights: Sequence[float],
        box_weight: float = 1.0,
        beta: float = 1.0,
        box_mean: str = "positives",
    ) -> None:
        super().__init__()
        if box_mean not in BOX_MEANS:
            raise ValueError(f"box_mean: expected one of {', '.join(BOX_MEANS)}; got {box_mean!r}")
        self.assigner = assigner
        self.class_loss = class_loss
        self.box_weights = tuple(box_weights)
        self.box_weight = box_weight
        self.beta = beta
        self.box_mean = box_mean

    def extra_repr(self) -> str:
        names = ("box_weights", "box_weight", "beta", "box_mean")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


class Criterion(StageCriterion):
    """Class loss and box loss of every stage, in float32 whatever the dtype of the outputs.

    All stages have the settings of `StageCriterion` that are given here, but for those in `stages`.

    Args:
        assigner, class_loss, box_weights, box_weight, beta, box_mean: see `StageCriterion`.
        stages: by the stage's name, those that have settings of their own, such as {"rpn": ...}.
        synchronize: whether the box loss is the mean over the boxes of all processes, see
            `ap_loss`. The class losses have a setting of their own.
        process_group: these processes; None: all of them.
    """

    def __init__(
        self,
        assigner: Assigner,
        class_loss: Callable[[Tensor, Tensor], Tensor],
        *,
        box_weights: Sequence[float],
        box_weight: float = 1.0,
        beta: float = 1.0,
        box_mean: str = "positives",
        stages: Mapping[str, StageCriterion] | None = None,
        synchronize: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            assigner,
            class_loss,
            box_weights=box_weights,
            box_weight=box_weight,
            beta=beta,
            box_mean=box_mean,
        )
        self.stages = nn.ModuleDict(stages or {})
        self.synchronize = synchronize
        self.process_group = process_group

    def forward(self, stages: Sequence[Predictions], targets: Sequence[Target]) -> Losses:
        """The losses of what the detector said about images with these objects."""
        parts: dict[str, Tensor] = {}
        counts: dict[str, Tensor] = {}
        assignments = []
        for stage in stages:
            prefix = f"{stage.name}." if len(stages) > 1 else ""
            own = self._own(stage.name)
            assignment = own.assigner(stage, targets)
            with torch.autocast(stage.logits.device.type, enabled=False):
                # The losses widen the logits themselves, where they need it.
                parts[f"{prefix}class"] = own.class_loss(stage.logits, assignment.labels)
                parts[f"{prefix}box"] = own.box_weight * box_loss(
                    stage,
                    assignment,
                    targets,
                    own.box_weights,
                    own.beta,
                    mean=own.box_mean,
                    synchronize=self.synchronize,
                    process_group=self.process_group,
                )
            if stage.has_own_anchors:
                counts[f"{prefix}boxes"] = _num_boxes(assignment, "all")
                counts[f"{prefix}positives"] = _num_boxes(assignment, "positives")
            assignments.append(assignment)
        return Losses(parts, assignments, counts)

    def _own(self, name: str) -> StageCriterion:
        if name not in self.stages:
            return self
        own = self.stages[name]
        assert isinstance(own, StageCriterion)
        return own


@eager_where_synchronized
def box_loss(
    predictions: Predictions,
    assignment: Assignment,
    targets: Sequence[Target],
    weights: Sequence[float],
    beta: float = 1.0,
    *,
    mean: str = "positives",
    synchronize: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Smooth L1 of the positives' deltas, the mean over 4 x (positives of the batch): a scalar.

    With mean="all" the sum over the positives, divided by the number of anchors of the batch that
    are not ignored. Of deltas (B, A, K, 4), the box of the positive's class counts.
    0 without positives, and connected to the deltas all the same: every process must call backward.
    Deltas of other anchors are not read. With `synchronize`, the anchors are those of the batches
    of all processes; see `ap_loss`.
    """
    value = _own_box_loss(predictions, assignment, targets, weights, beta)
    group = own_group(synchronize, process_group)
    if mean == "positives" and group is None:
        return value
    number = _num_boxes(assignment, mean)
    if mean == "all":
        num_positives = _num_boxes(assignment, "positives")
        value = value * (4 * num_positives.clamp(min=1) / number.clamp(min=1))
    return global_mean(value, number, group)


def _num_boxes(assignment: Assignment, which: str) -> Tensor:
    """How many anchors of the batch are objects ("positives"), or are not ignored ("all")."""
    labels = assignment.labels
    return (labels >= 0).sum() if which == "positives" else (labels != IGNORED).sum()


def _own_box_loss(
    predictions: Predictions,
    assignment: Assignment,
    targets: Sequence[Target],
    weights: Sequence[float],
    beta: float,
) -> Tensor:
    """`box_loss` of this process alone, with the mean over 4 x (its positives)."""
    is_shared = not predictions.has_own_anchors and predictions.deltas.ndim == 3
    if is_shared and can_read(predictions.deltas):
        from rankdet.detectors import box_loss_triton  # Triton is not needed elsewhere

        return box_loss_triton.box_loss(predictions, assignment, targets, weights, beta)
    return plain_box_loss(predictions, assignment, targets, weights, beta)


def plain_box_loss(
    predictions: Predictions,
    assignment: Assignment,
    targets: Sequence[Target],
    weights: Sequence[float],
    beta: float,
) -> Tensor:
    """`box_loss` in plain torch: on the CPU, of RoIs, and the judge of the kernels.

    Dense, because choosing the positives would make the host wait for a device.
    """
    is_positive = (assignment.labels >= 0).unsqueeze(2)
    boxes = matched_boxes(assignment, targets, predictions.anchors)
    goals = encode_boxes(boxes, predictions.anchors, weights)
    own = deltas_of_classes(predictions.deltas, assignment.labels)
    deltas = torch.where(is_positive, own, goals)  # float32, as the goals are
    loss = F.smooth_l1_loss(deltas, goals, beta=beta, reduction="sum")
    return loss / (4 * is_positive.sum()).clamp(min=1)


def deltas_of_classes(deltas: Tensor, labels: Tensor) -> Tensor:
    """(B, A, 4): of deltas (B, A, K, 4) those of each anchor's class; deltas (B, A, 4) themselves.

    labels: (B, A). Where there is no class, it is one of the deltas, whichever.

    >>> deltas = torch.arange(8.0).view(1, 1, 2, 4)
    >>> deltas_of_classes(deltas, torch.tensor([[1]]))
    tensor([[[4., 5., 6., 7.]]])
    """
    if deltas.ndim == 3:
        return deltas
    index = labels.clamp(min=0)[..., None, None].expand(-1, -1, 1, 4)
    return deltas.gather(2, index).squeeze(2)


@torch.no_grad()
def batch_average_precision(
    logits: Tensor,
    labels: Tensor,
    activation: str,
    *,
    synchronize: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """The AP, from 0 to 1, that the batch's ranking has now: a scalar, to be shown, not trained.

    Every object against every background box of the batch, with the exact step (Eq. 4) and
    interpolated precision. NaN if there is no positive, or if a counted logit is not finite.

    Args:
        logits: (B, A, K), or (B, A, K + 1) with column 0 background for "softmax", which ranks by
            the log-probabilities of the other columns.
        labels: (B, A) integers: 0..K-1, BACKGROUND or IGNORED.
        activation: "sigmoid" or "softmax", of the class loss.
        synchronize, process_group: as in `ap_loss`: the batch is that of all processes.

    >>> logits, labels = torch.tensor([[[3.0], [1.0], [2.0]]]), torch.tensor([[0, 0, -1]])
    >>> batch_average_precision(logits, labels, "sigmoid")  # (1 + 2 / 3) / 2
    tensor(0.8333)
    """
    if activation == "softmax":
        logits = F.log_softmax(logits, dim=-1, dtype=torch.float32)[..., 1:]
    elif activation != "sigmoid":
        raise ValueError(f"activation: expected 'sigmoid' or 'softmax', got {activation!r}")
    precision = 1 - ap_loss(
        logits,
        labels,
        step="heaviside",
        check_finite=False,
        synchronize=synchronize,
        process_group=process_group,
    )
    num_positives = summed((labels >= 0).sum(), own_group(synchronize, process_group))
    return torch.where(num_positives > 0, precision, math.nan)
