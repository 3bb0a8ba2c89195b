"""AP-loss and its kin in Triton: by hand, against Algorithm 1 in float64, and as public losses.

Without a CUDA device the kernels run interpreted (tests/conftest.py), so that sizes are small and
blocks smaller: several programs, tiles, runs of knots and histograms on few scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from rankdet.losses import BACKGROUND, IGNORED, ap_loss, auc_loss, error_driven

triton = pytest.importorskip("triton")
fused_ranking = pytest.importorskip("rankdet.losses.fused_ranking", exc_type=ImportError)

Ranked = Callable[..., tuple[Tensor, Tensor]]
WithGradient = Callable[..., tuple[Tensor, Tensor]]

WEIGHTS = ("ap", "interpolated_ap", "auc")
HALVES = (torch.float16, torch.bfloat16)


def small_blocks(**sizes: int) -> Any:
    """Few scores and positives for a program at a time; the fields are free to change."""
    small = {"rows": 8, "positives": 4, "others": 8, "searched": 8, "cells": 16, "tile": 16}
    small |= {"programs_per_processor": 2, "bins": 4, "histograms": 2, "weighed": 8}
    small |= {"write_tile": 32, "room": 16} | sizes
    known = {name: size for name, size in small.items() if name in fused_ranking.Blocks._fields}
    return fused_ranking.DEFAULT_BLOCKS._replace(**known)


SMALL = small_blocks()


pytestmark = [
    # The interpreter's numpy speaks of inf - inf in lanes that are masked out.
    pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
]
interpreted = pytest.mark.usefixtures("interpreter_that_can_loop")


@pytest.fixture
def ranked(kernel_device: str, monkeypatch: pytest.MonkeyPatch) -> Ranked:
    """(logits, labels, mask, weights, delta, ...) -> value and gradient, on the CPU."""
    # As few on a GPU too, so that a program there has several tiles.
    monkeypatch.setattr(fused_ranking, "num_processors_of", lambda logits: 2, raising=False)

    def run(
        logits: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        weights: str = "interpolated_ap",
        delta: float = 1.0,
        *,
        capacity: int | None = None,
        scale: float = 1.0,
        blocks: Any = SMALL,
    ) -> tuple[Tensor, Tensor]:
        there = [None if x is None else x.to(kernel_device) for x in (logits, labels, mask)]
        value, state = fused_ranking.rank(*there, weights, delta, capacity, blocks)
        assert value.shape == ()
        assert value.dtype == torch.float32
        factor = torch.tensor(scale, device=kernel_device)
        gradient = fused_ranking.write_update(factor, *there, state, delta, blocks)
        assert gradient.shape == logits.shape
        assert gradient.dtype == logits.dtype
        return value.cpu(), gradient.cpu()

    return run


Exact = Callable[..., tuple[float, Tensor]]


@pytest.fixture
def exact(judge: Callable[..., tuple[Tensor, Tensor]], numpy_step: Any) -> Exact:
    """(logits, labels, mask, weights, delta) -> value and update in float64, pair by pair."""

    def run(
        logits: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        weights: str = "interpolated_ap",
        delta: float = 1.0,
    ) -> tuple[float, Tensor]:
        step = "piecewise" if delta > 0 else "heaviside"
        if weights != "auc":
            interpolate = weights == "interpolated_ap"
            settings = {"step": step, "delta": delta or 1.0, "interpolate": interpolate}
            value, update = judge(logits.double(), labels, mask, **settings)
            return value.item(), update
        is_positive = labels[:, None] == torch.arange(logits.shape[1])
        counted = (labels != IGNORED)[:, None] & (torch.ones_like(logits) > 0)
        counted = counted if mask is None else counted & mask
        positives, negatives = is_positive & counted, ~is_positive & counted
        update = torch.zeros_like(logits, dtype=torch.float64)
        num_pairs = int(positives.sum()) * int(negatives.sum())
        if num_pairs == 0:
            return 0.0, update
        p, n = logits[positives].double().numpy(), logits[negatives].double().numpy()
        pairs = torch.from_numpy(numpy_step(n[None, :] - p[:, None], step, delta)) / num_pairs
        update[positives], update[negatives] = -pairs.sum(1), pairs.sum(0)
        return pairs.sum().item(), update

    return run


@pytest.fixture
def agree(ranked: Ranked, exact: Exact) -> Callable[..., tuple[Tensor, Tensor]]:
    """Fails unless the kernels give what float64 gives for the same arguments; see `ranked`."""

    def check(
        logits: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        weights: str = "interpolated_ap",
        delta: float = 1.0,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        value, gradient = ranked(logits, labels, mask, weights, delta, **more)
        expected, update = exact(logits, labels, mask, weights, delta)
        # Fixed point has 24 bits of a width or more, float32 24 of a height.
        assert value.item() == pytest.approx(expected, rel=1e-6, abs=1e-9)
        error = (gradient.double() - update).abs()
        assert (error <= 1e-6 * update.abs() + 2e-7 * update.abs().max()).all(), error.max()
        assert (gradient[update == 0] == 0).all()
        return value, gradient

    return check


def problem(
    seed: int, num_rows: int, num_classes: int, scale: float = 2.0, positives: float = 0.3
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (R, K), labels of every kind, with NaN in ignored rows; and a mask."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(num_rows, num_classes, generator=generator)
    labels = torch.randint(0, num_classes, (num_rows,), generator=generator)
    draw = torch.rand(num_rows, generator=generator)
    labels[draw > positives] = BACKGROUND
    labels[draw > 0.9] = IGNORED
    labels[0], labels[1], labels[2] = num_classes - 1, BACKGROUND, IGNORED
    mask = torch.rand(logits.shape, generator=generator) < 0.8
    logits[labels == IGNORED] = math.nan
    return logits, labels, mask


# By hand.

P, N, X = 0, BACKGROUND, IGNORED


@interpreted
@pytest.mark.parametrize(
    ("weights", "delta", "scores", "labels", "loss", "gradient"),
    [
        # f(1/2) = 3/4: precision 1 / (1 + 3/4). The third is below the ramp.
        ("ap", 1.0, [0, 0.5, -2], [P, N, N], 3 / 7, [-3 / 7, 3 / 7, 0]),
        # Precision 2/3 at 0 and 1 / (1 + 3/4) at 1, whose error is made 1/3 by interpolation.
        ("ap", 0.5, [0, 1, 1.25], [P, P, N], 8 / 21, [-1 / 6, -3 / 14, 8 / 21]),
        ("interpolated_ap", 0.5, [0, 1, 1.25], [P, P, N], 1 / 3, [-1 / 6, -1 / 6, 1 / 3]),
        # Ties of the step count 1, above and among the positives.
        ("ap", 0.0, [1, 1, 1, 0.5], [P, N, P, N], 1 / 3, [-1 / 6, 1 / 3, -1 / 6, 0]),
        # Ties of the ramp count 1/2, but i itself 1: precision 1.5 / 2.
        ("ap", 1.0, [1, 1, 1], [P, N, P], 1 / 4, [-1 / 8, 1 / 4, -1 / 8]),
        # -0 and 0 are one score.
        ("ap", 0.0, [0.0, -0.0, -0.0], [P, N, P], 1 / 3, [-1 / 6, 1 / 3, -1 / 6]),
        # All negatives count in the mean, except ignored ones.
        ("auc", 1.0, [0, 0.5, -5, 9], [P, N, N, X], 3 / 8, [-3 / 8, 3 / 8, 0, 0]),
        ("auc", 0.0, [0, 0, -5, 1], [P, N, N, P], 1 / 4, [-1 / 4, 1 / 4, 0, 0]),
        # Exactly at the ends of the ramp: p - delta counts 0, p + delta 1.
        ("ap", 1.0, [2, 1, 3], [P, N, N], 1 / 2, [-1 / 2, 0, 1 / 2]),
        ("interpolated_ap", 1.0, [2, 1], [P, N], 0, [0, 0]),
    ],
)
def test_cases_worked_by_hand(
    weights: str,
    delta: float,
    scores: list[float],
    labels: list[int],
    loss: float,
    gradient: list[float],
    ranked: Ranked,
) -> None:
    logits = torch.tensor(scores, dtype=torch.float32).unsqueeze(-1)
    value, result = ranked(logits, torch.tensor(labels), None, weights, delta)
    assert value.item() == pytest.approx(loss, rel=1e-6)
    assert result[:, 0].tolist() == pytest.approx(gradient, rel=1e-6)
    assert (result[torch.tensor(gradient) == 0] == 0).all()


@interpreted
@pytest.mark.parametrize("weights", WEIGHTS)
def test_without_positives_or_negatives_all_is_0(weights: str, ranked: Ranked) -> None:
    for delta in (0.0, 1.0):
        for labels in ([P, P], [N, N], [X, X], [P]):
            logits = torch.tensor([0.5, 0.0])[: len(labels), None]
            value, gradient = ranked(logits, torch.tensor(labels), None, weights, delta)
            assert value == 0
            assert (gradient == 0).all()
    nothing = torch.zeros(2, 2, dtype=torch.bool)
    value, gradient = ranked(torch.ones(2, 2), torch.tensor([0, 1]), nothing, weights)
    assert value == 0
    assert (gradient == 0).all()


# Against the judge.


@interpreted
@pytest.mark.parametrize(
    ("num_classes", "num_rows", "weights", "delta", "is_masked"),
    [
        (1, 70, "ap", 0.0, False),
        (1, 70, "interpolated_ap", 1.0, True),
        (3, 40, "ap", 1.0, True),
        (3, 40, "interpolated_ap", 0.0, True),
        (3, 40, "auc", 1.0, False),
        (4, 30, "ap", 0.1, False),
        (4, 30, "interpolated_ap", 3.0, False),
        (4, 30, "auc", 0.0, True),
        (20, 9, "interpolated_ap", 1.0, False),
        (20, 9, "auc", 1.0, True),
    ],
)
def test_agrees_with_algorithm_1(
    num_classes: int,
    num_rows: int,
    weights: str,
    delta: float,
    is_masked: bool,
    agree: Ranked,
) -> None:
    logits, labels, mask = problem(num_classes, num_rows, num_classes)
    value, gradient = agree(logits, labels, mask if is_masked else None, weights, delta)
    is_positive = labels[:, None] == torch.arange(num_classes)
    assert value > 0
    assert (gradient[is_positive] <= 0).all()
    assert (gradient[~is_positive] >= 0).all()
    assert abs(gradient.double().sum()) <= 1e-6 * value
    assert gradient[is_positive].double().sum().item() == pytest.approx(-value.item(), rel=1e-6)


@pytest.fixture
def crowd() -> Callable[[float, float], tuple[Tensor, Tensor]]:
    """(height, delta) -> logits, labels: nearly all negatives at one height, some at each knot."""

    def make(height: float, delta: float) -> tuple[Tensor, Tensor]:
        logits, labels, _ = problem(1, 70, 4, scale=0.01, positives=0.0)
        logits += height
        labels[[20, 40, 60]] = torch.tensor([0, 1, 3])
        positives = torch.tensor([2.0, -1.5, -1.0, 0.75])
        logits[0, 3], logits[20, 0], logits[40, 1], logits[60, 3] = positives
        logits[61:65, 0], logits[61:65, 1], logits[9, 3] = positives - delta, positives + delta, 6
        return logits, labels

    return make


@interpreted
@pytest.mark.parametrize(
    ("delta", "heights"),
    # Knots: -1.5, -1, 0.75, 2; and -2.5, -2, -0.5, -0.25, 0, 1, 1.75, 3.
    [(0.0, [0.0, 1.0, 4.0]), (1.0, [0.5, 2.5, 4.0])],
)
def test_scores_as_at_initialisation_lie_in_one_bin(
    delta: float,
    heights: list[float],
    crowd: Callable[[float, float], tuple[Tensor, Tensor]],
    agree: Ranked,
) -> None:
    """A program then adds up by itself: between knots, below the last one, and above it."""
    for height in heights:
        agree(*crowd(height, delta), None, "interpolated_ap", delta)


@interpreted
def test_tied_scores_and_scores_at_the_ends_of_ramps(agree: Ranked) -> None:
    logits, labels, mask = problem(5, 60, 3)
    logits = (logits * 2).round() / 2 * torch.where(mask, 1.0, -1.0)  # also -0.0
    for delta in (0.0, 0.5, 1.0):  # knots fall on scores, and on each other
        for weights in ("ap", "interpolated_ap"):
            agree(logits, labels, None, weights, delta)
    # Knots that float32 cannot hold: scores as near to them as can be, on either side.
    logits, labels, delta = torch.tensor([[0.3], [1.7], [0.0], [0.0], [0.0], [0.0]]), [P, P], 0.1
    edges = torch.tensor([0.3, 1.7]).double() + torch.tensor([-0.1, 0.1]).double()
    logits[2:, 0] = torch.cat([edges.float(), edges.float().nextafter(torch.tensor(-9.0))])
    agree(logits, torch.tensor([*labels, N, N, N, N]), None, "ap", delta)


@interpreted
def test_scores_far_from_0_and_far_from_each_other(agree: Ranked) -> None:
    logits, labels, _ = problem(6, 40, 3)
    agree(logits + 1e4, labels)
    agree(logits + 1e4, labels, None, "ap", 0.3)  # its knots are rounded
    agree(logits, labels, None, "ap", 1e-6)
    agree(logits, labels, None, "ap", 1e3)
    # All other knots lie in one cell of the grid.
    for outlier, delta in ((1e6, 0.0), (1e6, 1.0), (-1e6, 1.0), (3e38, 1.0)):
        logits[0, labels[0]] = outlier
        agree(logits, labels, None, "ap", delta)
    logits[0, labels[0]], logits[1, 0] = 0.5, 3e38  # a negative far from all ramps
    agree(logits, labels, None, "ap", 0.3)
    # A grid whose cells are too small for float32, and a knot that is too large.
    logits = torch.tensor([[3e-45], [1e-45], [0.0], [4e-45], [0.0]])
    labels = torch.tensor([P, P, P, N, N])
    agree(logits, labels, None, "ap", 0.0)
    logits = torch.tensor([[3.4028235e38], [1.0], [-3e38], [2e29], [3.4028235e38]])
    agree(logits, labels, None, "ap", 1e30)


@interpreted
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_half_precision_is_read_as_it_is(
    dtype: torch.dtype,
    delta: float,
    crowd: Callable[[float, float], tuple[Tensor, Tensor]],
    ranked: Ranked,
    exact: Exact,
) -> None:
    logits, labels, mask = problem(7, 40, 3)
    logits[3:6] = torch.tensor([0.0, -0.0, 2.0])
    for (scores, *rest), weights, room in (
        ((logits, labels, mask), "interpolated_ap", 16),
        ((logits, labels, None), "auc", 3 << 16),  # several histograms
        ((*crowd(0.5, delta), None), "ap", 3 << 16),
    ):
        settings = {"scale": 64.0, "blocks": small_blocks(room=room, searched=1 << 13)}
        value, gradient = ranked(scores.to(dtype), *rest, weights, delta, **settings)
        expected, update = exact(scores.to(dtype), *rest, weights, delta)
        assert value.item() == pytest.approx(expected, rel=1e-6)
        # The interpreter cuts bfloat16 off, and does not round it.
        tolerance = 2**-10 if dtype == torch.float16 else 2**-7
        error = (gradient.double() / 64 - update).abs()
        assert (error <= tolerance * update.abs() + 1e-9).all()


@interpreted
def test_small_updates_in_half_precision_are_scaled_before_they_are_rounded(
    ranked: Ranked,
) -> None:
    logits, labels = torch.tensor([[0.0], [-0.9995], [0.5]]).half(), torch.tensor([P, N, N])
    blocks = small_blocks(searched=1 << 13)
    value, gradient = ranked(logits, labels, scale=2.0**16, blocks=blocks)
    assert value.item() > 0.4
    assert gradient[1].item() > 0
    _, small = ranked(logits, labels, scale=2.0**-16, blocks=blocks)
    assert small[1].item() == 0


# What must not matter.


@interpreted
def test_the_incoming_gradient_is_a_factor(ranked: Ranked) -> None:
    logits, labels, mask = problem(8, 30, 3)
    value, gradient = ranked(logits, labels, mask)
    again, scaled = ranked(logits, labels, mask, scale=-4.0)
    assert torch.equal(value, again)
    assert torch.equal(scaled, gradient * -4)


@interpreted
def test_label_dtypes_and_the_order_of_rows_do_not_matter(ranked: Ranked) -> None:
    logits, labels, mask = problem(9, 40, 3)
    value, gradient = ranked(logits, labels, mask)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.int8, torch.int32, torch.int64):
        moved = (logits[order], labels[order].to(dtype), mask[order])
        again, moved_gradient = ranked(*moved)
        assert torch.equal(value, again)
        assert torch.equal(moved_gradient, gradient[order])


@interpreted
def test_block_sizes_change_no_more_than_the_last_digit(agree: Ranked) -> None:
    logits, labels, mask = problem(10, 40, 3)
    for blocks in (
        fused_ranking.DEFAULT_BLOCKS,
        small_blocks(searched=4, weighed=4, cells=4, positives=2, others=2, bins=2, histograms=1),
        small_blocks(programs_per_processor=1, tile=8, write_tile=8, rows=4, weighed=16),
    ):
        agree(logits, labels, mask, "interpolated_ap", 1.0, blocks=blocks)


@interpreted
def test_more_positives_than_there_is_room_for_are_counted_and_looked_up(
    ranked: Ranked, agree: Ranked
) -> None:
    logits, labels, mask = problem(11, 40, 3, positives=0.6)
    logits[3:20] = logits[20:37]  # ties
    for weights, delta in (("interpolated_ap", 1.0), ("ap", 0.0)):
        expected = agree(logits, labels, mask, weights, delta)
        for capacity in (4, 1):
            actual = ranked(logits, labels, mask, weights, delta, capacity=capacity)
            assert all(map(torch.equal, actual, expected))


@interpreted
def test_where_nothing_may_wait_too_many_positives_are_nan(
    ranked: Ranked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_ranking, "_is_capturing", lambda logits: True)
    logits, labels, _ = problem(12, 12, 1)
    labels[:5] = torch.tensor([P, N, P, X, P])
    labels[5:] = N
    logits[5:] = 1.0
    logits[2], logits[3] = 0.5, math.nan
    value, gradient = ranked(logits, labels, capacity=3)
    assert value.isfinite()
    assert gradient[labels != IGNORED].isfinite().all()
    value, gradient = ranked(logits, labels, capacity=2)
    assert value.isnan()
    assert torch.equal(gradient.isnan()[:, 0], labels != IGNORED)
    assert gradient[3] == 0


@interpreted
def test_many_programs_share_few_histograms(agree: Ranked) -> None:
    logits, labels, _ = problem(13, 1500, 16, positives=0.005)
    blocks = small_blocks(tile=512, write_tile=4096, rows=512)
    agree(logits, labels, None, "interpolated_ap", 1.0, capacity=1500, blocks=blocks)


@interpreted
@pytest.mark.skipif(torch.cuda.is_available(), reason="test_cuda.py has it, with many scores")
@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_an_entry_that_is_too_short_counts_in_a_second_number(
    delta: float,
    crowd: Callable[[float, float], tuple[Tensor, Tensor]],
    agree: Ranked,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shifts = []
    write_update, kernels = fused_ranking.write_update, fused_ranking.ap_triton_knots

    def spy(
        scale: Tensor, logits: Tensor, labels: Tensor, mask: Any, state: Any, *more: Any
    ) -> Any:
        shifts.append(state.header[kernels.COUNT_SHIFT.value].item())
        return write_update(scale, logits, labels, mask, state, *more)

    monkeypatch.setattr(fused_ranking, "write_update", spy)
    scores = crowd(1.0, delta)
    agree(*scores, None, "auc", delta)
    if delta > 0:  # as if a program had 2**20 scores
        agree(*scores, None, "auc", delta, blocks=small_blocks(tile=1 << 20))
    # Or an offset so many bits; and then several tiles to a program.
    monkeypatch.setattr(kernels, "LEAST_OFFSET_BITS", type(kernels.LEAST_OFFSET_BITS)(64))
    agree(*scores, None, "auc", delta)
    assert shifts[0] > 0
    assert shifts[1:] == [0] * (2 if delta > 0 else 1)


# What is wrong.


@interpreted
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 5, -3, 1 << 33])
def test_what_is_wrong_makes_all_that_counts_nan(bad: float, ranked: Ranked) -> None:
    logits, labels, mask = problem(14, 20, 5)
    mask[1, 1], mask[0, 4] = True, True
    counted = mask & (labels != IGNORED)[:, None]
    for place, delta in (((1, 1), 0.0), ((0, 4), 1.0)):  # a negative; a positive
        scores, classes = logits.clone(), labels.clone()
        if isinstance(bad, int):
            classes[place[0]] = bad
        else:
            scores[place] = bad
        value, gradient = ranked(scores, classes, mask, "ap", delta)
        assert value.isnan()
        assert torch.equal(gradient.isnan(), counted)
        assert (gradient[~counted] == 0).all()


@interpreted
def test_scores_that_are_masked_or_ignored_are_not_looked_at(ranked: Ranked) -> None:
    logits, labels, mask = problem(14, 20, 5)
    mask[0, 4] = False  # a positive
    expected = ranked(logits, labels, mask)
    logits[~mask] = math.nan
    assert expected[0].isfinite()
    assert all(map(torch.equal, ranked(logits, labels, mask), expected))


# As public losses.


@pytest.fixture
def fused_everywhere(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels take CPU tensors too, in small blocks. Lists the weights of their rankings."""
    rankings: list[str] = []
    rank, write_update = fused_ranking.rank, fused_ranking.write_update

    def spy(logits: Tensor, labels: Tensor, mask: Any, weights: str, delta: float) -> Any:
        rankings.append(weights)
        return rank(logits, labels, mask, weights, delta, blocks=SMALL)

    def write(*arguments: Any) -> Tensor:
        gradient: Tensor = write_update(*arguments, SMALL)
        return gradient

    monkeypatch.setattr(error_driven, "can_read", lambda logits: logits.dtype != torch.float64)
    monkeypatch.setattr(fused_ranking, "rank", spy)
    monkeypatch.setattr(fused_ranking, "write_update", write)
    return rankings


