"""What goes wrong with ranking losses in real training, for each of the float dtypes in use."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rankdet.losses import BACKGROUND, IGNORED, ap_loss

STEPS = ["piecewise", "heaviside", "sigmoid"]
WithGradient = Callable[..., tuple[Tensor, Tensor]]

pytestmark = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
every_step = pytest.mark.parametrize("step", STEPS)


def check(
    result: tuple[Tensor, Tensor], value: float, gradient: list[float], dtype: torch.dtype
) -> None:
    """Value to 1e-6, gradient of K = 1 as near as the dtype allows."""
    assert (result[0].dtype, result[1].dtype) == (torch.float32, dtype)
    assert result[0].item() == pytest.approx(value, rel=1e-6)
    tolerance = max(torch.finfo(dtype).eps, 1e-6)
    assert result[1].flatten().tolist() == pytest.approx(gradient, rel=tolerance)


def column(scores: list[float], dtype: torch.dtype) -> Tensor:
    return torch.tensor(scores, dtype=dtype)[:, None]


# --- nothing to rank, or nothing wrong --------------------------------------------------------


@every_step
@pytest.mark.parametrize("label", [0, BACKGROUND, IGNORED])
def test_without_negatives_or_positives_or_both_all_is_0(
    label: int, step: str, dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    labels = torch.full((3,), label)
    check(with_gradient(ap_loss, column([1, 2, 3], dtype), labels, step=step), 0, [0] * 3, dtype)


@every_step
def test_with_everything_masked_all_is_0(
    step: str, dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    logits, labels = column([0, 2], dtype), torch.tensor([0, BACKGROUND])
    mask = torch.zeros(2, 1, dtype=torch.bool)
    check(with_gradient(ap_loss, logits, labels, step=step, mask=mask), 0, [0, 0], dtype)


def test_a_margin_of_delta_is_perfect_and_one_unit_less_is_not(
    dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    # p = 1.5, delta = 1: f(n - p) is 0 up to n = 0.5; one unit of 0.5 more is eps / 2, half of
    # which is b.
    eps, labels = torch.finfo(dtype).eps, torch.tensor([0, BACKGROUND])
    for perfect in (0.5, 0.5 - eps / 4):
        logits = column([1.5, perfect], dtype)
        check(with_gradient(ap_loss, logits, labels), 0, [0, 0], dtype)
    b = eps / 4
    logits = column([1.5, 0.5 + eps / 2], dtype)
    loss = b / (1 + b)
    check(with_gradient(ap_loss, logits, labels), loss, [-loss, loss], dtype)


def test_without_a_step_width_one_unit_decides(
    dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    eps, labels = torch.finfo(dtype).eps, torch.tensor([0, BACKGROUND])
    for negative, loss in ((1 + eps, 1 / 2), (1.0, 1 / 2), (1 - eps / 2, 0.0)):
        logits = column([1.0, negative], dtype)
        check(with_gradient(ap_loss, logits, labels, step="heaviside"), loss, [-loss, loss], dtype)


# --- ties -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("heaviside", 5 / 8),  # a = 3, b = 5
        ("piecewise", 5 / 9),  # a = 1 + 2/2 = 2, b = 5/2
        ("sigmoid", 5 / 9),
    ],
)
@pytest.mark.parametrize("score", [0.0, 0.75, -1000.0])
def test_all_scores_tied(
    score: float, step: str, error: float, dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    labels = torch.tensor([0] * 3 + [BACKGROUND] * 5)
    result = with_gradient(ap_loss, column([score] * 8, dtype), labels, step=step)
    check(result, error, [-error / 3] * 3 + [error / 5] * 5, dtype)


@pytest.mark.parametrize(
    ("step", "interpolate", "loss", "gradient"),
    [
        # Positive 1 tied with the negative: a = 1, b = 1. Positive 0: a = 2, b = 1.
        ("heaviside", False, 5 / 12, [-1 / 4, -1 / 6, 5 / 12]),
        ("heaviside", True, 1 / 3, [-1 / 6, -1 / 6, 1 / 3]),
        # delta = 1/2: b = 1/2 for positive 1, so that both errors are 1/3.
        ("piecewise", True, 1 / 3, [-1 / 6, -1 / 6, 1 / 3]),
    ],
)
def test_ties_between_positive_and_negative(
    step: str,
    interpolate: bool,
    loss: float,
    gradient: list[float],
    dtype: torch.dtype,
    with_gradient: WithGradient,
) -> None:
    logits, labels = column([1, 0, 1], dtype), torch.tensor([0, 0, BACKGROUND])
    settings = {"step": step, "interpolate": interpolate, "delta": 0.5}
    check(with_gradient(ap_loss, logits, labels, **settings), loss, gradient, dtype)


@pytest.mark.parametrize("score", [0.0, 1.0, -300.0])
def test_delta_of_1e_6_sees_ties_as_halves_and_all_else_as_a_jump(
    score: float, dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    # b = 1/2 (tie) + 1 + 0, a = 1: error (3/2) / (5/2).
    logits = column([score, score, score + 8, score - 8], dtype)
    labels = torch.tensor([0, BACKGROUND, BACKGROUND, BACKGROUND])
    check(with_gradient(ap_loss, logits, labels, delta=1e-6), 0.6, [-0.6, 0.2, 0.4, 0], dtype)


def test_piecewise_with_delta_0_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=r"delta: expected > 0 .*, got 0\.0; .*step='heaviside'"):
        ap_loss(column([0, 1], dtype), torch.tensor([0, BACKGROUND]), delta=0.0)


# --- scores that are not finite ---------------------------------------------------------------

NOT_FINITE = pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
# Entries by place: 0 and 3 are positives, 7 is an ignored anchor's, 9 is masked.
LABELS = torch.tensor([0, BACKGROUND, BACKGROUND, 1, IGNORED, BACKGROUND])
MASK = torch.ones(6, 2, dtype=torch.bool)
MASK[5, 0] = False
COUNTED = MASK & (LABELS != IGNORED)[:, None]
SCORES = torch.tensor([[0.5, 1], [-3, 0], [2, -8], [0.25, 1.5], [4, 0.125], [0.75, -0.5]])


def broken(dtype: torch.dtype, place: tuple[int, int], wrong: float) -> Tensor:
    logits = SCORES.to(dtype, copy=True)
    logits[place] = wrong
    return logits


@every_step
@NOT_FINITE
@pytest.mark.parametrize("place", [(0, 0), (3, 1), (2, 1), (5, 1)])
def test_a_counted_score_that_is_not_finite_is_an_error_or_makes_all_nan(
    place: tuple[int, int],
    wrong: float,
    step: str,
    dtype: torch.dtype,
    with_gradient: WithGradient,
) -> None:
    logits = broken(dtype, place, wrong)
    num_nan = int(math.isnan(wrong))
    message = rf"logits: 1 of 9 .* \({num_nan} NaN, {1 - num_nan} infinite\), .* \({place[0]}, "
    for check_finite in (None, True):
        with pytest.raises(FloatingPointError, match=message):
            ap_loss(logits, LABELS, mask=MASK, step=step, check_finite=check_finite)
    value, gradient = with_gradient(
        ap_loss, logits, LABELS, mask=MASK, step=step, check_finite=False
    )
    assert value.isnan()
    assert torch.equal(gradient.isnan(), COUNTED)
    assert (gradient[~COUNTED] == 0).all()


@every_step
@NOT_FINITE
@pytest.mark.parametrize("places", [[(4, 0)], [(4, 1)], [(5, 0)], [(4, 0), (4, 1), (5, 0)]])
def test_ignored_and_masked_scores_are_never_read(
    places: list[tuple[int, int]],
    wrong: float,
    step: str,
    dtype: torch.dtype,
    with_gradient: WithGradient,
) -> None:
    logits = SCORES.to(dtype, copy=True)
    for place in places:
        logits[place] = wrong
    value, gradient = with_gradient(ap_loss, logits, LABELS, mask=MASK, step=step)
    expected = with_gradient(ap_loss, SCORES.to(dtype, copy=True), LABELS, mask=MASK, step=step)
    assert torch.equal(value, expected[0])
    assert torch.equal(gradient, expected[1])
    assert value > 0


@every_step
@NOT_FINITE
@pytest.mark.parametrize("labels", [[0, BACKGROUND, IGNORED], [BACKGROUND, BACKGROUND, IGNORED]])
def test_one_broken_image_makes_all_nan(
    labels: list[int], wrong: float, step: str, dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    logits = torch.tensor([[0.0, 1, 2], [0.5, wrong, wrong]], dtype=dtype)[..., None]
    both = torch.tensor([[0, BACKGROUND, BACKGROUND], labels])
    with pytest.raises(FloatingPointError, match=r"logits: 1 of 5 .* index \(1, 1, 0\)"):
        ap_loss(logits, both, step=step, scope="image")
    value, gradient = with_gradient(
        ap_loss, logits, both, step=step, scope="image", check_finite=False
    )
    assert value.isnan()
    assert torch.equal(gradient.isnan(), (both != IGNORED)[..., None])
    assert gradient[1, 2] == 0


@every_step
@NOT_FINITE
def test_without_positives_a_broken_score_makes_all_nan_too(
    wrong: float, step: str, dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    logits, labels = column([0, wrong, 1], dtype), torch.tensor([BACKGROUND] * 3)
    with pytest.raises(FloatingPointError, match="logits: 1 of 3"):
        ap_loss(logits, labels, step=step)
    value, gradient = with_gradient(ap_loss, logits, labels, step=step, check_finite=False)
    assert value.isnan()
    assert gradient.isnan().all()


# --- many scores ------------------------------------------------------------------------------


def many_negatives(num_negatives: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """One positive at 0; every other negative at 3, the rest at 0."""
    logits = torch.zeros(num_negatives + 1, 1, dtype=dtype)
    logits[:num_negatives:2] = 3
    labels = torch.full((num_negatives + 1,), BACKGROUND, dtype=torch.int8)
    labels[-1] = 0
    return logits, labels


@pytest.mark.parametrize(
    ("num_negatives", "step"),
    [
        *((100_000, step) for step in STEPS),  # float16 ends at 65,504
        *((3 << 23, step) for step in STEPS),  # float32 counts to 2^24 = 16,777,216
    ],
)
def test_more_negatives_than_a_float_can_count(
    num_negatives: int, step: str, dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    above = 1 / (1 + math.exp(-3)) if step == "sigmoid" else 1.0
    tied = 1.0 if step == "heaviside" else 0.5
    rank = 1 + num_negatives * (above + tied) / 2
    logits, labels = many_negatives(num_negatives, dtype)
    value, gradient = with_gradient(ap_loss, logits, labels, step=step, grad_output=1024.0)
    assert value.item() == pytest.approx(1 - 1 / rank, rel=1e-6)
    assert gradient[-1].item() == pytest.approx(-1024, rel=1e-3)
    expected = torch.tensor([above, tied]) * 1024 / rank
    tolerance = 2 * torch.finfo(dtype).eps + 1e-6
    torch.testing.assert_close(gradient[:2, 0].float(), expected, rtol=tolerance, atol=3e-8)
    assert torch.equal(gradient[:-1:2], gradient[:1].expand_as(gradient[:-1:2]))
    assert torch.equal(gradient[1:-1:2], gradient[1:2].expand_as(gradient[1:-1:2]))


def test_an_update_below_the_smallest_float16_is_scaled_before_it_is_rounded(
    dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    num_negatives = 40_000_000
    logits = torch.zeros(num_negatives + 1, 1, dtype=dtype)
    labels = torch.full((num_negatives + 1,), BACKGROUND, dtype=torch.int8)
    labels[0] = 0
    update = 0.5 / (1 + num_negatives / 2)
    assert torch.tensor(update).half() == 0
    _, gradient = with_gradient(ap_loss, logits, labels, grad_output=65_000.0)
    expected = torch.tensor(65_000 * update)
    torch.testing.assert_close(
        gradient[-1, 0].float(), expected, rtol=torch.finfo(dtype).eps, atol=0
    )
    assert (gradient[1:] == gradient[-1]).all()


@pytest.mark.slow
def test_1_3e8_scores(dtype: torch.dtype, with_gradient: WithGradient) -> None:
    if dtype != torch.bfloat16:
        pytest.skip("one dtype is enough of this memory")
    num_positives, num_rows, num_classes = 40, 1_300_001, 100
    num_negatives = num_rows * num_classes - num_positives
    assert num_positives * num_negatives > 2**32
    labels = torch.full((num_rows,), BACKGROUND)
    labels[-num_positives:] = num_classes - 1
    logits = torch.zeros(num_rows, num_classes, dtype=dtype)
    logits[::2] = 3  # rows of 3 and of 0 take turns; the last one, of an even index, is of 3
    logits[-num_positives:] = 0
    num_high = int((logits == 3).sum())
    # a = 1 + 39/2; b = the high ones + half of the others
    rank = 1 + 39 / 2 + num_high + (num_negatives - num_high) / 2
    value, gradient = with_gradient(ap_loss, logits, labels, grad_output=65536.0)
    assert value.item() == pytest.approx(1 - 20.5 / rank, rel=1e-6)
    high, tied, positive = gradient[0, 0], gradient[1, 0], gradient[-1, -1]
    assert high.item() == pytest.approx(65536 / rank, rel=1e-2)
    assert tied.item() == pytest.approx(65536 / rank / 2, rel=1e-2)
    assert positive.item() == pytest.approx(-65536 * value.item() / num_positives, rel=1e-2)
    assert bool((gradient[:-num_positives:2] == high).all())
    assert bool((gradient[1:-num_positives:2] == tied).all())
    assert bool((gradient[-num_positives:, -1] == positive).all())
    assert bool((gradient[-num_positives:, :-1] == tied).all())


def test_one_positive_with_a_very_low_score_makes_every_negative_count(
    dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    # Positive 5: error 0. Positive -1000: a = 2, b = 10: error 10/12.
    logits = column([5, -1000] + [0] * 10, dtype)
    labels = torch.tensor([0, 0] + [BACKGROUND] * 10)
    result = with_gradient(ap_loss, logits, labels)
    check(result, 5 / 12, [0, -5 / 12] + [1 / 24] * 10, dtype)


def test_an_error_too_small_to_show_in_the_precision_is_kept(
    dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    # k = 1/4 and a difference of 9.5: b = exp(-38), and 1 / (1 + b) is 1.0 even in float64.
    logits, labels = column([9.5, 0], dtype), torch.tensor([0, BACKGROUND])
    value, gradient = with_gradient(ap_loss, logits, labels, step="sigmoid", delta=0.25)
    b = math.exp(-38)
    assert 1 / (1 + b) == 1.0
    assert value.item() == pytest.approx(b, rel=1e-6)
    expected = torch.tensor([-b, b], dtype=dtype)  # 0 in float16
    torch.testing.assert_close(gradient[:, 0], expected, rtol=1e-2, atol=0)
