"""Cross-entropy loss: by hand, and against torch's."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rankdet.losses import cross_entropy_loss
from rankdet.losses.labels import BACKGROUND, IGNORED

WithGradient = Callable[..., tuple[Tensor, Tensor]]
LOG3 = math.log(3)  # the softmax of (0, log 3) is (1/4, 3/4)


def test_it_is_the_mean_over_objects_and_background_alike() -> None:
    logits = torch.tensor([[0.0, LOG3], [0, LOG3], [0, 0], [7, -7]]).double()
    labels = torch.tensor([0, BACKGROUND, BACKGROUND, IGNORED])
    expected = (math.log(4 / 3) + math.log(4) + math.log(2)) / 3
    assert cross_entropy_loss(logits, labels).item() == pytest.approx(expected)


def test_class_c_is_column_c_plus_1() -> None:
    logits = torch.tensor([[0.0, 0.0, 50.0]])
    assert cross_entropy_loss(logits, torch.tensor([1])).item() == pytest.approx(0)
    assert cross_entropy_loss(logits, torch.tensor([0])).item() == pytest.approx(50)


def test_a_masked_column_is_left_out_and_a_masked_target_ignores_the_box(
    with_gradient: WithGradient,
) -> None:
    logits = torch.tensor([[0.0, LOG3, 50.0], [7.0, -7.0, 1.0]]).double()
    mask = torch.tensor([[True, True, False], [True, True, False]])
    value, gradient = with_gradient(cross_entropy_loss, logits, torch.tensor([0, 1]), mask=mask)
    assert value.item() == pytest.approx(math.log(4 / 3))
    assert gradient.flatten().tolist() == pytest.approx([0.25, -0.25, 0, 0, 0, 0])


@pytest.mark.parametrize("seed", range(3))
def test_it_is_torchs_cross_entropy_of_the_boxes_that_count(
    seed: int, with_gradient: WithGradient
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(2, 30, 4, generator=generator).double()
    labels = torch.randint(IGNORED, 3, (2, 30), generator=generator)

    def judge(logits: Tensor, labels: Tensor) -> Tensor:
        columns = torch.where(labels == IGNORED, -100, labels + 1)  # torch's number for ignored
        return F.cross_entropy(logits.flatten(0, 1), columns.flatten())

    torch.testing.assert_close(
        with_gradient(cross_entropy_loss, logits, labels), with_gradient(judge, logits, labels)
    )


def test_it_refuses_logits_without_a_column_for_the_background() -> None:
    with pytest.raises(ValueError, match="logits: expected K \\+ 1 columns, background first"):
        cross_entropy_loss(torch.zeros(2, 0), torch.tensor([BACKGROUND, BACKGROUND]))
    with pytest.raises(ValueError, match=r"labels: expected 0\.\.1 .*got values from 2 to 2"):
        cross_entropy_loss(torch.zeros(1, 3), torch.tensor([2]))