@interpreted
@pytest.mark.parametrize(
    ("loss", "settings", "num_rankings"),
    [
        (ap_loss, {"delta": 0.5}, 1),
        (ap_loss, {"step": "heaviside", "interpolate": False, "scope": "image"}, 3),
        (auc_loss, {"delta": 2.0, "scope": "image"}, 3),
        (ap_loss, {"scope": 2}, 2),
        (ap_loss, {"step": "sigmoid"}, 0),
        (ap_loss, {"delta": 1e-30}, 0),
        (ap_loss, {"delta": 1e30}, 0),
    ],
)
def test_the_losses_take_the_kernels(
    loss: Callable[..., Tensor],
    settings: dict[str, Any],
    num_rankings: int,
    kernel_device: str,
    fused_everywhere: list[str],
    with_gradient: WithGradient,
) -> None:
    logits, labels, mask = problem(15, 45, 3)
    logits, labels, mask = (x.unflatten(0, (3, 15)) for x in (logits, labels, mask))
    labels[1] = BACKGROUND  # an image without positives; its scores that are NaN are masked
    mask[1] &= logits[1].isfinite()
    there = [x.to(kernel_device) for x in (logits, labels, mask)]
    logits, labels, mask = there
    settings |= {"mask": mask, "grad_output": 3.0}
    expected, expected_gradient = with_gradient(loss, logits.double(), labels, **settings)
    assert fused_everywhere == []  # float64 is plain
    value, gradient = with_gradient(loss, logits, labels, **settings)
    assert len(fused_everywhere) == num_rankings
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert (gradient - expected_gradient).norm() <= 1e-5 * expected_gradient.norm()
    names = {"auc"} if loss is auc_loss else {"ap", "interpolated_ap"}
    assert set(fused_everywhere) <= names
    if num_rankings > 1:  # rows that are not contiguous, labels that are not signed
        columns = torch.stack([logits, logits], -1)[..., 0]
        names = labels.clamp(min=0).to(torch.uint8)
        settings["mask"] = mask & (labels >= 0)[..., None]
        expected, expected_gradient = with_gradient(loss, columns.double(), names, **settings)
        value, gradient = with_gradient(loss, columns, names, **settings)
        assert value.item() == pytest.approx(expected.item(), rel=1e-5)
        assert (gradient - expected_gradient).norm() <= 1e-5 * expected_gradient.norm()


