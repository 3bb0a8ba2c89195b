"""The theory of the paper's appendices, on many random problems."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch import Tensor

from rankdet.experiments import theory
from rankdet.experiments import theory_inseparable as inseparable
from rankdet.experiments import theory_separable as separable
from rankdet.losses import BACKGROUND, ap_loss, smooth_ap_loss
from rankdet.losses.ap_reference import soft_step

seeds = st.integers(0, 2**31)
deltas = st.floats(0.1, 5.0)
few = settings(max_examples=40, deadline=None)


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# A1: separable data.


def explicit_change(weights: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """sum_ij L_ij (f_i - f_j), by two loops."""
    scores = (features @ weights).tolist()
    change = torch.zeros_like(weights)
    for i in (labels == 0).nonzero()[:, 0].tolist():
        denominator = 1 + sum(scores[k] >= scores[i] for k in range(len(scores)) if k != i)
        for j in (labels == BACKGROUND).nonzero()[:, 0].tolist():
            if scores[j] >= scores[i]:
                change += (features[i] - features[j]) / denominator
    return change


@pytest.mark.parametrize("seed", range(10))
def test_change_is_that_of_the_paper(seed: int) -> None:
    generator = generator_of(seed)
    problem = separable.random_separable_problem(generator)
    weights = torch.randn(6, generator=generator, dtype=torch.float64) * (seed % 3)
    for features, labels in zip(problem.features, problem.labels, strict=True):
        _, change = separable.error_driven_change(weights, features, labels)
        expected = explicit_change(weights, features, labels)
        torch.testing.assert_close(change, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("margin", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(12))
def test_separable_problems_are_solved_within_the_bound(seed: int, margin: float) -> None:
    generator = generator_of(seed)
    problem = separable.random_separable_problem(
        generator, margin=margin, num_samples=1 + seed % 5, num_features=2 + seed % 7
    )
    assert problem.margin >= margin

    run = separable.train_until_separated(problem, generator, max_steps=5000)

    num_steps = len(run.weights) - 1
    assert run.losses[-1] == 0
    assert (run.losses[:-1] > 0).all()
    for features, labels in zip(problem.features, problem.labels, strict=True):
        scores = features @ run.weights[-1]
        assert scores[labels == 0].min() > scores[labels == BACKGROUND].max()
    assert num_steps <= separable.sharper_bound(problem) <= separable.step_bound(problem)
    # The two inequalities of the proof, at every step.
    growth, ceiling = separable.proof_constants(problem)
    step = torch.arange(num_steps + 1, dtype=torch.float64)
    length = run.weights.norm(dim=1)
    assert (length >= growth * step).all()
    assert (length**2 <= ceiling * step + 1e-9).all()
    assert (run.weights @ problem.separator >= growth * step).all()


@few
@given(seeds, st.integers(1, 12), st.integers(1, 12))
def test_sums_of_errors_are_bounded_as_the_proof_needs(
    seed: int, num_positives: int, num_negatives: int
) -> None:
    # Few different scores: ties are frequent.
    scores = torch.randint(0, 6, (num_positives + num_negatives,), generator=generator_of(seed))
    labels = torch.tensor([0] * num_positives + [BACKGROUND] * num_negatives)
    loss = ap_loss(scores.double()[:, None], labels, step="heaviside", interpolate=False)
    total = float(loss) * num_positives
    highest = num_negatives * math.log1p(num_positives / num_negatives)
    assert total <= highest * (1 + 1e-12)
    assert highest <= math.sqrt(num_positives * num_negatives)
    assert total == 0 or total >= 1 / (num_positives + 1) * (1 - 1e-12)


# A2: three samples.


def test_closed_form_of_three_samples_is_the_smoothed_loss() -> None:
    weights = 3 * torch.randn(20, 2, generator=generator_of(0), dtype=torch.float64)
    for point in weights:
        scores = separable.THREE_FEATURES @ point
        value = smooth_ap_loss(scores[:, None], separable.THREE_LABELS, delta=1.0)
        torch.testing.assert_close(value, separable.three_sample_loss(point))


def test_partial_derivatives_trap_gradient_descent_where_theta1_is_large() -> None:
    first = 0.97 + 6 * torch.rand(500, generator=generator_of(1), dtype=torch.float64)
    ratio = torch.rand(500, generator=generator_of(2), dtype=torch.float64).clamp(0.001, 0.999)
    assert separable.is_trapped(torch.stack([first, first * ratio], dim=1)).all()
    assert separable.sufficiently_large() == pytest.approx(0.97, abs=0.011)
    # There is no trap where the three samples are ranked well.
    assert not separable.is_trapped(torch.tensor([2.5, 8.0], dtype=torch.float64))


@pytest.mark.parametrize("start", [(3.0, 1.0), (1.5, 1.0), (4.0, 0.5)])
def test_gradient_descent_on_the_smoothed_loss_ends_at_a_sixth(
    start: tuple[float, float],
) -> None:
    run = separable.descend_smoothed(
        torch.tensor(start, dtype=torch.float64), learning_rate=4.0, steps=400
    )
    assert float(run.losses[-1]) == pytest.approx(1 / 6, abs=1e-3)
    assert (run.losses > 1 / 6).all()
    assert (run.losses.diff() < 0).all()
    assert (run.weights.diff(dim=0) > 0).all()
    assert (run.weights[:, 0] > run.weights[:, 1]).all()


@pytest.mark.parametrize("start", [(3.0, 1.0), (1.5, 1.0), (4.0, 0.5)])
def test_error_driven_update_reaches_zero_from_the_same_start(start: tuple[float, float]) -> None:
    weights = torch.tensor(start, dtype=torch.float64)
    run = separable.descend_error_driven(weights, learning_rate=1.0, steps=100)
    assert run.losses[-1] == 0
    assert (separable.THREE_FEATURES[1:] @ run.weights[-1] > 0).all()
    # And with the very loss that gradient descent cannot bring below 1/6.
    smooth = separable.descend_error_driven(weights, learning_rate=2.0, steps=400, step="sigmoid")
    torch.testing.assert_close(smooth.losses[0], separable.three_sample_loss(weights))
    assert smooth.losses[-1] < 0.02


def test_error_driven_path_by_hand() -> None:
    """(3, 1): only (-3, 1) is wrong, at rank 3, so a third of it is added; at (0, 2) a tie is."""
    start = torch.tensor([3.0, 1.0], dtype=torch.float64)
    run = separable.descend_error_driven(start, learning_rate=1.0, steps=100)
    path = [[3, 1], [2, 4 / 3], [1, 5 / 3], [0, 2], [1 / 3, 2]]
    torch.testing.assert_close(run.weights, torch.tensor(path, dtype=torch.float64))
    sixth = 1 / 6
    expected = torch.tensor([sixth, sixth, sixth, sixth, 0], dtype=torch.float64)
    torch.testing.assert_close(run.losses, expected)


# A3: inseparable data.


@st.composite
def samples(draw: st.DrawFn) -> inseparable.Sample:
    return inseparable.random_inseparable_sample(
        generator_of(draw(seeds)),
        num_positives=draw(st.integers(1, 12)),
        num_negatives=draw(st.integers(2, 12)),  # one of them is the copy
        num_features=3,
        shift=draw(st.floats(0, 6)),
    )


@st.composite
def vectors(draw: st.DrawFn) -> Tensor:
    # Not 1e-324: scores and their differences would then underflow at different places.
    scale = draw(st.just(0.0) | st.floats(1e-6, 5))
    return scale * torch.randn(3, generator=generator_of(draw(seeds)), dtype=torch.float64)


@few
@given(deltas)
def test_step_integral(delta: float) -> None:
    points = torch.linspace(-3 * delta, 3 * delta, 6001, dtype=torch.float64)
    integral = inseparable.step_integral(points, delta)
    step = soft_step(points, "piecewise", delta)
    numeric = torch.cumulative_trapezoid(step, points)
    torch.testing.assert_close(integral[1:], numeric, rtol=1e-6, atol=1e-6 * delta)
    assert float(inseparable.step_integral(torch.zeros(1), delta)) == pytest.approx(delta / 4)
    assert (integral >= delta / 4 * soft_step(points, "heaviside") - 1e-12).all()
    assert (step**2 <= integral / delta + 1e-12).all()
    assert (integral.diff(n=2) >= -1e-12).all()  # convex


@few
@given(samples(), vectors(), deltas)
def test_surrogate_is_at_least_a_quarter_delta_of_the_ap_loss(
    sample: inseparable.Sample, weights: Tensor, delta: float
) -> None:
    ranks = inseparable.rank_denominators(sample, weights)
    surrogate = inseparable.surrogate_loss(sample, weights, ranks, delta)
    loss = inseparable.heaviside_ap_loss(sample, weights)
    scores = (sample.features @ weights)[:, None]
    expected = ap_loss(scores, sample.labels, step="heaviside", interpolate=False)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    assert loss > 0  # the data are inseparable
    assert surrogate >= delta / 4 * loss * (1 - 1e-12)


def test_a_quarter_delta_cannot_be_improved() -> None:
    """One positive, and one negative with the same score: x = 0, L_AP = 1/2, l = delta / 8."""
    sample = inseparable.Sample(
        torch.ones(2, 1, dtype=torch.float64), torch.tensor([0, BACKGROUND])
    )
    weights = torch.ones(1, dtype=torch.float64)
    ranks = inseparable.rank_denominators(sample, weights)
    assert float(inseparable.heaviside_ap_loss(sample, weights)) == 0.5
    assert float(inseparable.surrogate_loss(sample, weights, ranks, 2.0)) == 0.25


@few
@given(samples(), vectors(), deltas)
def test_modified_update_is_the_surrogates_gradient_and_small(
    sample: inseparable.Sample, weights: Tensor, delta: float
) -> None:
    ranks = inseparable.rank_denominators(sample, weights)
    leaf = weights.clone().requires_grad_()
    surrogate = inseparable.surrogate_loss(sample, leaf, ranks, delta)
    (expected,) = torch.autograd.grad(surrogate, leaf)
    gradient = inseparable.modified_gradient(sample, weights, delta)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
    norm = inseparable.jacobian_norm([sample])
    assert float(gradient.norm()) ** 2 <= norm**2 / delta * surrogate.item() * (1 + 1e-9)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(samples(), min_size=1, max_size=3),
    vectors(),
    st.lists(vectors(), min_size=2, max_size=4),
    deltas,
    seeds,
)
def test_regret_bounds_hold_for_every_comparator(
    data: list[inseparable.Sample], start: Tensor, others: list[Tensor], delta: float, seed: int
) -> None:
    run = inseparable.run_modified_update(
        data, start, delta=delta, steps=60, generator=generator_of(seed)
    )
    mean_loss = inseparable.mean_so_far(run.ap_losses)
    squared_norm = inseparable.jacobian_norm(data) ** 2
    best = inseparable.best_online_comparator(run, data, delta)
    lowest = inseparable.regret_bounds(run, data, best, delta).online[-1]
    for comparator in [best, torch.zeros_like(start), run.weights[-1], *others]:
        losses = inseparable.comparator_losses(run, data, comparator, delta)
        distance = float(((comparator - start) ** 2).sum())
        # The step of the proof before the AP-loss comes in, which is much tighter.
        surrogate_bound = 2 * losses.cumsum(0) + squared_norm / delta * distance
        assert (run.surrogates.cumsum(0) <= surrogate_bound * (1 + 1e-9)).all()
        bounds = inseparable.regret_bounds(run, data, comparator, delta)
        for bound in (bounds.online, bounds.final1, bounds.final2):
            assert bound is None or (mean_loss <= bound).all()
        assert lowest <= bounds.online[-1] * (1 + 1e-4)
        if len(data) == 1:
            check_offline_inequalities(run, data[0], comparator, delta)


def check_offline_inequalities(
    run: inseparable.OnlineRun, sample: inseparable.Sample, comparator: Tensor, delta: float
) -> None:
    """The two inequalities of A3.3, Eq. 49 and Eq. 51, at every step; and Z >= delta / 4."""
    pairs = sample.pairs
    num_positives = len(pairs)
    worst = inseparable.step_integral(pairs @ comparator, delta).sum(dim=1).max()
    losses = inseparable.comparator_losses(run, [sample], comparator, delta)
    assert (losses <= (math.log(num_positives) + 1) / num_positives * worst + 1e-12).all()
    assert (losses <= (1 - run.ap_losses) * worst + 1e-12).all()
    assert worst >= delta / 4 * (1 - 1e-9)


@pytest.mark.parametrize("num_samples", [1, 3])
def test_bounds_are_informative_in_the_end(num_samples: int) -> None:
    """From a start that ranks upside down: a wrong update stays there, above the bound."""
    generator = generator_of(0)
    data = [inseparable.random_inseparable_sample(generator) for _ in range(num_samples)]
    start = torch.tensor([-0.02, 0, 0, 0], dtype=torch.float64)
    run = inseparable.run_modified_update(data, start, delta=1.0, steps=3000, generator=generator)
    best = inseparable.best_online_comparator(run, data, 1.0)
    bound = inseparable.regret_bounds(run, data, best, 1.0).online
    mean_loss = inseparable.mean_so_far(run.ap_losses)
    assert (mean_loss <= bound).all()
    assert bound[-1] < 0.45 < run.ap_losses[0]
    if num_samples == 1:
        best = inseparable.best_final_comparator(run, data[0], 1.0)
        bounds = inseparable.regret_bounds(run, data, best, 1.0)
        assert bounds.final1 is not None
        assert bounds.final2 is not None
        assert mean_loss[-1] <= bounds.final1[-1] < 1
        assert (mean_loss <= bounds.final2).all()
        assert bounds.final2[-1] >= 2 / 3  # what inseparable data allow


def test_recorded_run_is_that_of_the_pure_functions() -> None:
    generator = generator_of(3)
    data = [inseparable.random_inseparable_sample(generator, shift=1.0) for _ in range(2)]
    start = torch.randn(4, generator=generator, dtype=torch.float64)
    run = inseparable.run_modified_update(data, start, delta=0.7, steps=20, generator=generator)
    rate = 0.7 / inseparable.jacobian_norm(data) ** 2
    for t, weights in enumerate(run.weights):
        sample = data[int(run.sample_index[t])]
        ranks = inseparable.rank_denominators(sample, weights)
        torch.testing.assert_close(run.denominators[t], ranks)
        loss = inseparable.heaviside_ap_loss(sample, weights)
        torch.testing.assert_close(run.ap_losses[t], loss)
        surrogate = inseparable.surrogate_loss(sample, weights, ranks, 0.7)
        torch.testing.assert_close(run.surrogates[t], surrogate)
        if t + 1 < len(run.weights):
            after = weights - rate * inseparable.modified_gradient(sample, weights, 0.7)
            torch.testing.assert_close(run.weights[t + 1], after, rtol=1e-12, atol=1e-14)


def test_delta_changes_nothing_from_weights_zero() -> None:
    sample = inseparable.random_inseparable_sample(generator_of(4), shift=1.0)
    start = torch.zeros(4, dtype=torch.float64)
    first, second = (
        inseparable.run_modified_update(
            [sample], start, delta=delta, steps=100, generator=generator_of(0)
        )
        for delta in (0.5, 4.0)
    )
    torch.testing.assert_close(first.weights * 8, second.weights)
    torch.testing.assert_close(first.ap_losses, second.ap_losses)


def test_separable_data_have_a_bounded_sum_of_ap_losses() -> None:
    """The special case of A3.2: l(u) = 0 leaves the constant 4 R^2 ||u - theta||^2 / delta^2."""
    problem = separable.random_separable_problem(generator_of(5), margin=2.0, num_samples=1)
    data = [inseparable.Sample(problem.features[0], problem.labels[0])]
    start = -0.1 * problem.separator
    run = inseparable.run_modified_update(
        data, start, delta=1.0, steps=2000, generator=generator_of(0)
    )
    comparator = problem.separator / problem.margin  # every x_ij(u) <= -1 = -delta
    assert inseparable.comparator_losses(run, data, comparator, 1.0).abs().max() < 1e-12
    bound = 4 * (inseparable.jacobian_norm(data) * float((comparator - start).norm())) ** 2
    assert run.ap_losses[0] > 0.1
    assert run.ap_losses[-1] == 0
    assert float(run.ap_losses.sum()) <= bound


# The introduction's example, and the whole.


def test_example_has_high_accuracy_and_low_average_precision(tmp_path: Path) -> None:
    example = theory.accuracy_and_ranking(tmp_path)
    targets = theory.example_targets()
    assert example["accuracy"] == 22 / 25 == 0.88
    assert example["average_precision"] == pytest.approx(1 / 3)
    assert example["interpolated_average_precision"] == pytest.approx(1 / 3)
    judge = average_precision_score(targets.flatten(), theory.EXAMPLE_SCORES.flatten())
    assert judge == pytest.approx(example["average_precision"])
    assert len(theory.EXAMPLE_SCORES.unique()) == 25


def test_run_writes_pictures_and_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theory, "MARGINS", (0.5, 1.0))
    for name, small in (
        ("convergence", {"problems_per_margin": 2}),
        ("three_samples", {"steps": 20}),
        ("regret", {"steps": 20}),
    ):
        monkeypatch.setattr(theory, name, partial(getattr(theory, name), **small))

    results = theory.run(tmp_path, seed=1)

    assert json.loads((tmp_path / "theory.json").read_text()) == results
    assert {"introduction", "A1", "A2", "A3", "provenance"} <= results.keys()
    assert results["A1"]["num_solved"] == results["A1"]["num_problems"] == 4
    assert all(row["all_bounds_hold"] for row in results["A3"]["runs"])
    pictures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert pictures == [
        "accuracy_and_ranking.png",
        "convergence.png",
        "regret.png",
        "step_functions.png",
        "three_samples.png",
    ]
