"""The bench's checks: they pass what is right and notice each thing that can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rankdet import losses
from rankdet.bench import correctness, gpu, pairs
from rankdet.bench.correctness import Case, check, check_many, judged, relative_error
from rankdet.bench.problems import REGIMES, make_problem
from rankdet.losses import IGNORED, ap_loss_reference
from rankdet.losses.labels import counted_entries, positive_entries

CASE = Case("ap_loss", "piecewise", "float32", "half-trained", is_masked=True)
SIZES = (400, 5, 3, "cpu")


def test_every_combination_of_ap_loss_is_checked_and_the_other_losses_too() -> None:
    cases = correctness.cases()
    assert len(set(cases)) == len(cases) == 3 * 3 * 3 * 3 + 3 * 3
    of_ap = [case for case in cases if case.loss == "ap_loss"]
    assert len(of_ap) == 3 * 3 * 3 * 2
    assert {case.dtype for case in of_ap} == {"float32", "bfloat16", "float16"}
    assert {case.settings["delta"] for case in of_ap if case.step == "sigmoid"} == {0.5}
    assert {case.regime for case in cases if case.loss == "auc_loss"} == set(REGIMES)
    assert {case.step for case in cases if case.loss == "focal_loss"} == {""}


@pytest.mark.parametrize("case", correctness.cases(), ids=str)
def test_the_losses_pass(case: Case) -> None:
    result = check(case, *SIZES)
    assert result["problems"] == []
    assert result["is_repeatable"]
    assert result["errors"].keys() == {"value", "gradient", "negatives", "ignored"}


def test_the_inputs_have_ignored_anchors_a_mask_and_positives_of_their_dtype() -> None:
    logits, labels, mask = correctness._inputs(replace(CASE, dtype="float16"), *SIZES)
    assert logits.dtype == torch.float16
    assert (labels == IGNORED).sum() == 20
    assert (labels >= 0).sum() >= 3
    assert mask is not None
    assert 0.05 < (~mask).double().mean().item() < 0.15
    assert correctness._inputs(replace(CASE, is_masked=False), *SIZES)[2] is None


# What is wrong must be noticed


def spoilt(loss: Callable[..., Tensor], spoil: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """The loss with another gradient."""

    class Spoil(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, logits: Tensor) -> Tensor:
            return logits.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return spoil(gradient.clone())

    return lambda logits, *inputs, **settings: loss(Spoil.apply(logits), *inputs, **settings)


def unwritten(gradient: Tensor) -> Tensor:
    gradient[-1, -1] = float("nan")
    return gradient


def not_scaled(gradient: Tensor) -> Tensor:
    return gradient / correctness.SCALE


def negatives_off(gradient: Tensor) -> Tensor:
    return torch.where(gradient > 0, gradient * (1 + 1e-5), gradient)


def positives_off(gradient: Tensor) -> Tensor:
    return torch.where(gradient < 0, gradient * (1 + 1e-5), gradient)


def ignored_written(gradient: Tensor) -> Tensor:
    gradient[7] = 1e-12
    return gradient


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (unwritten, "the error of the gradient is nan"),
        (not_scaled, "the error of the gradient is 1,"),
        (negatives_off, "the error of the negatives' gradient is 1e-05"),
        (positives_off, "the error of the gradient is 1e-05"),
        (ignored_written, "the error of the gradient of what is ignored is 1e-12"),
    ],
)
def test_a_wrong_gradient_is_noticed(
    spoil: Callable[[Tensor], Tensor], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "ap_loss", spoilt(losses.ap_loss, spoil))
    found = check(CASE, *SIZES)["problems"]
    assert any(problem in line for line in found), found


class RoundedTwice(torch.autograd.Function):
    """A loss whose update is kept in half precision, and multiplied there."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, value: Tensor, update: Tensor) -> Tensor:
        ctx.save_for_backward(update)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (update,) = ctx.saved_tensors
        return gradient.to(update.dtype) * update, None, None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_gradient_that_is_rounded_twice_is_noticed(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ap_loss = losses.ap_loss

    def rounding(logits: Tensor, labels: Tensor, **settings: object) -> Tensor:
        leaf = logits.detach().requires_grad_()
        value = ap_loss(leaf, labels, **settings)
        return RoundedTwice.apply(logits, value.detach(), torch.autograd.grad(value, leaf)[0])

    monkeypatch.setattr(losses, "ap_loss", rounding)
    found = check(replace(CASE, dtype=dtype), *SIZES)["problems"]
    assert any("gradient is" in line for line in found), found


@pytest.mark.parametrize("name", ["ap_loss", "auc_loss", "focal_loss"])
def test_a_wrong_value_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = getattr(losses, name)
    monkeypatch.setattr(
        losses, name, lambda *inputs, **settings: loss(*inputs, **settings).double() + 1e-4
    )
    case = replace(CASE, loss=name, step="" if name == "focal_loss" else "heaviside")
    (problem,) = check(case, *SIZES)["problems"]
    assert "the error of the value" in problem


def test_runs_that_differ_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    ap_loss = losses.ap_loss
    calls: list[int] = []

    def other_every_time(*inputs: Tensor, **settings: object) -> Tensor:
        calls.append(1)
        return ap_loss(*inputs, **settings) * (1 + 2e-7 * len(calls))

    monkeypatch.setattr(losses, "ap_loss", other_every_time)
    (problem,) = check(CASE, *SIZES)["problems"]
    assert problem == f"{CASE}: two runs on the same inputs differ"
    assert len(calls) == 2


def test_gradients_that_differ_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def other_every_time(gradient: Tensor) -> Tensor:
        calls.append(1)
        return gradient * (1 + 2e-7 * len(calls))

    monkeypatch.setattr(losses, "ap_loss", spoilt(losses.ap_loss, other_every_time))
    (problem,) = check(CASE, *SIZES)["problems"]
    assert problem == f"{CASE}: two runs on the same inputs differ"


def test_memory_is_poisoned_before_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    monkeypatch.setattr(gpu, "poison", lambda *arguments: calls.append(arguments))
    check(CASE, *SIZES)
    assert calls == 2 * [("cpu", 4 * 400 * 5 * 4)]


def test_a_problem_names_its_case_error_and_bar() -> None:
    errors = {"value": 1e-7, "gradient": float("nan"), "negatives": 0.0, "ignored": 0.0}
    assert judged(CASE, errors)["problems"] == [
        "ap_loss, piecewise step, float32, half-trained scores, masked: the error of the gradient "
        "is nan, more than 1e-06"
    ]
    assert judged(CASE, {"value": 1e-6})["problems"] == []


def test_bars_are_wider_for_sigmoids_and_for_half_precision() -> None:
    assert correctness.bars("float32", "sigmoid")["gradient"] == 1e-5
    assert correctness.bars("bfloat16", "heaviside")["gradient"] == pytest.approx(2**-10, rel=0.01)
    assert correctness.bars("float16", "piecewise")["negatives"] == pytest.approx(2**-13, rel=0.1)
    assert correctness.bars("float16", "piecewise")["value"] == 1e-6


def test_nothing_expected_and_something_got_is_an_infinite_error() -> None:
    nothing = torch.zeros(3)
    assert relative_error(nothing, nothing) == 0
    assert relative_error(torch.tensor([0, 0, 1e-9]), nothing) == float("inf")


# Many scores, and the exact loss in pieces


@pytest.mark.parametrize("piece", [30, 1 << 24])
def test_many_scores_pass(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_PIECE", piece)
    result = check_many(1000, 8, 0, "cpu")
    assert result["problems"] == []
    assert result["case"] == "ap_loss, piecewise step, bfloat16, 8,000 scores"


def test_a_row_at_the_end_that_is_not_written_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget_last(gradient: Tensor) -> Tensor:
        gradient[-1] = 0
        return gradient

    monkeypatch.setattr(losses, "ap_loss", spoilt(losses.ap_loss, forget_last))
    assert "the error of the gradient" in check_many(1000, 8, 0, "cpu")["problems"][0]


def test_a_wrong_update_of_the_negatives_among_many_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def double(gradient: Tensor) -> Tensor:
        return torch.where(gradient > 0, gradient * 2, gradient)

    monkeypatch.setattr(losses, "ap_loss", spoilt(losses.ap_loss, double))
    assert check_many(1000, 8, 0, "cpu")["errors"]["negatives"] == pytest.approx(1)


def test_more_than_32_bits_are_checked_by_the_full_bench_alone() -> None:
    full, quick = (list(correctness.all_checks(quick, 0, "cpu")) for quick in (False, True))
    assert len(full) == len(quick) + 1 == len(correctness.cases()) + 1
    num_anchors, num_classes, *_ = full[-1].args
    last_but_two = int(0.995 * (num_anchors - 1))
    assert full[-1].func is check_many
    assert last_but_two * num_classes > 2**31


@pytest.mark.parametrize("step", ["piecewise", "heaviside", "sigmoid"])
@pytest.mark.parametrize("regime", REGIMES)
def test_the_ranking_pair_by_pair_is_that_of_algorithm_1(
    step: str, regime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "_PIECE", 64)
    problem = make_problem(regime, 10, 80, 4, seed=1)
    labels = problem.labels
    labels[::9] = IGNORED
    mask = torch.rand(80, 4, generator=torch.Generator().manual_seed(0)) > 0.1
    ranking = pairs.rank("ap_loss", problem.logits.detach(), labels, mask, step, 0.7)
    update = torch.zeros(80, 4, dtype=torch.float64)
    for piece, is_negative, rows in pairs.pieces(problem.logits.detach(), labels, mask):
        update[rows] = torch.where(is_negative, ranking.update_of(piece), 0.0)
    update.view(-1)[ranking.index] = ranking.update
    value, exact = ap_loss_reference(
        problem.logits,
        positive_entries(labels, 4).long(),
        mask=counted_entries(labels, mask, 4),
        step=step,
        delta=0.7,
    )
    assert ranking.value.item() == pytest.approx(value.item(), rel=1e-12)
    torch.testing.assert_close(update, exact, rtol=1e-10, atol=1e-15)


def test_the_auc_of_pairs_by_hand() -> None:
    logits, labels = torch.tensor([[0.0], [2.0], [-3.0], [0.0]]), torch.tensor([0, -1, -1, -1])
    ranking = pairs.rank("auc_loss", logits, labels, None, "piecewise", 1.0)
    assert ranking.value.item() == 0.5  # one above, one below, one tie
    assert ranking.update.tolist() == [-0.5]
    assert ranking.update_of(torch.tensor([2.0, -3.0, 0.0])).tolist() == pytest.approx(
        [1 / 3, 0, 1 / 6]
    )