@interpreted
def test_check_finite_raises_and_second_derivatives_are_refused(
    kernel_device: str, fused_everywhere: list[str]
) -> None:
    logits, labels, _ = (x.to(kernel_device) for x in problem(16, 12, 2))
    leaf = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(ap_loss(leaf, labels), leaf, create_graph=True)
    with pytest.raises(RuntimeError):
        gradient.sum().backward()
    assert len(fused_everywhere) == 1
    logits[1, 1] = math.inf
    with pytest.raises(FloatingPointError, match=r"1 of \d+ scores are not finite"):
        ap_loss(logits, labels, check_finite=True)
    assert ap_loss(logits, labels, check_finite=False).isnan()


@interpreted
def test_negatives_just_above_a_knot_keep_their_digits(ranked: Ranked, exact: Exact) -> None:
    scores = torch.linspace(0, 1e-3, 40).unsqueeze(-1)  # up to 1/2000 of the step's width
    logits = torch.cat([torch.ones(1, 1), scores])
    labels = torch.full((41,), BACKGROUND)
    labels[0] = 0
    value, gradient = ranked(logits, labels, None, "interpolated_ap", 1.0)
    expected, update = exact(logits, labels, None, "interpolated_ap", 1.0)
    assert value.item() == pytest.approx(expected, rel=1e-6)
    assert (gradient - update).norm() <= 1e-6 * update.norm()


