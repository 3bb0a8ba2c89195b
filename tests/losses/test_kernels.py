"""The custom operators: what torch asks of them, both implementations, and torch.compile."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.library import opcheck

from rankdet.losses import (
    BACKGROUND,
    IGNORED,
    ap_loss,
    auc_loss,
    error_driven,
    kernels,
    kernels_cpu,
    sigmoid,
)
from rankdet.losses.kernels import (
    attach_update,
    bin_negatives,
    find_positives,
    write_update,
)

WithGradient = Callable[..., tuple[Tensor, Tensor]]

# --- worked by hand ---------------------------------------------------------------------------

LOGITS = torch.tensor([[1.5, 2.0], [0.0, 1.0], [0.5, -1.5], [9.0, 9.0]])
LABELS = torch.tensor([1, 0, BACKGROUND, IGNORED])
MASK = torch.tensor([[True, True], [True, False], [True, True], [True, True]])


def float64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_positives_are_found_in_order_of_place() -> None:
    scores, index = find_positives(LOGITS, LABELS, None)
    assert (scores.tolist(), index.tolist(), scores.dtype) == ([2.0, 0.0], [1, 2], torch.float64)
    masked = MASK.clone()
    masked[0, 1] = False
    assert find_positives(LOGITS, LABELS, masked)[1].tolist() == [2]


@pytest.mark.parametrize("implementation", [bin_negatives, bin_negatives._init_fn])
def test_negatives_are_counted_and_added_bin_by_bin(implementation: Callable[..., Any]) -> None:
    # Negatives 1.5, 1.0, 0.5, -1.5; bins: below 0.5 | 0.5 and 1.0 | nothing | from 1.5 on.
    knots = float64(0.5, 1.25, 1.5)
    counts, sums, num_wrong = implementation(LOGITS, LABELS, None, knots, True)
    assert (counts.tolist(), sums.tolist(), int(num_wrong)) == ([1, 2, 0, 1], [0, 1.5, 0, 1.5], 0)
    counts, sums, _ = implementation(LOGITS, LABELS, MASK, knots, False)
    assert (counts.tolist(), sums.tolist()) == ([1, 1, 0, 1], [0, 0, 0, 0])


@pytest.mark.parametrize("implementation", [bin_negatives, bin_negatives._init_fn])
def test_negatives_that_are_not_finite_are_told_and_go_to_bin_0(
    implementation: Callable[..., Any],
) -> None:
    logits = torch.tensor([[math.nan], [math.inf], [-math.inf], [2.0], [math.nan], [math.inf]])
    labels = torch.tensor([-1, -1, -1, -1, IGNORED, 0])
    counts, sums, num_wrong = implementation(logits, labels, None, float64(1.0), True)
    assert (counts.tolist(), sums.tolist(), int(num_wrong)) == ([3, 1], [0.0, 2.0], 3)


@pytest.mark.parametrize("implementation", [bin_negatives, bin_negatives._init_fn])
def test_counts_are_exact_beyond_what_float32_can_count(implementation: Callable[..., Any]) -> None:
    num_low, num_high = 5, (1 << 24) + 3
    logits = torch.ones(num_low + num_high, 1, dtype=torch.float16)
    logits[:num_low] = -1
    labels = torch.full((len(logits),), BACKGROUND, dtype=torch.int8)
    counts, sums, _ = implementation(logits, labels, None, float64(0.0), True)
    assert (counts.dtype, sums.dtype) == (torch.int64, torch.float64)
    assert (counts.tolist(), sums.tolist()) == ([num_low, num_high], [0, num_high])


@pytest.mark.parametrize("implementation", [write_update, write_update._init_fn])
def test_the_update_is_written_by_bin_and_scaled(implementation: Callable[..., Any]) -> None:
    gradient = implementation(
        torch.tensor(2.0),
        *(LOGITS, LABELS, MASK, float64(0.5, 1.25)),
        *(float64(0, 10, 20), float64(0, 1, 2)),  # intercepts, slopes
        *(torch.tensor([2, 1]), float64(-7, -8)),
    )
    # 1.5 in bin 2: 2 (20 + 3); 0.5 in bin 1: 2 (10 + 0.5); -1.5 in bin 0; 1.0 is masked.
    assert gradient.tolist() == [[46, -16], [-14, 0], [21, 0], [0, 0]]


# --- two implementations ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("block", [5, 64, 1 << 17])
def test_the_generic_kernels_and_those_of_the_cpu_agree(
    block: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_cpu, "_BLOCK", block)
    monkeypatch.setattr(kernels, "_BLOCK", 3 * block)
    generator = torch.Generator().manual_seed(block)
    for num_knots in (0, 1, 2, 30):
        for with_mask in (True, False):
            logits = torch.randn(70, 3, generator=generator).to(dtype)
            labels = torch.randint(-2, 3, (70,), generator=generator)
            mask = torch.rand(70, 3, generator=generator) < 0.8 if with_mask else None
            knots = torch.randn(num_knots, generator=generator, dtype=torch.float64).sort().values
            _, index = find_positives(logits, labels, mask)

            state = (logits, labels, mask, knots)
            counts, sums, num_wrong = bin_negatives(*state, True)
            generic = bin_negatives._init_fn(*state, True)
            assert torch.equal(counts, generic[0])
            torch.testing.assert_close(sums, generic[1], rtol=1e-12, atol=1e-12)
            assert num_wrong == generic[2] == 0

            numbers = torch.randn(3, num_knots + 1, generator=generator, dtype=torch.float64)
            intercepts, slopes = numbers[:2] * (torch.arange(num_knots + 1) > 0)
            update = torch.randn(len(index), generator=generator, dtype=torch.float64)
            for lines in ((intercepts, slopes), (intercepts, 0 * slopes)):
                arguments = (torch.tensor(0.7), *state, *lines, index, update)
                written = write_update(*arguments)
                assert written.dtype == dtype
                tolerance = 2 * torch.finfo(dtype).eps
                torch.testing.assert_close(
                    written, write_update._init_fn(*arguments), rtol=tolerance, atol=1e-12
                )


@pytest.mark.parametrize("block", [1, 4, 1 << 17])
def test_a_nan_in_bin_0_makes_both_kernels_write_nan_everywhere_but_on_ignored_entries(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_cpu, "_BLOCK", block)
    poison = float64(math.nan, math.nan)
    arguments = (torch.tensor(1.0), LOGITS, LABELS, MASK, float64(0.7), poison, float64(0, 1))
    expected = MASK & (LABELS != IGNORED)[:, None]
    for implementation in (write_update, write_update._init_fn):
        written = implementation(*arguments, torch.tensor([2, 1]), poison)
        assert torch.equal(written.isnan(), expected)
        assert (written[~expected] == 0).all()


# --- what torch asks of an operator -----------------------------------------------------------


def operator_calls() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    leaf = LOGITS.clone().requires_grad_()
    value, scale = torch.tensor(0.5, dtype=torch.float64), torch.tensor(2.0)
    index, update = torch.tensor([2, 1]), float64(-0.5, -0.25)
    lines = (float64(-1, 1), float64(0, 0.5, 1), float64(0, 0.5, 0.25), index, update)
    curve = (float64(0, 2), float64(0.5, 0.25), 0.5)
    calls: dict[str, tuple[Any, tuple[Any, ...]]] = {}
    fewer = MASK.clone()
    fewer[0, 1] = False  # another number of positives
    for name, mask in (("", None), ("_masked", fewer)):
        inputs, leaf_inputs = (LOGITS, LABELS, mask), (leaf, LABELS, mask)
        calls |= {
            f"find_positives{name}": (find_positives, inputs),
            f"bin_negatives{name}": (bin_negatives, (*inputs, float64(-1, 1), True)),
            f"write_update{name}": (write_update, (scale, *inputs, *lines)),
            f"attach_update{name}": (attach_update, (value, *leaf_inputs, *lines)),
            f"sum_sigmoids{name}": (sigmoid.sum_sigmoids, (*inputs, float64(0, 2), 0.5)),
            f"write_sigmoid_update{name}": (
                *(sigmoid.write_sigmoid_update,),
                (scale, *inputs, *curve, False, index, update),
            ),
            f"attach_sigmoid_update{name}": (
                *(sigmoid.attach_sigmoid_update,),
                (value, *leaf_inputs, *curve, False, index, update),
            ),
            f"rank_by_sigmoids{name}": (
                *(error_driven._sigmoids_operator,),
                (*inputs, "interpolated_ap", "sigmoid", 0.5),
            ),
        }
        for step in ("piecewise", "heaviside"):
            calls[f"rank_by_bins_{step}{name}"] = (
                *(error_driven._bins_operator,),
                (*inputs, "ap", step, 1.0),
            )
    return calls


CALLS = operator_calls()


@pytest.mark.parametrize("name", CALLS)
def test_opcheck_passes(name: str) -> None:
    operator, arguments = CALLS[name]
    assert set(opcheck(operator, arguments).values()) == {"SUCCESS"}


@pytest.mark.parametrize(("step", "knots_per_positive"), [("piecewise", 2), ("heaviside", 1)])
def test_sizes_are_told_before_the_number_of_positives_is_known(
    step: str, knots_per_positive: int
) -> None:
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        inputs = (mode.from_tensor(LOGITS), mode.from_tensor(LABELS), None)
        _, _, knots, intercepts, slopes, index, update = error_driven._bins_operator(
            *inputs, "ap", step, 1.0
        )
    assert str(update.shape[0]) == str(index.shape[0]) == "u0"
    assert bool(knots.shape[0] == knots_per_positive * update.shape[0])
    assert bool(intercepts.shape[0] == knots.shape[0] + 1)
    assert bool(slopes.shape[0] == knots.shape[0] + 1)


def test_every_operator_is_checked() -> None:
    names = {operator._qualname for operator, _ in CALLS.values()}
    registered = {
        value._qualname
        for module in (kernels, sigmoid, error_driven)
        for value in vars(module).values()
        if isinstance(value, torch.library.CustomOpDef)
    }
    assert names == registered
    assert len(names) == 9


# --- torch.compile ----------------------------------------------------------------------------


def assert_compiled_equals_eager(
    loss: Callable[..., Tensor], backend: str, with_gradient: WithGradient, **settings: Any
) -> None:
    """Also after the number of positives has changed, to 0 in the end."""
    torch.compiler.reset()
    num_graphs = 0

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        nonlocal num_graphs
        num_graphs += 1
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    def step(logits: Tensor, labels: Tensor) -> Tensor:
        return 2 * loss(logits, labels, check_finite=False, **settings)

    compiled = torch.compile(step, fullgraph=True, backend=count)
    generator = torch.Generator().manual_seed(0)
    for num_positives in (5, 1, 12, 0):
        logits = torch.randn(2, 20, 3, generator=generator)
        labels = torch.full((2, 20), BACKGROUND)
        labels[:, 15:] = IGNORED
        labels.view(-1)[:num_positives] = 1
        value, gradient = with_gradient(compiled, logits, labels)
        expected, expected_gradient = with_gradient(step, logits, labels)
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-8)
        assert (num_positives > 0) == (expected > 0)
    assert num_graphs == 1  # one graph for any number of positives


@pytest.mark.parametrize("scope", ["batch", "image", 2])
@pytest.mark.parametrize("step", ["piecewise", "heaviside", "sigmoid"])
def test_compiled_ap_loss_equals_eager(
    step: str, scope: str | int, with_gradient: WithGradient
) -> None:
    assert_compiled_equals_eager(ap_loss, "aot_eager", with_gradient, step=step, scope=scope)


@pytest.mark.parametrize("loss", [ap_loss, auc_loss])
def test_compiled_rows_may_be_as_many_as_the_values_say(
    loss: Callable[..., Tensor], with_gradient: WithGradient
) -> None:
    """Their number is not known when the graph is made."""

    def chosen(logits: Tensor, labels: Tensor) -> Tensor:
        is_chosen = labels >= BACKGROUND
        return loss(logits[is_chosen], labels[is_chosen], check_finite=False)

    torch.compiler.reset()
    compiled = torch.compile(chosen, fullgraph=True, backend="aot_eager")
    value, gradient = with_gradient(compiled, LOGITS, LABELS)
    expected, expected_gradient = with_gradient(chosen, LOGITS, LABELS)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("step", ["piecewise", "sigmoid"])
def test_compiled_auc_loss_equals_eager(step: str, with_gradient: WithGradient) -> None:
    assert_compiled_equals_eager(auc_loss, "aot_eager", with_gradient, step=step)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("loss", [ap_loss, auc_loss])
def test_the_default_backend_gives_the_same(
    loss: Callable[..., Tensor], with_gradient: WithGradient
) -> None:
    assert_compiled_equals_eager(loss, "inductor", with_gradient)


@pytest.mark.parametrize("step", ["piecewise", "heaviside", "sigmoid"])
def test_compiled_a_score_that_is_not_finite_or_a_wrong_label_gives_nan(step: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(ap_loss, fullgraph=True, backend="aot_eager")
    logits, labels = LOGITS.clone(), LABELS.clone()
    assert compiled(logits, labels, step=step, check_finite=False).isfinite()
    logits[1, 1] = math.nan
    assert compiled(logits, labels, step=step, check_finite=False).isnan()
    assert compiled(LOGITS, labels + 5, step=step, check_finite=False).isnan()
