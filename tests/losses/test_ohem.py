"""OHEM loss: by hand, and against torchvision's SSD."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torchvision.models.detection.ssd import SSD

from rankdet.losses import ohem_loss
from rankdet.losses.labels import BACKGROUND, IGNORED

Problem = Callable[..., tuple[Tensor, Tensor]]
WithGradient = Callable[..., tuple[Tensor, Tensor]]
LOG3 = math.log(3)


# By hand: the softmax of (0, log 3) is (1/4, 3/4).


def test_ohem_loss_takes_the_positive_and_the_hardest_background_anchors() -> None:
    # Background probabilities 1/4, 1/2, 3/4 and 1/4; the last one is ignored.
    logits = torch.tensor([[0.0, LOG3], [0, LOG3], [0, 0], [LOG3, 0], [0, LOG3]]).double()
    labels = torch.tensor([0, -1, -1, -1, IGNORED])
    positive = math.log(4 / 3)
    for ratio, negatives in ((0, 0.0), (1, math.log(4)), (2, math.log(8)), (9, math.log(32 / 3))):
        value = ohem_loss(logits, labels, negative_ratio=ratio)
        assert value.item() == pytest.approx(positive + negatives)


def test_ohem_loss_mines_each_image_and_divides_by_the_positives_of_the_batch() -> None:
    image = torch.tensor([[0.0, LOG3], [0.0, LOG3], [0.0, 0.0]]).double()
    logits = torch.stack([image, image])
    labels = torch.tensor([[0, -1, -1], [-1, -1, -1]])
    one_image = ohem_loss(logits, labels, negative_ratio=1.0)
    assert one_image.item() == pytest.approx(math.log(4 / 3) + math.log(4))
    labels = torch.tensor([[0, -1, -1], [0, -1, -1]])
    both = ohem_loss(logits, labels, negative_ratio=1.0)
    assert both.item() == pytest.approx(one_image.item())


def test_a_masked_column_is_left_out_of_the_softmax_and_a_masked_target_ignores_the_anchor(
    with_gradient: WithGradient,
) -> None:
    logits = torch.tensor([[0.0, LOG3, 50.0], [7.0, -7.0, 1.0]]).double()
    labels = torch.tensor([0, 1])
    mask = torch.tensor([[True, True, False], [True, True, False]])
    value, gradient = with_gradient(ohem_loss, logits, labels, mask=mask)
    assert value.item() == pytest.approx(math.log(4 / 3))
    assert gradient.flatten().tolist() == pytest.approx([0.25, -0.25, 0, 0, 0, 0])


# An independent judge.


@pytest.mark.parametrize("seed", range(5))
def test_ohem_loss_agrees_with_torchvision_ssd(
    seed: int, mixed_problem: Problem, with_gradient: WithGradient
) -> None:
    logits, labels = mixed_problem(seed, 4, 50)
    labels = labels.clamp(min=BACKGROUND)
    labels[1] = BACKGROUND
    # Where 3 x positives exceed the background anchors, SSD's ranking takes positives twice.
    labels[:, 15:] = BACKGROUND
    assert (3 * (labels >= 0).sum(1) <= (labels < 0).sum(1)).all()
    judge_self = SimpleNamespace(
        neg_to_pos_ratio=3.0,
        box_coder=SimpleNamespace(encode_single=lambda boxes, anchors: torch.zeros_like(boxes)),
    )
    # Each positive anchor has an object of its own; SSD counts classes from 1.
    targets = [{"boxes": torch.rand(50, 4), "labels": (row + 1).clamp(min=1)} for row in labels]
    matched = [torch.where(row >= 0, torch.arange(50), -1) for row in labels]

    def judge(logits: Tensor) -> Tensor:
        outputs = {"cls_logits": logits, "bbox_regression": torch.zeros(4, 50, 4)}
        anchors = [torch.zeros(50, 4)] * 4
        losses: dict[str, Tensor] = SSD.compute_loss(judge_self, targets, outputs, anchors, matched)
        return losses["classification"]

    ours = with_gradient(ohem_loss, logits, labels)
    torch.testing.assert_close(ours, with_gradient(judge, logits))


# Settings and columns.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"negative_ratio": -3}, r"negative_ratio: expected .* >= 0, got -3"),
        ({"negative_ratio": math.inf}, r"negative_ratio: expected a finite .*got inf"),
    ],
)
def test_wrong_settings_are_refused_with_expected_and_got(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ohem_loss(torch.zeros(2, 3), torch.tensor([0, -1]), **settings)


def test_ohem_loss_has_one_column_more_than_classes() -> None:
    ohem_loss(torch.zeros(1, 3), torch.tensor([1]))
    with pytest.raises(ValueError, match=r"labels: expected 0\.\.1 .*got values from 2 to 2"):
        ohem_loss(torch.zeros(1, 3), torch.tensor([2]))
    with pytest.raises(ValueError, match=r"logits: expected K \+ 1 columns.*got \(4, 0\)"):
        ohem_loss(torch.zeros(4, 0), torch.full((4,), BACKGROUND))
    with pytest.raises(ValueError, match=r"logits: expected shape .*got \(\)"):
        ohem_loss(torch.zeros(()), torch.tensor(0))
