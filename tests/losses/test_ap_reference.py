"""The judge of the fast paths against pencil and paper, scikit-learn and all pairs at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from rankdet.losses import ap_loss_reference
from rankdet.losses.ap_reference import soft_step

STEPS = ["piecewise", "heaviside", "sigmoid"]
LN3 = math.log(3)  # S(k ln 3) = 1 / (1 + 1/3) = 3/4 and S(-k ln 3) = 1/4


@pytest.mark.parametrize(
    ("step", "delta", "differences", "expected"),
    [
        # a straight line from 0 at -delta to 1 at delta
        ("piecewise", 1.0, [-9, -1, -0.5, 0, 0.5, 1, 9], [0, 0, 0.25, 0.5, 0.75, 1, 1]),
        ("piecewise", 0.5, [-0.5, -0.25, 0, 0.25, 0.5], [0, 0.25, 0.5, 0.75, 1]),
        ("piecewise", 2.0, [-2, -1, 0, 1, 2], [0, 0.25, 0.5, 0.75, 1]),
        ("heaviside", 1.0, [-9, -1e-9, 0, 1e-9, 9], [0, 0, 1, 1, 1]),
        ("sigmoid", 1.0, [-LN3, 0, LN3], [0.25, 0.5, 0.75]),
        ("sigmoid", 0.5, [-LN3 / 2, 0, LN3 / 2], [0.25, 0.5, 0.75]),
    ],
)
def test_the_steps_are_those_of_the_paper(
    step: str, delta: float, differences: list[float], expected: list[float]
) -> None:
    result = soft_step(torch.tensor(differences, dtype=torch.float64), step, delta)
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64))


# (step, delta, interpolate, positives, negatives, value, updates of positives, of negatives)
HAND_CASES = {
    # f = 1, 1/2, 0; b = 3/2; a = 1; error = (3/2) / (5/2) = 3/5, shared 2/5 + 1/5 + 0.
    "one_positive": (
        *("piecewise", 1.0, True, [0.0], [2.0, 0.0, -2.0]),
        *(3 / 5, [-3 / 5], [2 / 5, 1 / 5, 0]),
    ),
    # Twice the width: f(2) = 1, f(0) = 1/2, f(-1) = 1/4; b = 7/4; error = 7/11 in parts 4, 2, 1.
    "one_positive_wide_step": (
        *("piecewise", 2.0, True, [0.0], [2.0, 0.0, -1.0]),
        *(7 / 11, [-7 / 11], [4 / 11, 2 / 11, 1 / 11]),
    ),
    # f = 1, 1, 0 because a tie counts 1; b = 2; error = 2/3.
    "one_positive_heaviside": (
        *("heaviside", 1.0, True, [0.0], [2.0, 0.0, -2.0]),
        *(2 / 3, [-2 / 3], [1 / 3, 1 / 3, 0]),
    ),
    # f = 3/4 and 1/4; b = 1; error = 1/2 in parts 3 : 1.
    "one_positive_sigmoid": (
        *("sigmoid", 0.5, True, [0.0], [LN3 / 2, -LN3 / 2]),
        *(1 / 2, [-1 / 2], [3 / 8, 1 / 8]),
    ),
    # Upper positive: a = 1 + f(-1) = 1, b = f(-1/2) = 1/4, error = 1/5.
    # Lower positive: a = 1 + f(1) = 2, b = f(1/2) = 3/4, error = 3/11.
    # Ascending errors 3/11, 1/5 fall: nothing to interpolate. Loss (11/55 + 15/55) / 2 = 13/55.
    "two_positives": (
        *("piecewise", 1.0, True, [1.0, 0.0], [0.5]),
        *(13 / 55, [-1 / 10, -3 / 22], [13 / 55]),
    ),
    # Upper: a = 1, b = 1, error 1/2. Lower: a = 2, b = 1, error 1/3: less than above.
    "two_positives_not_interpolated": (
        *("heaviside", 1.0, False, [3.0, 0.0], [4.0]),
        *(5 / 12, [-1 / 4, -1 / 6], [5 / 12]),
    ),
    # The same, the upper error lowered to 1/3 too.
    "two_positives_interpolated": (
        *("heaviside", 1.0, True, [3.0, 0.0], [4.0]),
        *(1 / 3, [-1 / 6, -1 / 6], [1 / 3]),
    ),
    # Upper: a = 1 + S(-ln 3) = 5/4, lower: a = 1 + S(ln 3) = 7/4; b = 1 (up to 1e-43) for both.
    # Errors 1 / (9/4) = 4/9 and 1 / (11/4) = 4/11: the upper one is lowered to 4/11.
    "two_positives_sigmoid_interpolated": (
        *("sigmoid", 1.0, True, [LN3, 0.0], [100.0]),
        *(4 / 11, [-2 / 11, -2 / 11], [4 / 11]),
    ),
    # Errors of 5, 3, 1: 0 / 1, 1 / (2 + 1), 2 / (3 + 2). Loss (0 + 1/3 + 2/5) / 3 = 11/45.
    # Negative 4 gets (1/3 + 1/5) / 3 = 8/45, negative 2 gets (1/5) / 3 = 3/45.
    "three_positives": (
        *("heaviside", 1.0, True, [5.0, 3.0, 1.0], [4.0, 2.0, 0.0]),
        *(11 / 45, [0, -1 / 9, -2 / 15], [8 / 45, 3 / 45, 0]),
    ),
    # All scores are 1 or more apart, so that a step of half-width 1 sees what a jump sees.
    "three_positives_piecewise": (
        *("piecewise", 1.0, True, [5.0, 3.0, 1.0], [4.0, 2.0, 0.0]),
        *(11 / 45, [0, -1 / 9, -2 / 15], [8 / 45, 3 / 45, 0]),
    ),
    # Errors ascending: 2 / (3 + 2), 1 / (2 + 1), 1 / (1 + 1). The last is lowered to 1/3 and its
    # pair by 2/3. Loss (2/5 + 1/3 + 1/3) / 3 = 16/45; negative 6 gets (1/5 + 1/3 + 1/3) / 3.
    "three_positives_interpolated": (
        *("heaviside", 1.0, True, [5.0, 3.0, 1.0], [6.0, 2.0]),
        *(16 / 45, [-1 / 9, -1 / 9, -2 / 15], [13 / 45, 3 / 45]),
    ),
    # Tied with a negative: b = f(0), so 1 / (1 + 1) and (1/2) / (3/2).
    "tie_with_a_negative_heaviside": (
        *("heaviside", 1.0, True, [0.0], [0.0]),
        *(1 / 2, [-1 / 2], [1 / 2]),
    ),
    "tie_with_a_negative_piecewise": (
        *("piecewise", 1.0, True, [0.0], [0.0]),
        *(1 / 3, [-1 / 3], [1 / 3]),
    ),
    # Tied positives: a = 1 + f(0), so errors 1 / (2 + 1) and 1 / (3/2 + 1).
    "tied_positives_heaviside": (
        *("heaviside", 1.0, True, [0.0, 0.0], [5.0]),
        *(1 / 3, [-1 / 6, -1 / 6], [1 / 3]),
    ),
    "tied_positives_piecewise": (
        *("piecewise", 1.0, True, [0.0, 0.0], [5.0]),
        *(2 / 5, [-1 / 5, -1 / 5], [2 / 5]),
    ),
    "perfect": ("piecewise", 1.0, True, [4.0, 2.0], [1.0, -5.0], 0, [0, 0], [0, 0]),
    "no_negatives": ("piecewise", 1.0, True, [4.0, 2.0], [], 0, [0, 0], []),
    "no_positives": ("piecewise", 1.0, True, [], [4.0, 2.0], 0, [], [0, 0]),
}


@pytest.mark.parametrize("case", HAND_CASES.values(), ids=HAND_CASES.keys())
def test_cases_worked_by_hand(case: tuple) -> None:
    step, delta, interpolate, positives, negatives, value, update_P, update_N = case
    scores = torch.tensor(positives + negatives, dtype=torch.float64)
    targets = torch.tensor([1] * len(positives) + [0] * len(negatives))
    result, update = ap_loss_reference(
        scores, targets, delta=delta, step=step, interpolate=interpolate
    )
    torch.testing.assert_close(result, torch.tensor(value, dtype=torch.float64))
    torch.testing.assert_close(update, torch.tensor(update_P + update_N, dtype=torch.float64))


def test_masked_scores_are_in_neither_set_and_never_read() -> None:
    nan = float("nan")
    scores = torch.tensor([0.0, nan, 2.0, nan, 0.0, -2.0])
    targets = torch.tensor([1, 1, 0, 0, 0, 0])
    mask = torch.tensor([True, False, True, False, True, True])
    value, update = ap_loss_reference(scores, targets, mask=mask)
    # What is left is the first case above.
    assert value.item() == pytest.approx(3 / 5)
    assert update.tolist() == pytest.approx([-3 / 5, 0, 2 / 5, 0, 1 / 5, 0])


def test_the_shape_of_the_scores_is_kept_and_float64_comes_out() -> None:
    scores = torch.tensor([[0.0, 2.0], [0.0, -2.0]], dtype=torch.float16)
    value, update = ap_loss_reference(scores, torch.tensor([[1, 0], [0, 0]]))
    assert (value.dtype, update.dtype, value.shape) == (torch.float64, torch.float64, ())
    assert update[0].tolist() == pytest.approx([-3 / 5, 2 / 5])
    assert update[1].tolist() == pytest.approx([1 / 5, 0])


def test_an_error_too_small_to_show_in_the_precision_is_kept() -> None:
    # b = S(-38) = exp(-38) = 3.1e-17: the precision 1 / (1 + b) is 1.0 in float64.
    value, update = ap_loss_reference(
        torch.tensor([38.0, 0.0]), torch.tensor([1, 0]), step="sigmoid", delta=1.0
    )
    assert 1 / (1 + math.exp(-38)) == 1.0
    assert value.item() == pytest.approx(math.exp(-38))
    assert update.tolist() == pytest.approx([-math.exp(-38), math.exp(-38)])


def test_negatives_that_the_cut_leaves_out_matter_for_the_other_steps() -> None:
    # n = p - 2 delta: f(-2) of the sigmoid is 1 / (1 + e^2), not 0.
    scores, targets = torch.tensor([0.0, -2.0]), torch.tensor([1, 0])
    share = 1 / (1 + math.exp(2))
    value, _ = ap_loss_reference(scores, targets, step="sigmoid")
    assert value.item() == pytest.approx(share / (1 + share))
    assert ap_loss_reference(scores, targets, step="piecewise")[0].item() == 0


def test_an_unknown_step_is_refused() -> None:
    with pytest.raises(ValueError, match=r"step: expected 'piecewise', .* got 'cubic'"):
        ap_loss_reference(torch.tensor([0.0, 1.0]), torch.tensor([1, 0]), step="cubic")


# Few different scores make ties; the others make none.
SCORES = st.one_of(st.integers(-3, 3).map(float), st.floats(-10, 10))
RANKINGS = st.lists(st.tuples(SCORES, st.integers(0, 1)), min_size=1, max_size=20).map(
    lambda pairs: tuple(np.array(column) for column in zip(*pairs, strict=True))
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(ranking=RANKINGS)
@example(ranking=(np.array([1.0, 1.0, 1.0, 0.0]), np.array([1, 0, 1, 0])))
def test_heaviside_without_interpolation_is_one_minus_the_ap_of_scikit_learn(
    ranking: tuple[np.ndarray, np.ndarray],
) -> None:
    scores, targets = ranking
    if targets.sum() == 0:  # scikit-learn warns and says 0
        return
    value, _ = ap_loss_reference(
        torch.tensor(scores), torch.tensor(targets), step="heaviside", interpolate=False
    )
    assert value.item() == pytest.approx(1 - average_precision_score(targets, scores), abs=1e-12)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(
    ranking=RANKINGS,
    step=st.sampled_from(STEPS),
    delta=st.sampled_from([1e-6, 0.25, 0.5, 1.0, 3.0]),
    interpolate=st.booleans(),
)
def test_the_loop_equals_the_matrix_of_all_pairs(
    ranking: tuple[np.ndarray, np.ndarray],
    step: str,
    delta: float,
    interpolate: bool,
    dense_ap: Callable[..., tuple[float, np.ndarray]],
) -> None:
    scores, targets = ranking
    value, update = ap_loss_reference(
        torch.tensor(scores), torch.tensor(targets), delta=delta, step=step, interpolate=interpolate
    )
    dense_value, dense_update = dense_ap(scores, targets, step, delta, interpolate)
    assert value.item() == pytest.approx(dense_value, rel=1e-12, abs=1e-15)
    np.testing.assert_allclose(update.numpy(), dense_update, rtol=1e-12, atol=1e-15)
