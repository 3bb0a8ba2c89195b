"""The training loss of a detector: class loss and box loss of each of its stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from rankdet.structures import Predictions, Target

Assigner = Callable[[Predictions, Sequence[Target]], Assignment]


@dataclass(frozen=True)
class Losses:
    """The parts of the loss by name, scalars, and the assignment of each stage.

    Names are "class" and "box"; with several stages the stage's name and a point stand before.
    """

    parts: dict[str, Tensor]
    assignments: list[Assignment]

    @property
    def total(self) -> Tensor:
        """The sum of the parts, to call `backward` on."""
        return torch.stack(list(self.parts.values())).sum()


class Criterion(nn.Module):
    """Class loss and box loss of every stage, in float32 whatever the dtype of the outputs.

    The box loss is smooth L1 between the deltas and the encoded boxes of the positives: the mean
    over 4 x (positives of the batch), times `box_weight`.

    Args:
        assigner: says what each anchor is, for instance `IoUAssigner()`.
        class_loss: a module or function of logits (B, A, C) and labels (B, A), see
            `rankdet.losses`.
        box_weights: of the coding of boxes, see `rankdet.boxes`.
        box_weight: the factor of the box loss.
        beta: where smooth L1 goes over from the square to the absolute value.
        synchronize: whether the box loss is the mean over the positives of all processes, see
            `ap_loss`. The class loss has a setting of its own.
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
        synchronize: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.assigner = assigner
        self.class_loss = class_loss
        self.box_weights = tuple(box_weights)
        self.box_weight = box_weight
        self.beta = beta
        self.synchronize = synchronize
        self.process_group = process_group

    def forward(self, stages: Sequence[Predictions], targets: Sequence[Target]) -> Losses:
        """The losses of what the detector said about images with these objects."""
        parts: dict[str, Tensor] = {}
        assignments = []
        for stage in stages:
            prefix = f"{stage.name}." if len(stages) > 1 else ""
            assignment = self.assigner(stage, targets)
            with torch.autocast(stage.logits.device.type, enabled=False):
                # The losses widen the logits themselves, where they need it.
                parts[f"{prefix}class"] = self.class_loss(stage.logits, assignment.labels)
                parts[f"{prefix}box"] = self.box_weight * box_loss(
                    stage,
                    assignment,
                    targets,
                    self.box_weights,
                    self.beta,
                    synchronize=self.synchronize,
                    process_group=self.process_group,
                )
            assignments.append(assignment)
        return Losses(parts, assignments)


@eager_where_synchronized
def box_loss(
    predictions: Predictions,
    assignment: Assignment,
    targets: Sequence[Target],
    weights: Sequence[float],
    beta: float = 1.0,
    *,
    synchronize: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Smooth L1 of the positives' deltas, the mean over 4 x (positives of the batch): a scalar.

    0 without positives, and connected to the deltas all the same: every process must call backward.
    Deltas of other anchors are not read. With `synchronize`, the positives are those of the batches
    of all processes; see `ap_loss`.
    """
    value = _own_box_loss(predictions, assignment, targets, weights, beta)
    group = own_group(synchronize, process_group)
    if group is None:
        return value
    return global_mean(value, (assignment.labels >= 0).sum(), group)


def _own_box_loss(
    predictions: Predictions,
    assignment: Assignment,
    targets: Sequence[Target],
    weights: Sequence[float],
    beta: float,
) -> Tensor:
    """`box_loss` of this process alone."""
    if can_read(predictions.deltas):
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
    """`box_loss` in plain torch: on the CPU, and the judge of the kernels.

    Dense, because choosing the positives would make the host wait for a device.
    """
    is_positive = (assignment.labels >= 0).unsqueeze(2)
    boxes = matched_boxes(assignment, targets, predictions.anchors)
    goals = encode_boxes(boxes, predictions.anchors, weights)
    deltas = torch.where(is_positive, predictions.deltas, goals)  # float32, as the goals are
    loss = F.smooth_l1_loss(deltas, goals, beta=beta, reduction="sum")
    return loss / (4 * is_positive.sum()).clamp(min=1)


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
