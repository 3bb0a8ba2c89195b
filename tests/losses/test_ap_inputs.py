"""The AP-loss module, and inputs that are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rankdet.losses import APLoss, ap_loss, binary_ap_loss


def test_the_module_passes_every_setting_on() -> None:
    logits = torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[0, 1, -1, -1, -1, -2], [1, -1, -1, -1, -1, -1], [-1] * 6])
    mask = torch.rand(logits.shape, generator=torch.Generator().manual_seed(2)) < 0.9
    default = {"delta": 1.0, "step": "piecewise", "interpolate": True, "scope": "batch"}
    assert APLoss()(logits, labels) == ap_loss(logits, labels, **default)
    assert APLoss()(logits, labels, mask) == ap_loss(logits, labels, mask=mask)
    for changed in (
        *({"delta": 0.3}, {"step": "heaviside"}, {"step": "sigmoid"}),
        *({"interpolate": False}, {"scope": "image"}, {"scope": 2}),
    ):
        loss = APLoss(**changed)(logits, labels, mask=mask)
        assert loss == ap_loss(logits, labels, mask=mask, **changed)
        assert loss != ap_loss(logits, labels, mask=mask)
    broken = torch.full((2, 1), math.nan)
    assert APLoss(check_finite=False)(broken, torch.tensor([0, -1])).isnan()


def test_the_module_can_rank_a_choice_of_the_negatives() -> None:
    logits = torch.tensor([[0.0], [3.0], [1.0], [2.0], [-1.0]])
    labels = torch.tensor([0, -1, -1, -1, -2])
    # The positive stands below both that are kept: its precision is 1 / 3, and 1 / 4 among all.
    loss = APLoss(step="heaviside", negatives="hardest", ratio=2.0)
    assert loss(logits, labels).item() == pytest.approx(2 / 3)
    assert APLoss(step="heaviside")(logits, labels).item() == pytest.approx(3 / 4)
    # Without the highest one, a single one of the two that are kept is counted.
    mask = torch.tensor([[True], [False], [True], [True], [True]])
    assert loss(logits, labels, mask).item() == pytest.approx(1 / 2)


def test_the_module_can_rank_random_negatives() -> None:
    labels = torch.tensor([0] + [-1] * 50)
    logits = torch.zeros(51, 1).index_fill(0, torch.tensor([7]), 5.0)  # one is above the positive
    loss = APLoss(step="heaviside", interpolate=False, negatives="random", ratio=1.0)
    logits[1:] -= 1.0
    values = [loss(logits, labels).item() for _ in range(400)]
    assert set(values) == {0.0, 0.5}  # the one that is kept ranks below, or above
    assert 1 <= values.count(0.5) <= 25  # of 8 on average


def test_the_module_refuses_an_unknown_choice_of_negatives() -> None:
    with pytest.raises(ValueError, match="negatives: expected one of all, hardest, random"):
        APLoss(negatives="easy")


def test_the_module_tells_a_detector_what_it_needs() -> None:
    loss = APLoss(delta=0.5, step="sigmoid")
    assert (loss.activation, loss.num_logits(80), list(loss.parameters())) == ("sigmoid", 80, [])
    assert repr(loss) == (
        "APLoss(delta=0.5, step='sigmoid', interpolate=True, scope='batch', check_finite=None, "
        "negatives='all', ratio=3.0)"
    )


# --- wrong inputs -----------------------------------------------------------------------------

SCORES = torch.zeros(4, 3)
CLASSES = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("logits", "labels", "options", "message"),
    [
        (SCORES[:, 0], CLASSES, {}, r"logits: expected shape \(R, K\) .*, got \(4,\)"),
        (SCORES, CLASSES[:3], {}, r"labels: expected shape \(4,\), .*, got \(3,\)"),
        (SCORES[None], CLASSES, {}, r"labels: expected shape \(1, 4\), .*, got \(4,\)"),
        (SCORES.int(), CLASSES, {}, r"logits: expected a floating .*, got torch\.int32"),
        (SCORES, CLASSES.float(), {}, r"labels: expected an integer .*, got torch\.float32"),
        (SCORES, CLASSES + 3, {}, r"labels: expected 0\.\.2 .*, got values from 3 to 3"),
        (SCORES, CLASSES - 3, {}, r"labels: expected .*, got values from -3 to -3"),
        (SCORES, CLASSES, {"delta": 0.0}, r"delta: expected > 0 .*, got 0\.0; .*'heaviside'"),
        (SCORES, CLASSES, {"delta": 0}, r"delta: expected > 0 .*, got 0; .*'heaviside'"),
        (SCORES, CLASSES, {"delta": -1.0}, r"delta: expected > 0 .*, got -1\.0$"),
        (SCORES, CLASSES, {"delta": math.nan}, r"delta: expected .* finite .*, got nan$"),
        (SCORES, CLASSES, {"delta": math.inf}, r"delta: expected .* finite .*, got inf$"),
        (
            *(SCORES, CLASSES, {"delta": 0.0, "step": "sigmoid"}),
            r"delta: expected > 0 .* step='sigmoid', got 0\.0",
        ),
        (SCORES, CLASSES, {"step": "cubic"}, r"step: expected one of .*'sigmoid'.*, got 'cubic'"),
        (SCORES, CLASSES, {"scope": "class"}, r"scope: expected .*'batch'.*'image'.*, got 'class'"),
        (SCORES, CLASSES, {"scope": 0}, r"scope: expected .* number of images from 1 on, got 0"),
        (SCORES, CLASSES, {"scope": True}, r"scope: expected .*, got True"),
        (SCORES, CLASSES, {"scope": 2.0}, r"scope: expected .*, got 2\.0"),
        (SCORES, CLASSES, {"scope": 2}, r"logits: expected .*\(B, A, K\) .*=2, got \(4, 3\)"),
        (
            SCORES,
            CLASSES,
            {"scope": "image"},
            r"logits: expected .*\(B, A, K\) .*'image', got \(4, 3\)",
        ),
        (
            *(SCORES, CLASSES, {"mask": torch.ones(4, dtype=torch.bool)}),
            r"mask: expected torch\.bool of shape \(4, 3\), got torch\.bool of shape \(4,\)",
        ),
        (
            *(SCORES, CLASSES, {"mask": torch.ones(4, 3)}),
            r"mask: expected torch\.bool of shape \(4, 3\), got torch\.float32",
        ),
    ],
)
def test_wrong_inputs_are_refused_with_expected_and_got(
    logits: Tensor, labels: Tensor, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ap_loss(logits, labels, **options)


def test_delta_is_not_looked_at_for_heaviside() -> None:
    scores, targets = torch.tensor([0.0, 1.0, -1.0]), torch.tensor([1, 0, 0])
    for delta in (0.0, -1.0, math.nan):
        assert binary_ap_loss(scores, targets, step="heaviside", delta=delta) == 1 / 2


@pytest.mark.parametrize(
    ("targets", "options", "message"),
    [
        (torch.tensor([0, 2, 1]), {}, r"targets: expected 0 or 1, got 2"),
        (torch.tensor([0.0, 1.0, 0.5]), {}, r"targets: expected 0 or 1, got 0\.5"),
        (torch.tensor([0, 1]), {}, r"targets: expected the scores' shape \(3,\), got \(2,\)"),
        (
            torch.tensor([0, 1, 0]),
            {"mask": torch.ones(2, dtype=torch.bool)},
            r"mask: expected the scores' shape \(3,\), got \(2,\)",
        ),
        (torch.tensor([0, 1, 0]), {"mask": torch.ones(3)}, r"mask: expected torch\.bool .*float32"),
    ],
)
def test_wrong_binary_inputs_are_refused_with_expected_and_got(
    targets: Tensor, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        binary_ap_loss(torch.zeros(3), targets, **options)
