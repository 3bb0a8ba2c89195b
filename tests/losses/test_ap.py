"""AP-loss: cases worked by hand, then what has to hold for every ranking."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from rankdet.losses import BACKGROUND, IGNORED, ap_loss, binary_ap_loss

STEPS = ["piecewise", "heaviside", "sigmoid"]
WithGradient = Callable[..., tuple[Tensor, Tensor]]


def close(result: Tensor, expected: Any, tolerance: float = 1e-9) -> None:
    expected = torch.as_tensor(expected, dtype=result.dtype)
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


# --- worked by hand ---------------------------------------------------------------------------

# Two classes. Anchor 0 is of class 1 and anchor 1 of class 0, so the positives are 2 and 0 and the
# negatives 1.5, 1.0 (their other columns), 0.5 and -1.5 (background); anchor 3 does not count.
LOGITS = torch.tensor([[1.5, 2.0], [0.0, 1.0], [0.5, -1.5], [9.0, 9.0]], dtype=torch.float64)
LABELS = torch.tensor([1, 0, BACKGROUND, IGNORED])


def test_piecewise_by_hand(with_gradient: WithGradient) -> None:
    # Positive 2: a = 1 + f(-2) = 1; f of 1.5, 1.0, 0.5, -1.5 is 1/4, 0, 0, 0; b = 1/4; error 1/5.
    # Positive 0: a = 1 + f(2) = 2; f is 1, 1, 3/4, 0; b = 11/4; error (11/4) / (19/4) = 11/19.
    # Ascending errors 11/19, 1/5 fall, nothing is interpolated. Loss (1/5 + 11/19) / 2 = 37/95.
    # Negatives: 1.5 gets (1/5 + 4/19) / 2 = 39/190; 1.0 gets 2/19; 0.5 gets 3/38; -1.5 gets 0.
    value, gradient = with_gradient(ap_loss, LOGITS, LABELS)
    close(value, 37 / 95)
    close(gradient, [[39 / 190, -1 / 10], [-11 / 38, 2 / 19], [3 / 38, 0], [0, 0]])


def test_heaviside_by_hand(with_gradient: WithGradient) -> None:
    # Positive 2: nothing above, error 0. Positive 0: a = 2, three negatives above: error 3/5.
    value, gradient = with_gradient(ap_loss, LOGITS, LABELS, step="heaviside")
    close(value, 3 / 10)
    close(gradient, [[1 / 10, 0], [-3 / 10, 1 / 10], [1 / 10, 0], [0, 0]])


def test_sigmoid_by_hand(with_gradient: WithGradient) -> None:
    # k = 1/2 and differences of +-(ln 3) / 2: f is 3/4 and 1/4.
    # Upper positive: a = 1 + 1/4, b = 1/2; error (1/2) / (7/4) = 2/7.
    # Lower positive: a = 1 + 3/4, b = 3/4; error (3/4) / (10/4) = 3/10. Loss (2/7 + 3/10) / 2.
    # With the negative at the upper positive's own score, f is 1/2 and 3/4.
    upper = math.log(3) / 2
    logits = torch.tensor([[upper], [0.0], [upper]], dtype=torch.float64)
    labels = torch.tensor([0, 0, BACKGROUND])
    value, gradient = with_gradient(ap_loss, logits, labels, step="sigmoid", delta=0.5)
    close(value, 41 / 140)
    close(gradient[:, 0], [-1 / 7, -3 / 20, 41 / 140])


@pytest.mark.parametrize(
    ("interpolate", "loss", "update"),
    [
        # Errors of 5, 3, 1: 1/2, 1/3, 2/5. Loss (15 + 10 + 12) / 90 = 37/90.
        # Negative 6 gets (1/2 + 1/3 + 1/5) / 3 = 31/90, negative 2 gets (1/5) / 3.
        (False, 37 / 90, [-1 / 6, -1 / 9, -2 / 15, 31 / 90, 1 / 15]),
        # Interpolated: 1/3, 1/3, 2/5. Loss 16/45. Negative 6 gets (1/3 + 1/3 + 1/5) / 3 = 13/45.
        (True, 16 / 45, [-1 / 9, -1 / 9, -2 / 15, 13 / 45, 1 / 15]),
    ],
)
@pytest.mark.parametrize("step", ["piecewise", "heaviside"])  # all scores are 1 apart or more
def test_interpolation_by_hand(
    step: str, interpolate: bool, loss: float, update: list[float], with_gradient: WithGradient
) -> None:
    scores = torch.tensor([5.0, 3.0, 1.0, 6.0, 2.0], dtype=torch.float64)
    targets = torch.tensor([1, 1, 1, 0, 0])
    value, gradient = with_gradient(
        binary_ap_loss, scores, targets, step=step, interpolate=interpolate
    )
    close(value, loss)
    close(gradient, update)


def test_a_masked_entry_is_ignored_and_its_anchor_is_not(with_gradient: WithGradient) -> None:
    mask = torch.ones_like(LOGITS, dtype=torch.bool)
    mask[0, 1] = mask[1, 1] = False  # positive 2 and negative 1.0
    # Positive 0 alone: b = f(1.5) + f(0.5) = 7/4; error (7/4) / (11/4) = 7/11, in parts 4 : 3.
    value, gradient = with_gradient(ap_loss, LOGITS, LABELS, mask=mask)
    close(value, 7 / 11)
    close(gradient, [[4 / 11, 0], [-7 / 11, 0], [3 / 11, 0], [0, 0]])


def test_scope_image_by_hand(with_gradient: WithGradient) -> None:
    # Image 0: p = 0, n = 2: error 1/2. Image 1: p = 0, n = 0: (1/2) / (3/2) = 1/3.
    # Image 2 has no positives and does not count. The mean is 5/12.
    logits = torch.tensor([[[0.0], [2.0]], [[0.0], [0.0]], [[7.0], [7.0]]], dtype=torch.float64)
    labels = torch.tensor([[0, BACKGROUND], [0, BACKGROUND], [BACKGROUND, IGNORED]])
    value, gradient = with_gradient(ap_loss, logits, labels, scope="image")
    close(value, 5 / 12)
    close(gradient[..., 0], [[-1 / 4, 1 / 4], [-1 / 6, 1 / 6], [0, 0]])


def test_scope_of_two_images_by_hand(with_gradient: WithGradient) -> None:
    # Images 0 and 1 together: p = 0 and 9, n = 0 and -9. The higher positive has no negative near
    # it: error 0. The lower one: (1/2) / (2 + 1/2) = 1/5. Their mean is 1/10. Image 2 is alone with
    # its p = 0 and n = 2: error 1/2. The mean of the two rankings is 3/10.
    logits = torch.tensor([[[0.0], [0.0]], [[9.0], [-9.0]], [[0.0], [2.0]]], dtype=torch.float64)
    labels = torch.tensor([[0, BACKGROUND]] * 3)
    value, gradient = with_gradient(ap_loss, logits, labels, scope=2)
    close(value, 3 / 10)
    close(gradient[..., 0], [[-1 / 20, 1 / 20], [0, 0], [-1 / 4, 1 / 4]])


# --- what holds for every ranking -------------------------------------------------------------


class Ranking(NamedTuple):
    """A problem with its settings; the scores are multiples of 1/64, so that moving them by one
    or scaling them by a small integer rounds nothing."""

    logits: Tensor  # (R, K) float64
    labels: Tensor  # (R,)
    mask: Tensor  # (R, K) bool
    settings: dict[str, Any]

    @property
    def inputs(self) -> tuple[Tensor, Tensor]:
        return self.logits, self.labels

    @property
    def is_counted(self) -> Tensor:
        return self.mask & (self.labels != IGNORED)[:, None]

    @property
    def is_positive(self) -> Tensor:
        is_own = self.labels[:, None] == torch.arange(self.logits.shape[1])
        return is_own & self.is_counted


@st.composite
def rankings(draw: st.DrawFn, steps: list[str] | None = None) -> Ranking:
    num_rows, num_classes = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    coarse = draw(st.sampled_from([1, 4, 64]))  # the coarser, the more ties
    size = num_rows * num_classes
    scores = draw(st.lists(st.integers(-6 * coarse, 6 * coarse), min_size=size, max_size=size))
    labels = draw(
        st.lists(st.integers(IGNORED, num_classes - 1), min_size=num_rows, max_size=num_rows)
    )
    hidden = draw(st.sets(st.integers(0, size - 1), max_size=2))
    mask = torch.ones(size, dtype=torch.bool)
    mask[list(hidden)] = False
    return Ranking(
        torch.tensor(scores, dtype=torch.float64).reshape(num_rows, num_classes) / coarse,
        torch.tensor(labels),
        mask.reshape(num_rows, num_classes),
        {
            "step": draw(st.sampled_from(steps or STEPS)),
            "delta": draw(st.sampled_from([0.25, 0.5, 1.0, 3.0])),
            "interpolate": draw(st.booleans()),
        },
    )


every_ranking = settings(max_examples=200, deadline=None, derandomize=True)


@every_ranking
@given(ranking=rankings())
def test_the_update_moves_score_from_negatives_to_positives_and_nowhere_else(
    ranking: Ranking, with_gradient: WithGradient
) -> None:
    value, g = with_gradient(ap_loss, *ranking.inputs, mask=ranking.mask, **ranking.settings)
    is_positive, is_counted = ranking.is_positive, ranking.is_counted
    assert 0 <= value < 1
    close(g.sum(), 0.0, 1e-12)
    close(-g[is_positive].sum(), value, 1e-12)
    assert (g[is_positive] <= 0).all()
    assert (g[is_counted & ~is_positive] >= -1e-13).all()  # rounding may leave less than nothing
    assert (g[~is_counted] == 0).all()


@every_ranking
@given(ranking=rankings(), shift=st.integers(-500, 500))
def test_a_constant_added_to_all_scores_changes_nothing(
    ranking: Ranking, shift: int, with_gradient: WithGradient
) -> None:
    value, g = with_gradient(ap_loss, *ranking.inputs, **ranking.settings)
    moved = with_gradient(ap_loss, ranking.logits + shift, ranking.labels, **ranking.settings)
    close(moved[0], value, 1e-10)
    close(moved[1], g, 1e-10)


@every_ranking
@given(ranking=rankings(), factor=st.sampled_from([2**-10, 0.5, 3, 100]))
def test_scores_and_delta_scaled_together_change_nothing(
    ranking: Ranking, factor: float, with_gradient: WithGradient
) -> None:
    value, g = with_gradient(ap_loss, *ranking.inputs, **ranking.settings)
    scaled = ranking.settings | {"delta": ranking.settings["delta"] * factor}
    scaled_value, scaled_g = with_gradient(
        ap_loss, ranking.logits * factor, ranking.labels, **scaled
    )
    close(scaled_value, value, 1e-10)
    close(scaled_g, g, 1e-10)


@every_ranking
@given(ranking=rankings(), seed=st.integers(0, 1000))
def test_the_order_of_the_scores_does_not_matter(
    ranking: Ranking, seed: int, with_gradient: WithGradient
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(ranking.logits.shape[0], generator=generator)
    columns = torch.randperm(ranking.logits.shape[1], generator=generator)
    # Column c of the permuted problem is the old columns[c], so that class k is at argsort[k].
    new_class = torch.cat([columns.argsort(), torch.tensor([IGNORED, BACKGROUND])])
    value, g = with_gradient(ap_loss, *ranking.inputs, mask=ranking.mask, **ranking.settings)
    permuted_value, permuted_g = with_gradient(
        ap_loss,
        ranking.logits[rows][:, columns],
        new_class[ranking.labels[rows]],
        mask=ranking.mask[rows][:, columns],
        **ranking.settings,
    )
    close(permuted_value, value, 1e-12)
    close(permuted_g, g[rows][:, columns], 1e-12)


@every_ranking
@given(ranking=rankings(steps=["heaviside"]))
def test_heaviside_without_interpolation_is_one_minus_the_ap_of_scikit_learn(
    ranking: Ranking,
) -> None:
    is_counted, is_positive = ranking.is_counted, ranking.is_positive
    assume(is_positive.any())
    loss = ap_loss(*ranking.inputs, mask=ranking.mask, step="heaviside", interpolate=False)
    judged = average_precision_score(is_positive[is_counted], ranking.logits[is_counted])
    close(loss, 1 - judged, 1e-12)


@every_ranking
@given(ranking=rankings(steps=["piecewise"]))
@example(
    ranking=Ranking(
        torch.tensor([[0.0], [-1.0], [-2.0], [3.0]], dtype=torch.float64),
        torch.tensor([0, BACKGROUND, BACKGROUND, BACKGROUND]),
        torch.ones(4, 1, dtype=torch.bool),
        {"step": "piecewise", "delta": 1.0},
    )
)
@example(
    ranking=Ranking(
        torch.tensor([[0, 0], [0, 0], [2.25, 5.25]], dtype=torch.float64),
        torch.tensor([1, BACKGROUND, 1]),
        torch.tensor([[True, False], [True, True], [True, True]]),
        {"step": "piecewise", "delta": 3.0, "interpolate": False},
    )
)
def test_trivial_negatives_can_be_dropped_for_the_piecewise_step(
    ranking: Ranking, with_gradient: WithGradient
) -> None:
    is_positive = ranking.is_positive
    assume(is_positive.any())
    lowest = ranking.logits[is_positive].min() - ranking.settings["delta"]
    kept = ranking.mask & (is_positive | (ranking.logits > lowest))
    value, g = with_gradient(ap_loss, *ranking.inputs, mask=ranking.mask, **ranking.settings)
    kept_value, kept_g = with_gradient(ap_loss, *ranking.inputs, mask=kept, **ranking.settings)
    # Exactly 0 below the first knot; on it, slope * score + intercept leaves a last bit.
    assert (g[~kept & (ranking.logits < lowest)] == 0).all()
    assert (g[~kept].abs() <= 1e-15).all()
    close(kept_value, value, 1e-13)
    close(kept_g, g, 1e-13)


@pytest.mark.parametrize(
    ("step", "negative", "with_it"),
    [
        ("sigmoid", -2.0, 1 / (2 + math.exp(2))),  # S(-2) / (1 + S(-2))
        ("heaviside", 0.0, 1 / 2),  # with delta 0, a tie lies at min p - delta
    ],
)
def test_negatives_at_the_lower_end_of_the_step_cannot_be_dropped_for_the_other_steps(
    step: str, negative: float, with_it: float
) -> None:
    scores, targets = torch.tensor([0.0, negative]), torch.tensor([1, 0])
    close(binary_ap_loss(scores, targets, step=step), with_it, 1e-6)
    dropped = binary_ap_loss(scores, targets, step=step, mask=torch.tensor([True, False]))
    assert dropped == 0


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("scope", ["batch", "image", 2])
def test_without_positives_the_loss_is_0_and_the_graph_is_connected(
    step: str, scope: str | int
) -> None:
    weight = torch.ones((), requires_grad=True)
    logits = weight * torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    logits.retain_grad()
    loss = ap_loss(logits, torch.full((2, 4), BACKGROUND), step=step, scope=scope)
    assert loss == 0
    loss.backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))
    assert weight.grad == 0


@pytest.mark.parametrize("step", STEPS)
def test_gradcheck_fails_because_the_update_is_not_the_derivative_of_the_value(step: str) -> None:
    logits = LOGITS.clone().requires_grad_()

    def is_derivative(**options: Any) -> bool:
        return torch.autograd.gradcheck(
            lambda scores: ap_loss(scores, LABELS, step=step), logits, **options
        )

    assert not is_derivative(raise_exception=False)
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        is_derivative()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("interpolate", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_scope_image_equals_a_loop_over_images(
    step: str, interpolate: bool, seed: int, with_gradient: WithGradient
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 7, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(IGNORED, 3, (4, 7), generator=generator)
    labels[2] = BACKGROUND
    mask = torch.rand(logits.shape, generator=generator) < 0.8
    options = {"step": step, "interpolate": interpolate, "delta": 0.7}

    value, gradient = with_gradient(ap_loss, logits, labels, scope="image", mask=mask, **options)

    images = [
        with_gradient(ap_loss, logits[i], labels[i], mask=mask[i], **options) for i in range(4)
    ]
    close(value, sum(loss for loss, _ in images) / 3, 1e-13)  # image 2 has no positives
    close(gradient, torch.stack([g for _, g in images]) / 3, 1e-13)
    assert value != ap_loss(logits, labels, mask=mask, **options)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_scope_of_some_images_equals_a_loop_over_these_groups(
    step: str, size: int, with_gradient: WithGradient
) -> None:
    generator = torch.Generator().manual_seed(size)
    logits = torch.randn(5, 7, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(IGNORED, 3, (5, 7), generator=generator)
    labels[4] = BACKGROUND  # which is a group of its own for sizes 1, 2 and 4
    mask = torch.rand(logits.shape, generator=generator) < 0.8

    value, gradient = with_gradient(ap_loss, logits, labels, scope=size, step=step, mask=mask)

    groups = [
        with_gradient(ap_loss, *group[:2], mask=group[2], step=step)
        for group in zip(logits.split(size), labels.split(size), mask.split(size), strict=True)
    ]
    num_ranked = {1: 4, 2: 2, 3: 2, 4: 1, 5: 1, 6: 1}[size]
    close(value, sum(loss for loss, _ in groups) / num_ranked, 1e-13)
    close(gradient, torch.cat([g for _, g in groups]) / num_ranked, 1e-13)


def test_scope_of_one_image_and_of_all_are_those_with_names(with_gradient: WithGradient) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 7, 3, generator=generator)
    labels = torch.randint(IGNORED, 3, (4, 7), generator=generator)
    for number, name in ((1, "image"), (4, "batch"), (100, "batch")):
        value, gradient = with_gradient(ap_loss, logits, labels, scope=number)
        named_value, named_gradient = with_gradient(ap_loss, logits, labels, scope=name)
        assert torch.equal(value, named_value)
        assert torch.equal(gradient, named_gradient)


@every_ranking
@given(ranking=rankings())
def test_binary_ap_loss_is_ap_loss_of_the_flat_problem(
    ranking: Ranking, with_gradient: WithGradient
) -> None:
    expected, g = with_gradient(ap_loss, *ranking.inputs, mask=ranking.mask, **ranking.settings)
    value, binary_g = with_gradient(
        binary_ap_loss,
        ranking.logits,
        ranking.is_positive.long(),
        mask=ranking.is_counted,
        **ranking.settings,
    )
    close(value, expected, 1e-12)
    close(binary_g, g, 1e-12)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 2, 1, 2)])
def test_binary_targets_of_any_dtype_and_shape_mean_the_same(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    # Both positives see one negative above: 1/2 and 1/3, interpolated to 1/3.
    scores, targets = torch.tensor([3.0, 0.0, 5.0, -9.0]), torch.tensor([1, 1, 0, 0], dtype=dtype)
    close(binary_ap_loss(scores.reshape(shape), targets.reshape(shape)), 1 / 3, 1e-6)
