"""The losses on a CUDA device: the same numbers as on the CPU, and NaN instead of questions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rankdet import losses
from rankdet.losses import BACKGROUND, IGNORED, ap_loss, ap_loss_reference, binary_ap_loss

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ALL_LOSSES = [
    losses.ap_loss,
    losses.auc_loss,
    losses.focal_loss,
    losses.ghm_loss,
    losses.dr_loss,
    losses.smooth_ap_loss,
    losses.hinge_ap_loss,
    losses.ohem_loss,
]


def problem(seed: int, num_anchors: int = 3000) -> tuple[Tensor, Tensor]:
    """Logits (2, A, 5) and labels (2, A) on the CPU, with ignored anchors."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, num_anchors, 5, generator=generator)
    labels = torch.randint(0, 4, (2, num_anchors), generator=generator)
    draw = torch.rand(2, num_anchors, generator=generator)
    labels[draw < 0.9] = BACKGROUND
    labels[draw > 0.97] = IGNORED
    return logits, labels


def gradient(
    loss: Callable[..., Tensor], logits: Tensor, labels: Tensor, **settings: object
) -> Tensor:
    logits = logits.detach().requires_grad_()
    (result,) = torch.autograd.grad(loss(logits, labels, **settings), logits)
    return result.double().cpu()


@pytest.mark.parametrize("loss", ALL_LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_loss_gives_the_numbers_of_the_cpu(
    loss: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    logits, labels = problem(0)
    logits = logits.to(dtype)
    expected = loss(logits, labels)
    actual = loss(logits.cuda(), labels.cuda())
    assert actual.dtype == expected.dtype
    assert actual.item() == pytest.approx(expected.item(), rel=1e-5)
    there, here = gradient(loss, logits.cuda(), labels.cuda()), gradient(loss, logits, labels)
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    assert (there - here).norm() <= tolerance * here.norm()


@pytest.mark.parametrize("step", ["piecewise", "heaviside", "sigmoid"])
@pytest.mark.parametrize("scope", ["batch", "image"])
def test_ap_loss_agrees_with_the_reference(step: str, scope: str) -> None:
    for seed in range(5):
        logits, labels = problem(seed, 300)
        settings = {"step": step, "delta": 0.5}
        targets = torch.nn.functional.one_hot(labels.clamp(min=0), 5)
        targets[labels < 0] = 0
        counted = (labels != IGNORED)[..., None].expand_as(logits)
        if scope == "batch":
            value, update = ap_loss_reference(logits, targets, mask=counted, **settings)
        else:
            parts = [
                ap_loss_reference(x, t, mask=c, **settings)
                for x, t, c in zip(logits, targets, counted, strict=True)
            ]
            value = torch.stack([value for value, _ in parts]).mean()
            update = torch.stack([update for _, update in parts]) / 2
        actual = ap_loss(logits.cuda(), labels.cuda(), scope=scope, **settings)
        assert actual.item() == pytest.approx(value.item(), rel=1e-6)
        ours = gradient(ap_loss, logits.cuda(), labels.cuda(), scope=scope, **settings)
        assert (ours - update).norm() <= 1e-6 * update.norm()


def test_wrong_labels_make_the_loss_nan_without_being_read() -> None:
    logits, labels = problem(1)
    labels[0, 0] = 5
    assert ap_loss(logits.cuda(), labels.cuda()).isnan()
    labels[0, 0] = -3
    assert losses.auc_loss(logits.cuda(), labels.cuda()).isnan()
    assert binary_ap_loss(torch.zeros(3).cuda(), torch.tensor([0, 1, 2]).cuda()).isnan()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_make_value_and_gradient_nan(bad: float) -> None:
    logits, labels = problem(2)
    place = tuple((labels == BACKGROUND).nonzero()[0].tolist())
    logits[place] = bad
    result = gradient(ap_loss, logits.cuda(), labels.cuda())
    assert torch.equal(result.isnan().any(-1), labels != IGNORED)
    with pytest.raises(FloatingPointError, match="5 of"):
        ap_loss(logits.cuda(), labels.cuda(), check_finite=True)


def test_torch_compile_takes_it_whole() -> None:
    logits, labels = (part.cuda() for part in problem(3))
    compiled = torch.compile(ap_loss, fullgraph=True)
    here, there = (gradient(loss, logits, labels) for loss in (ap_loss, compiled))
    assert torch.allclose(here, there, rtol=1e-5)


def test_more_scores_than_one_block_of_the_accelerator() -> None:
    logits = torch.randn(2**25 + 3, 1, device="cuda")
    labels = torch.full((len(logits),), BACKGROUND, device="cuda")
    labels[::500_000] = 0
    there = ap_loss(logits, labels)
    assert there.item() == pytest.approx(ap_loss(logits.cpu(), labels.cpu()).item(), rel=1e-5)
