"""Training samples chosen by a proposal network: the paper's study on imbalance (section 4.2.3).

"We turn off the regression branch in RPN, so that our proposals are exactly the anchors with high
probability of containing an object. The union set over those proposal anchors and the true positive
anchors are then treated as the valid training samples." The proposal network here has the same
backbone, pyramid, heads and anchors as the detector, and one class: object. It is frozen, and sees
the same augmented images in the loop.

Axes: B images, A anchors, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from rankdet.detectors.assign import Assignment
from rankdet.detectors.criterion import Assigner, Losses
from rankdet.losses import IGNORED, focal_loss, random_negatives
from rankdet.structures import Predictions, Target


def top_proposals(logits: Tensor, num_proposals: int) -> Tensor:
    """(B, A) bool: the anchors with the highest scores of each image, `num_proposals` of them.

    logits (B, A, 1): of the proposal network. All anchors where there are fewer.

    >>> top_proposals(torch.tensor([[[0.1], [0.9], [0.5]]]), 2)
    tensor([[False,  True,  True]])
    """
    scores = logits.squeeze(2)
    chosen = scores.topk(min(num_proposals, scores.shape[1]), dim=1, sorted=False).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, chosen, True)


def valid_labels(labels: Tensor, is_proposal: Tensor) -> Tensor:
    """The labels (B, A) of proposals and of positives; IGNORED for all other anchors.

    >>> labels, is_proposal = torch.tensor([[3, 3, -1, -1]]), torch.tensor([[1, 0, 1, 0]]).bool()
    >>> valid_labels(labels, is_proposal)
    tensor([[ 3,  3, -1, -2]])
    """
    return torch.where(is_proposal | (labels >= 0), labels, IGNORED)


class WithProposals(nn.Module):
    """A detector that is trained, behind a frozen proposal network on the same images.

    Its stages are that of the proposal network, and then the detector's.
    """

    def __init__(self, proposer: nn.Module, detector: nn.Module) -> None:
        super().__init__()
        self.proposer = proposer.requires_grad_(False)
        self.detector = detector

    def forward(self, images: Tensor, targets: Sequence[Target] | None = None) -> list[Predictions]:
        with torch.no_grad():
            proposed: list[Predictions] = self.proposer(images)
        return [*proposed, *self.detector(images, targets)]

    def train(self, mode: bool = True) -> WithProposals:
        """Set the mode of the detector; the proposal network stays as it is, norms included."""
        super().train(mode)
        self.proposer.eval()
        return self


class ProposalCriterion:
    """The class loss on the anchors that are proposals or positives; there is no box loss.

    For the stages of `WithProposals`. num_proposals: of each image.
    """

    def __init__(
        self,
        assigner: Assigner,
        class_loss: Callable[[Tensor, Tensor], Tensor],
        num_proposals: int,
    ) -> None:
        self.assigner = assigner
        self.class_loss = class_loss
        self.num_proposals = num_proposals

    def __call__(self, stages: Sequence[Predictions], targets: Sequence[Target]) -> Losses:
        proposed, stage = stages
        assignment = self.assigner(stage, targets)
        is_proposal = top_proposals(proposed.logits, self.num_proposals)
        assignment = replace(assignment, labels=valid_labels(assignment.labels, is_proposal))
        with torch.autocast(stage.logits.device.type, enabled=False):
            value = self.class_loss(stage.logits, assignment.labels)
        return Losses({"class": value}, [assignment])


def one_class(assigner: Assigner) -> Assigner:
    """The assigner, with every object of class 0: what a proposal network learns."""

    def assign(predictions: Predictions, targets: Sequence[Target]) -> Assignment:
        assignment = assigner(predictions, targets)
        return replace(assignment, labels=assignment.labels.clamp(max=0))

    return assign


def proposal_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of all positives and as many random negatives of each image: a scalar.

    Differs from the usual region proposal network: that one takes 128 of both at most.
    """
    mask = random_negatives(logits, labels, ratio=1.0, scope="image")
    return focal_loss(logits, labels, gamma=0.0, alpha=None, mask=mask)
