"""The fast AP-loss against Algorithm 1 in float64: more than 2,000 random rankings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from rankdet.losses import BACKGROUND, IGNORED, ap_loss, kernels_cpu, sigmoid
from rankdet.losses.lookup import BinLookup

STEPS = ["piecewise", "heaviside", "sigmoid"]
DELTAS = [1e-6, 1e-3, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0]
SIGMOID_DELTAS = [0.25, 0.5, 1.0, 2.0]
OFFSETS = [0.0, -4.6, 100.0, -1000.0]
# Pairs further apart than 40 k are left out of the sigmoid sums: each is less than 5e-18.
LEFT_OUT = 1e-15

WithGradient = Callable[..., tuple[Tensor, Tensor]]
Judge = Callable[..., tuple[Tensor, Tensor]]


class Case(NamedTuple):
    logits: Tensor
    labels: Tensor
    settings: dict[str, Any]


def random_case(generator: torch.Generator, step: str, dtype: torch.dtype) -> Case:
    """Up to 60 anchors of up to 5 classes; every kind of label, mask, tie, scale, and setting."""

    def choose(options: Any) -> Any:
        return options[int(torch.randint(len(options), (), generator=generator))]

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    shape = choose(range(1, 61)), choose(range(1, 6))
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    if choose([True, False, False]):
        scores = (4 * scores).round() / 4  # ties
    scores = scores * choose([1e-4, 1e-2, 0.1, 1.0, 4.0, 30.0]) + choose(OFFSETS)
    labels = torch.randint(shape[1], (shape[0],), generator=generator)
    share_of_objects = choose([0.0, 0.05, 0.3, 1.0])
    labels[uniform(shape[0]) >= share_of_objects] = BACKGROUND
    labels[uniform(shape[0]) < choose([0.0, 0.2])] = IGNORED
    settings = {
        "step": step,
        "delta": choose(SIGMOID_DELTAS if step == "sigmoid" else DELTAS),
        "interpolate": choose([True, False]),
        "mask": uniform(*shape) < 0.8 if choose([True, False]) else None,
    }
    return Case(scores.to(dtype), labels, settings)


def assert_agrees(
    case: Case, tolerance: float, with_gradient: WithGradient, judge: Judge
) -> tuple[Tensor, Tensor]:
    """Value and gradient, by norm and one by one, within the relative tolerance of the judge's."""
    value, gradient = with_gradient(ap_loss, case.logits, case.labels, **case.settings)
    judged, update = judge(case.logits, case.labels, **case.settings)
    assert abs(value.double() - judged) <= tolerance * judged + LEFT_OUT, case
    difference = (gradient.double() - update).abs()
    assert difference.norm() <= tolerance * update.norm() + LEFT_OUT, case
    floor = 1e-3 * tolerance * update.abs().max() + LEFT_OUT
    assert (difference <= tolerance * update.abs() + floor).all(), case
    return judged, update


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("step", STEPS)
def test_float32_agrees_to_1e_6(
    step: str, seed: int, with_gradient: WithGradient, judge: Judge
) -> None:
    # 3 steps x 10 seeds x 70: 2,100 cases with a loss above 0, and those without beside them
    generator = torch.Generator().manual_seed(seed)
    num_ranked = 0
    while num_ranked < 70:
        case = random_case(generator, step, torch.float32)
        judged, _ = assert_agrees(case, 1e-6, with_gradient, judge)
        num_ranked += int(judged > 0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("step", STEPS)
def test_float64_agrees_to_1e_9_or_what_a_small_delta_on_large_scores_leaves(
    step: str, seed: int, with_gradient: WithGradient, judge: Judge
) -> None:
    generator = torch.Generator().manual_seed(100 + seed)
    for _ in range(100):
        case = random_case(generator, step, torch.float64)
        # Corners at score +- delta are rounded to 1e-16 of the score.
        ratio = float(case.logits.abs().max()) / case.settings["delta"]
        tolerance = max(1e-9, 1e-15 * ratio) if step == "piecewise" else 1e-12
        assert_agrees(case, tolerance, with_gradient, judge)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("step", STEPS)
def test_half_precision_gives_the_update_of_the_same_numbers_rounded(
    step: str, dtype: torch.dtype, with_gradient: WithGradient, judge: Judge
) -> None:
    generator = torch.Generator().manual_seed(200)
    for _ in range(100):
        case = random_case(generator, step, dtype)
        value, gradient = with_gradient(ap_loss, case.logits, case.labels, **case.settings)
        judged, update = judge(case.logits, case.labels, **case.settings)
        assert (value.dtype, gradient.dtype) == (torch.float32, dtype)
        assert abs(value.double() - judged) <= 1e-6 * judged + LEFT_OUT
        # Half a unit in the last place, or of the smallest number, is what rounding may do.
        info = torch.finfo(dtype)
        half_unit = torch.maximum(update.abs() * info.eps, torch.tensor(info.tiny * info.eps)) / 2
        slack = 1e-6 * update.abs() + LEFT_OUT
        assert ((gradient.double() - update).abs() <= half_unit + slack).all(), case


def record_paths(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how the CPU kernels find bins from now on."""
    paths: Counter[str] = Counter()
    find, only_bin = BinLookup.find, BinLookup.only_bin

    def recorded_find(self: BinLookup, scores: Tensor) -> tuple[Tensor | None, Tensor]:
        above, bins = find(self, scores)
        if len(self.knots) == 0:
            paths["no knots"] += 1
        elif above is not None:
            paths["few above"] += 1
        else:
            paths["grid" if self.scale > 0 else "search only"] += 1
        return above, bins

    def recorded_only_bin(self: BinLookup, lowest: float, highest: float) -> int | None:
        found = only_bin(self, lowest, highest)
        if found is not None:
            paths["only bin 0" if found == 0 else "only bin above"] += 1
        return found

    monkeypatch.setattr(BinLookup, "find", recorded_find)
    monkeypatch.setattr(BinLookup, "only_bin", recorded_only_bin)
    return paths


@pytest.mark.parametrize("step", STEPS)
def test_many_small_blocks_agree_on_every_path(
    step: str, monkeypatch: pytest.MonkeyPatch, with_gradient: WithGradient, judge: Judge
) -> None:
    monkeypatch.setattr(kernels_cpu, "_BLOCK", 16)
    for name, size in {"_BLOCK": 32, "_TILE": (3, 4)}.items():
        monkeypatch.setattr(sigmoid, name, size)
    paths = record_paths(monkeypatch)
    generator = torch.Generator().manual_seed(300)
    cases = [random_case(generator, step, torch.float32) for _ in range(100)]
    lowest_last = torch.tensor([BACKGROUND] * 40 + [0])
    cases.append(Case(40 - torch.arange(41.0)[:, None], lowest_last, {"step": step, "delta": 0.5}))
    for i, case in enumerate(cases):
        if i % 2:  # what is ignored is never looked at
            case.logits[case.labels == IGNORED] = math.nan
        value, update = judge(case.logits.nan_to_num(), case.labels, **case.settings)
        result, gradient = with_gradient(ap_loss, case.logits, case.labels, **case.settings)
        assert abs(result.double() - value) <= 1e-6 * value + LEFT_OUT
        assert (gradient.double() - update).norm() <= 1e-6 * update.norm() + LEFT_OUT
    expected = {"no knots", "few above", "grid", "only bin 0", "only bin above"}
    if step == "heaviside":
        expected.add("search only")  # a single positive, or all at one score: one knot
    assert set(paths) == (set() if step == "sigmoid" else expected)


# Scores as at initialisation, half-trained and trained: (mean, deviation) of positives, negatives.
REGIMES = {
    "initial": ((-4.6, 0.1), (-4.6, 0.1)),
    "half-trained": ((-1.5, 1.5), (-6.0, 1.0)),
    "trained": ((1.0, 1.0), (-6.0, 1.0)),
}


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(
    ("step", "delta"),
    [("piecewise", 1.0), ("piecewise", 0.01), ("heaviside", 1.0), ("sigmoid", 0.5)],
)
def test_problems_of_several_full_blocks_agree(
    regime: str, step: str, delta: float, with_gradient: WithGradient, judge: Judge
) -> None:
    generator = torch.Generator().manual_seed(400)
    num_classes = 7  # does not divide the block
    num_rows = 2 * kernels_cpu._BLOCK // num_classes + 1000
    (mean_P, deviation_P), (mean_N, deviation_N) = REGIMES[regime]
    logits = mean_N + deviation_N * torch.randn(num_rows, num_classes, generator=generator)
    labels = torch.full((num_rows,), BACKGROUND)
    labels[torch.randperm(num_rows, generator=generator)[:200]] = IGNORED
    anchors = torch.randperm(num_rows, generator=generator)[:40]
    labels[anchors] = torch.randint(num_classes, (40,), generator=generator)
    logits[anchors, labels[anchors]] = mean_P + deviation_P * torch.randn(40, generator=generator)
    logits[anchors[0], labels[anchors[0]]] = -4.6  # one object is always missed
    case = Case(logits, labels, {"step": step, "delta": delta})
    judged, _ = assert_agrees(case, 1e-6, with_gradient, judge)
    assert judged > 0


def test_wide_gaps_between_the_steps_of_the_positives_leave_no_trace(
    with_gradient: WithGradient, judge: Judge
) -> None:
    generator = torch.Generator().manual_seed(700)

    def uniform(size: int) -> Tensor:
        return torch.rand(size, 1, generator=generator, dtype=torch.float64)

    # Steps that overlap, and negatives 1e12 widths above them, where a slope of 1e-16 would show.
    far = torch.full((40, 1), 1e6, dtype=torch.float64)
    logits = torch.cat([1e-6 * uniform(40), far])
    labels = torch.tensor([0, BACKGROUND] * 20 + [BACKGROUND] * 40)
    assert_agrees(Case(logits, labels, {"delta": 1e-6}), 1e-6, with_gradient, judge)
    # Many negatives far from every positive, and a pair beyond them, nearer than delta.
    pair = 1.1e5 + torch.tensor([[0.0], [3.7e-4]], dtype=torch.float64)
    logits = torch.cat([uniform(40), 5e4 * (1 + uniform(10_000)), pair])
    labels = torch.tensor([0, BACKGROUND] * 20 + [BACKGROUND] * 10_000 + [0, BACKGROUND])
    settings = {"delta": 1e-3, "interpolate": False}
    assert_agrees(Case(logits, labels, settings), 1e-6, with_gradient, judge)


def test_many_positives_agree(with_gradient: WithGradient, judge: Judge) -> None:
    generator = torch.Generator().manual_seed(500)
    for step, delta in [("piecewise", 1e-6), ("piecewise", 1.0), ("heaviside", 1.0)]:
        logits = (50 * torch.randn(3000, 2, generator=generator)).round() / 10  # many ties
        labels = torch.randint(-1, 2, (3000,), generator=generator)
        case = Case(logits, labels, {"step": step, "delta": delta})
        judged, _ = assert_agrees(case, 1e-6, with_gradient, judge)
        assert judged > 0.1


@pytest.mark.parametrize("spread", [1.0, 10.0, 300.0])  # beyond 600 k an exponential overflows
def test_far_more_positives_than_a_tile_of_sigmoids_holds(
    spread: float, monkeypatch: pytest.MonkeyPatch, with_gradient: WithGradient, judge: Judge
) -> None:
    monkeypatch.setattr(sigmoid, "_TILE", (8, 8))
    generator = torch.Generator().manual_seed(600)
    logits = spread * torch.randn(300, 2, generator=generator)
    labels = torch.randint(-2, 2, (300,), generator=generator)
    case = Case(logits, labels, {"step": "sigmoid", "delta": 0.25})
    assert_agrees(case, 1e-6, with_gradient, judge)
