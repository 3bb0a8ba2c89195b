"""Training samples chosen by a proposal network: the union with the positives, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankdet.detectors.assign import Assignment, IoUAssigner
from rankdet.detectors.retinanet import make_retinanet
from rankdet.experiments.proposals import (
    ProposalCriterion,
    WithProposals,
    one_class,
    proposal_loss,
    top_proposals,
    valid_labels,
)
from rankdet.losses import BACKGROUND, IGNORED, ap_loss
from rankdet.structures import Predictions, Target

ANCHORS = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 4.5], [20, 0, 30, 10], [40, 0, 50, 10]])


def stage_of(scores: list[list[float]]) -> Predictions:
    """One column of logits (B, A, 1) on the four anchors."""
    logits = torch.tensor(scores).unsqueeze(2)
    return Predictions("", logits, torch.zeros(*logits.shape[:2], 4), ANCHORS, (4,))


def target_of(label: int) -> Target:
    """An object on the first anchor; the second then has IoU 0.45: ignored."""
    no = torch.tensor([False])
    return Target(ANCHORS[:1], torch.tensor([label]), no, torch.ones(1), 1, size=(60, 60))


def small_detector(num_classes: int, norm: str = "batch") -> nn.Module:
    return make_retinanet(num_classes, backbone="small", norm=norm)


def test_the_best_anchors_of_each_image_are_its_proposals() -> None:
    logits = torch.tensor([[[3.0], [1.0], [2.0]], [[1.0], [2.0], [3.0]]])
    expected = [[True, False, True], [False, True, True]]
    assert top_proposals(logits, 2).tolist() == expected


def test_of_fewer_anchors_all_are_proposals() -> None:
    assert top_proposals(torch.zeros(1, 3, 1), 500).all()


def test_so_many_are_chosen_among_equal_scores_too() -> None:
    assert top_proposals(torch.zeros(2, 9, 1), 4).sum(dim=1).tolist() == [4, 4]


def test_valid_are_proposals_and_positives_and_nothing_else() -> None:
    labels = torch.tensor([[7, 7, BACKGROUND, BACKGROUND, IGNORED, IGNORED]])
    is_proposal = torch.tensor([[True, False, True, False, True, False]])
    expected = [[7, 7, BACKGROUND, IGNORED, IGNORED, IGNORED]]
    assert valid_labels(labels, is_proposal).tolist() == expected


def test_the_criterion_trains_on_the_union_of_top_proposals_and_positives() -> None:
    seen: list[Tensor] = []

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        seen.append(labels)
        return ap_loss(logits, labels)

    # The proposal network likes the last two anchors; the object is on the first.
    proposed, stage = stage_of([[0.0, 1.0, 2.0, 3.0]]), stage_of([[0.0, 0.0, 5.0, 0.5]])
    criterion = ProposalCriterion(IoUAssigner(), loss, num_proposals=1)
    losses = criterion([proposed, stage], [target_of(0)])
    assert seen[0].tolist() == [[0, IGNORED, IGNORED, BACKGROUND]]
    assert torch.equal(losses.assignments[-1].labels, seen[0])
    # Of the two negatives, the higher one does not count: S(0.5) = 0.75, 0.75 / 1.75.
    assert losses.total.item() == pytest.approx(0.75 / 1.75)

    both = ProposalCriterion(IoUAssigner(), loss, num_proposals=2)
    assert both([proposed, stage], [target_of(0)]).total.item() == pytest.approx(1.75 / 2.75)
    assert seen[1].tolist() == [[0, IGNORED, BACKGROUND, BACKGROUND]]


def test_with_as_many_proposals_as_anchors_nothing_is_left_out() -> None:
    torch.manual_seed(0)
    proposed, stage = (stage_of(torch.randn(2, 4).tolist()) for _ in range(2))
    targets = [target_of(0), target_of(0)]
    whole = ap_loss(stage.logits, IoUAssigner()(stage, targets).labels)
    losses = ProposalCriterion(IoUAssigner(), ap_loss, 4)([proposed, stage], targets)
    assert torch.equal(losses.total, whole)


def test_the_proposal_network_has_one_class() -> None:
    assignment: Assignment = one_class(IoUAssigner())(stage_of([[0.0] * 4]), [target_of(0)])
    assert assignment.labels.tolist() == [[0, IGNORED, BACKGROUND, BACKGROUND]]
    other = one_class(lambda *_: Assignment(torch.tensor([[5, -1, -2]]), *[torch.zeros(1, 3)] * 2))
    assert other(stage_of([[0.0] * 4]), []).labels.tolist() == [[0, BACKGROUND, IGNORED]]


def test_the_proposal_loss_is_the_cross_entropy_of_as_many_negatives_as_positives() -> None:
    logits = torch.zeros(1, 100, 1, requires_grad=True)
    labels = torch.tensor([[0, 0, 0] + [BACKGROUND] * 97])
    loss = proposal_loss(logits, labels)
    loss.backward()
    assert loss.item() == pytest.approx(2 * torch.log(torch.tensor(2.0)).item())  # of a positive
    assert int((logits.grad < 0).sum()) == 3
    assert int((logits.grad > 0).sum()) == 3


def test_the_proposal_network_neither_learns_nor_changes() -> None:
    torch.manual_seed(0)
    proposer, detector = small_detector(1), small_detector(3)
    both = WithProposals(proposer, detector)
    both.train()
    before = {name: tensor.clone() for name, tensor in proposer.state_dict().items()}
    proposed, stage = both(torch.rand(2, 3, 64, 64))
    (proposed.logits.sum() + stage.logits.sum() + stage.deltas.sum()).backward()

    assert detector.training
    assert not any(layer.training for layer in proposer.modules())
    assert all(parameter.grad is None for parameter in proposer.parameters())
    assert all(parameter.grad is not None for parameter in detector.parameters())
    after: dict[str, Any] = proposer.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_both_networks_have_the_same_anchors() -> None:
    both = WithProposals(small_detector(1, "group"), small_detector(3, "group"))
    proposed, stage = both(torch.rand(1, 3, 64, 96))
    assert torch.equal(proposed.anchors, stage.anchors)
    assert proposed.logits.shape[:2] == stage.logits.shape[:2]