@interpreted
def test_a_compiled_loss_takes_any_number_of_rows(
    kernel_device: str, fused_everywhere: list[str], with_gradient: WithGradient
) -> None:
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(ap_loss, fullgraph=True, dynamic=True, backend=counter)
    num_compiled = []
    for num_rows in (20, 25, 31):
        logits, labels, _ = (x.to(kernel_device) for x in problem(num_rows, num_rows, 2))
        expected = with_gradient(ap_loss, logits, labels)
        assert all(map(torch.equal, with_gradient(compiled, logits, labels), expected))
        num_compiled.append(counter.frame_count)
    assert num_compiled[2] == num_compiled[0]


@interpreted
def test_torch_compile_takes_it_whole(
    kernel_device: str,
    fused_everywhere: list[str],
    with_gradient: WithGradient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits, labels, mask = (x.to(kernel_device) for x in problem(17, 20, 2))
    expected = with_gradient(ap_loss, logits, labels, mask=mask)
    for extra in (30 << 20, 0):  # room for all rows, or for fewer than there are
        monkeypatch.setattr(fused_ranking, "_EXTRA_BYTES", extra, raising=False)
        monkeypatch.setattr(fused_ranking, "CAPACITY", 3)
        torch.compiler.reset()
        compiled = torch.compile(ap_loss, fullgraph=True, backend="aot_eager")
        actual = with_gradient(compiled, logits, labels, mask=mask)
        assert all(map(torch.equal, actual, expected))
    assert len(fused_everywhere) == 3
