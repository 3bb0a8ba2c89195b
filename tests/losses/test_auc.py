"""AUC-loss: cases worked by hand, scikit-learn, and the matrix of all pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

from rankdet.losses import BACKGROUND, IGNORED, AUCLoss, ap_loss, auc_loss

STEPS = ["piecewise", "heaviside", "sigmoid"]
WithGradient = Callable[..., tuple[Tensor, Tensor]]


# Positives 2 and 0; negatives 1.5, 1.0 (other columns), 0.5, -1.5 (background); anchor 3 ignored.
LOGITS = torch.tensor([[1.5, 2.0], [0.0, 1.0], [0.5, -1.5], [9.0, 9.0]], dtype=torch.float64)
LABELS = torch.tensor([1, 0, BACKGROUND, IGNORED])


@pytest.mark.parametrize(
    ("step", "loss", "gradient"),
    [
        # f: of positive 2: 1/4, 0, 0, 0; of positive 0: 1, 1, 3/4, 0. Sum 3 of 2 x 4 pairs.
        ("piecewise", 3 / 8, [[5 / 32, -1 / 32], [-11 / 32, 4 / 32], [3 / 32, 0], [0, 0]]),
        # Three of eight pairs stand the wrong way round.
        ("heaviside", 3 / 8, [[1 / 8, 0], [-3 / 8, 1 / 8], [1 / 8, 0], [0, 0]]),
    ],
)
def test_cases_worked_by_hand(
    step: str, loss: float, gradient: list[list[float]], with_gradient: WithGradient
) -> None:
    value, result = with_gradient(auc_loss, LOGITS, LABELS, step=step)
    assert value.item() == pytest.approx(loss)
    torch.testing.assert_close(result, torch.tensor(gradient, dtype=torch.float64))


def test_sigmoid_by_hand(with_gradient: WithGradient) -> None:
    # Differences of +-(ln 3) / 2 with k = 1/2: f is 3/4 and 1/4, the mean 1/2.
    half = math.log(3) / 2
    logits = torch.tensor([[0.0], [half], [-half]], dtype=torch.float64)
    labels = torch.tensor([0, BACKGROUND, BACKGROUND])
    value, gradient = with_gradient(auc_loss, logits, labels, step="sigmoid", delta=0.5)
    assert value.item() == pytest.approx(1 / 2)
    assert gradient[:, 0].tolist() == pytest.approx([-1 / 2, 3 / 8, 1 / 8])


def test_negatives_far_below_count_in_the_mean(with_gradient: WithGradient) -> None:
    # The pair with 2 counts 1, the others 0: 1/1, then 1/4 with three more negatives.
    logits, labels = torch.tensor([[0.0], [2.0]]), torch.tensor([0, BACKGROUND])
    assert auc_loss(logits, labels) == 1
    more = torch.cat([logits, torch.full((3, 1), -50.0)])
    more_labels = torch.cat([labels, torch.full((3,), BACKGROUND)])
    value, gradient = with_gradient(auc_loss, more, more_labels)
    assert value == 1 / 4
    assert gradient[:, 0].tolist() == [-1 / 4, 1 / 4, 0, 0, 0]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("label", [0, BACKGROUND, IGNORED])
def test_without_positives_or_negatives_the_loss_is_0(
    step: str, label: int, with_gradient: WithGradient
) -> None:
    value, gradient = with_gradient(
        auc_loss, torch.tensor([[0.0], [3.0]]), torch.tensor([label, label]), step=step
    )
    assert value == 0
    assert gradient.tolist() == [[0.0], [0.0]]


every_ranking = settings(max_examples=200, deadline=None, derandomize=True)
DISTINCT = st.lists(st.integers(-99, 99), min_size=2, max_size=25, unique=True)


@every_ranking
@given(scores=DISTINCT, data=st.data())
def test_heaviside_without_ties_is_one_minus_the_auc_of_scikit_learn(
    scores: list[int], data: st.DataObject
) -> None:
    num_positives = data.draw(st.integers(1, len(scores) - 1))
    targets = np.array([1] * num_positives + [0] * (len(scores) - num_positives))
    logits = torch.tensor(scores, dtype=torch.float64)
    loss = auc_loss(logits[:, None], torch.tensor(targets) - 1, step="heaviside")
    assert loss.item() == pytest.approx(1 - roc_auc_score(targets, scores), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", STEPS)
def test_random_rankings_agree_with_the_matrix_of_all_pairs(
    step: str,
    dtype: torch.dtype,
    with_gradient: WithGradient,
    numpy_step: Callable[..., np.ndarray],
) -> None:
    generator = torch.Generator().manual_seed(0)
    for i in range(150):
        delta = [0.25, 0.5, 1.0, 3.0][i % 4]
        logits = 2 * torch.randn(30, 3, generator=generator)
        if i % 3 == 0:
            logits = logits.round()
        logits = logits.to(dtype)
        labels = torch.randint(-2, 3, (30,), generator=generator)
        mask = torch.rand(30, 3, generator=generator) < 0.8
        value, gradient = with_gradient(auc_loss, logits, labels, step=step, delta=delta, mask=mask)

        counted = mask & (labels != IGNORED)[:, None]
        is_positive = counted & (labels[:, None] == torch.arange(3))
        scores = logits.double()
        p, n = scores[is_positive].numpy(), scores[counted & ~is_positive].numpy()
        pairs = numpy_step(n[None, :] - p[:, None], step, delta) / (len(p) * len(n))
        expected = np.zeros((30, 3))
        expected[is_positive] = -pairs.sum(1)
        expected[counted & ~is_positive] = pairs.sum(0)
        tolerance = 1e-6 if dtype == torch.float32 else 1e-12
        assert value.item() == pytest.approx(pairs.sum(), rel=tolerance)
        np.testing.assert_allclose(gradient.double(), expected, rtol=tolerance, atol=1e-14)


@every_ranking
@given(
    scores=st.lists(st.integers(-300, 300), min_size=1, max_size=15),
    data=st.data(),
    step=st.sampled_from(STEPS),
    shift=st.integers(-50, 50),
)
def test_the_update_balances_and_moves_with_the_scores(
    scores: list[int], data: st.DataObject, step: str, shift: int, with_gradient: WithGradient
) -> None:
    size = len(scores)
    labels = torch.tensor(data.draw(st.lists(st.integers(-2, 0), min_size=size, max_size=size)))
    logits = torch.tensor(scores, dtype=torch.float64)[:, None] / 64
    value, g = with_gradient(auc_loss, logits, labels, step=step)
    g = g[:, 0]
    assert 0 <= value <= 1 + 1e-12
    assert g.sum().item() == pytest.approx(0, abs=1e-12)
    assert -g[labels == 0].sum().item() == pytest.approx(value.item(), abs=1e-12)
    assert (g[labels == 0] <= 0).all()
    assert (g[labels == BACKGROUND] >= -1e-13).all()  # rounding may leave less than nothing
    assert (g[labels == IGNORED] == 0).all()
    moved = with_gradient(auc_loss, logits + shift, labels, step=step)
    torch.testing.assert_close(moved[0], value, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(moved[1][:, 0], g, rtol=1e-10, atol=1e-10)


def test_with_one_positive_and_one_negative_above_ap_and_auc_differ() -> None:
    logits, labels = torch.tensor([[0.0], [5.0]]), torch.tensor([0, BACKGROUND])
    assert (auc_loss(logits, labels).item(), ap_loss(logits, labels).item()) == (1.0, 0.5)


def test_scope_image_is_the_mean_over_images_with_positives(with_gradient: WithGradient) -> None:
    logits = torch.tensor([[[0.0], [2.0]], [[0.0], [0.0]], [[7.0], [7.0]]], dtype=torch.float64)
    labels = torch.tensor([[0, BACKGROUND], [0, BACKGROUND], [BACKGROUND, BACKGROUND]])
    value, gradient = with_gradient(auc_loss, logits, labels, scope="image")
    assert value == (1 + 1 / 2) / 2
    assert gradient[..., 0].tolist() == [[-1 / 2, 1 / 2], [-1 / 4, 1 / 4], [0, 0]]


def test_the_module_passes_every_setting_on() -> None:
    logits = torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[0, 1, -1, -1, -1, -2], [1, -1, -1, -1, -1, -1], [-1] * 6])
    mask = torch.rand(logits.shape, generator=torch.Generator().manual_seed(2)) < 0.9
    default: dict[str, Any] = {"delta": 1.0, "step": "piecewise", "scope": "batch"}
    assert AUCLoss()(logits, labels) == auc_loss(logits, labels, **default)
    for changed in ({"delta": 0.3}, {"step": "heaviside"}, {"step": "sigmoid"}, {"scope": "image"}):
        loss = AUCLoss(**changed)(logits, labels, mask=mask)
        assert loss == auc_loss(logits, labels, mask=mask, **changed)
        assert loss != auc_loss(logits, labels, mask=mask)
    broken = torch.full((2, 1), math.nan)
    assert AUCLoss(check_finite=False)(broken, torch.tensor([0, -1])).isnan()


def test_the_module_tells_a_detector_what_it_needs() -> None:
    loss = AUCLoss(delta=0.5)
    assert (loss.activation, loss.num_logits(80)) == ("sigmoid", 80)
    assert repr(loss) == ("AUCLoss(delta=0.5, step='piecewise', scope='batch', check_finite=None)")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 0.0}, r"delta: expected > 0 .*, got 0\.0; .*'heaviside'"),
        ({"step": "cubic"}, r"step: expected one of .*, got 'cubic'"),
        ({"scope": "image"}, r"logits: expected .*\(B, A, K\) .*'image', got \(4, 2\)"),
        ({"mask": torch.ones(4, 2)}, r"mask: expected torch\.bool .*, got torch\.float32"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        auc_loss(LOGITS, LABELS, **options)
