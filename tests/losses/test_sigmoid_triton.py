"""The sigmoid step in Triton: by hand, against the plain operators in float64, and as a loss.

Without a CUDA device the kernels run interpreted (tests/conftest.py), so that sizes are small and
blocks smaller: many programs, folds, groups and tiles on few scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rankdet.losses import BACKGROUND, IGNORED, ap_loss, auc_loss, fused, sigmoid, smooth_ap_loss

triton = pytest.importorskip("triton")
sigmoid_triton = pytest.importorskip("rankdet.losses.sigmoid_triton")

WithGradient = Callable[..., tuple[Tensor, Tensor]]

HALVES = (torch.float16, torch.bfloat16)
# Four positives x four scores at a time; a group has 8 scores, a fold 16.
SMALL_SUM = {"block_positives": 4, "block_scores": 4, "parts": 2, "rounds": 2}
SMALL_WRITE = {"block_positives": 4, "block_scores": 16, "unroll": 2}
THIRD = math.log(3)  # S(k log 3) = 3 / 4, S(-k log 3) = 1 / 4, k S' = 3 / 16 at both

# The interpreter's numpy speaks of overflows, which the kernels mean to have for scores far apart.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")


def float64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def sums(kernel_device: str) -> Callable[..., tuple[Tensor, ...]]:
    """(logits, labels, mask, positives, delta, **blocks) -> the kernel's results, on the CPU."""

    def run(
        logits: Tensor, labels: Tensor, mask: Any, positives: Tensor, delta: float, **blocks: int
    ) -> tuple[Tensor, ...]:
        arguments = [None if x is None else x.to(kernel_device) for x in (logits, labels, mask)]
        results = sigmoid_triton.sum_sigmoids(
            *arguments, positives.to(kernel_device), delta, **(SMALL_SUM | blocks)
        )
        return tuple(result.cpu() for result in results)

    return run


@pytest.fixture
def update(kernel_device: str) -> Callable[..., Tensor]:
    """(scale, logits, ..., update, **blocks) -> the kernel's gradient, on the CPU."""

    def run(*arguments: Any, **blocks: int) -> Tensor:
        there = [x.to(kernel_device) if isinstance(x, Tensor) else x for x in arguments]
        return sigmoid_triton.write_sigmoid_update(*there, **(SMALL_WRITE | blocks)).cpu()

    return run


# --- worked by hand ---------------------------------------------------------------------------

# Negatives 0, k log 3 and -k log 3 for k = 1/2. A positive, an ignored row, a masked entry.
LOGITS = torch.tensor([[0.0, 7.0], [THIRD / 2, -THIRD / 2], [8.0, 9.0], [0.0, 0.0]])
LABELS = torch.tensor([1, BACKGROUND, IGNORED, BACKGROUND])
MASK = torch.tensor([[True, True], [True, True], [True, True], [False, False]])


def test_sums_by_hand(sums: Callable[..., Any]) -> None:
    results = sums(LOGITS, LABELS, MASK, float64(0.0, THIRD / 2), 0.5)
    above, slopes, num_negatives, num_wrong = results
    # For p = 0: 1/2 + 3/4 + 1/4. For p = k log 3: 1/4 + 1/2 + 1/10, since S(-2 k log 3) = 1/10.
    assert above.tolist() == pytest.approx([1.5, 0.85], rel=1e-6)
    expected = [2 * (1 / 4 + 3 / 16 + 3 / 16), 2 * (3 / 16 + 1 / 4 + 9 / 100)]
    assert slopes.tolist() == pytest.approx(expected, rel=1e-6)
    assert (int(num_negatives), int(num_wrong)) == (3, 0)
    assert above.dtype == slopes.dtype == torch.float64
    assert num_negatives.dtype == num_wrong.dtype == torch.int64
    assert int(sums(LOGITS, LABELS, None, float64(0.0), 0.5)[2]) == 5


@pytest.mark.parametrize("derivative", [False, True])
def test_the_update_by_hand(derivative: bool, update: Callable[..., Tensor]) -> None:
    state = (LOGITS, LABELS, MASK, float64(0.0), float64(3.0), 0.5, derivative)
    gradient = update(torch.tensor(2.0), *state, torch.tensor([1]), float64(-5.0))
    negatives = [12 / 4, 12 * 3 / 16, 12 * 3 / 16] if derivative else [3, 6 * 3 / 4, 6 / 4]
    expected = [negatives[0], -10, *negatives[1:], 0, 0, 0, 0]
    assert gradient.shape == LOGITS.shape
    assert gradient.flatten().tolist() == pytest.approx(expected, rel=1e-6)


def test_far_pairs_count_one_or_nothing(
    sums: Callable[..., Any], update: Callable[..., Tensor]
) -> None:
    logits = torch.tensor([100.0] * 9 + [-100.0] * 9)[:, None]
    labels = torch.full((18,), BACKGROUND)
    positives, weights = float64(0, 0.1, 0.2), float64(1, 2, 4)
    above, slopes, _, _ = sums(logits, labels, None, positives, 0.1)
    assert above.tolist() == pytest.approx([9, 9, 9], rel=1e-7)
    assert slopes.max() < 1e-25  # 0, or in a group that has both signs, as good as 0
    for derivative, expected in ((False, 7.0), (True, 0.0)):
        state = (logits, labels, None, positives, weights, 0.1, derivative)
        gradient = update(torch.tensor(1.0), *state, torch.arange(0), float64())
        torch.testing.assert_close(
            gradient[:, 0], torch.tensor([expected] * 9 + [0] * 9), rtol=2e-7, atol=1e-25
        )
        assert (gradient[9:] == 0).all() or derivative


def test_positives_far_below_add_their_weights_however_many_tiles(
    update: Callable[..., Tensor],
) -> None:
    positives = torch.linspace(-1, 0, 301, dtype=torch.float64)  # 151 tiles; 128 are added at once
    weights = torch.arange(301, dtype=torch.float64)
    state = (torch.full((3, 1), 50.0), torch.full((3,), BACKGROUND), None, positives, weights, 0.1)
    tail = (False, torch.arange(0), float64())
    gradient = update(torch.tensor(1.0), *state, *tail, block_positives=2)
    assert gradient.tolist() == [[300 * 301 / 2]] * 3


def test_scores_that_are_not_finite_are_counted_and_left_out(
    sums: Callable[..., Any], update: Callable[..., Tensor]
) -> None:
    logits = torch.tensor([[math.nan], [math.inf], [-math.inf], [0.0], [math.nan], [math.inf]])
    labels = torch.tensor([BACKGROUND, BACKGROUND, BACKGROUND, BACKGROUND, IGNORED, 0])
    above, slopes, num_negatives, num_wrong = sums(logits, labels, None, float64(0.0), 1.0)
    assert (above.tolist(), slopes.tolist()) == ([0.5], [0.25])
    assert (int(num_negatives), int(num_wrong)) == (4, 3)
    state = (logits, labels, None, float64(0.0), float64(1.0), 1.0, False)
    gradient = update(torch.tensor(1.0), *state, torch.tensor([5]), float64(-1.0))
    assert gradient.flatten().tolist() == [0, 0, 0, 0.5, 0, -1]


def test_the_largest_scores_do_not_overflow(
    sums: Callable[..., Any], update: Callable[..., Tensor]
) -> None:
    logits = torch.tensor([[3.4e38, -3.4e38, 0.0, 1.2345678e15]])
    labels = torch.tensor([BACKGROUND])
    for positives in (float64(0.0), float64(-3.3e38, 0.0, 3.3e38)):
        above, slopes, _, _ = sums(logits, labels, None, positives, 0.5)
        middle = len(positives) // 2
        assert above[middle].item() == pytest.approx(2.5, rel=1e-6)
        assert slopes[middle].item() == pytest.approx(0.5, rel=1e-6)
        weights = torch.ones_like(positives)
        for derivative, expected in ((False, [1, 0, 0.5, 1]), (True, [0, 0, 0.5, 0])):
            if len(positives) == 3 and not derivative:
                expected = [3, 0, 1.5, 2]
            state = (logits, labels, None, positives, weights, 0.5, derivative)
            gradient = update(torch.tensor(1.0), *state, torch.arange(0), float64())
            assert gradient[0].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-25)


@pytest.mark.parametrize("case", ["weight", "scale", "scale without positives"])
def test_a_nan_reaches_all_that_is_counted(case: str, update: Callable[..., Tensor]) -> None:
    logits = LOGITS.clone()
    logits[1, 0] = math.inf
    positives = float64() if case == "scale without positives" else float64(-900.0, 900.0)
    weights = torch.ones_like(positives)
    scale = torch.tensor(1.0 if case == "weight" else math.nan)
    if case == "weight":
        weights[-1] = math.nan
    state = (logits, LABELS, MASK, positives, weights, 0.5, False)
    gradient = update(scale, *state, torch.tensor([1]), float64(math.nan))
    assert gradient.isnan().tolist() == [[True] * 2, [True] * 2, [False] * 2, [False] * 2]
    assert (gradient[2:] == 0).all()


@pytest.mark.parametrize("num_positives", [0, 2])
@pytest.mark.parametrize("num_rows", [0, 5])
def test_nothing_of_one_or_the_other(
    num_rows: int, num_positives: int, sums: Callable[..., Any], update: Callable[..., Tensor]
) -> None:
    logits, labels = torch.zeros(num_rows, 3), torch.full((num_rows,), BACKGROUND)
    positives = torch.zeros(num_positives, dtype=torch.float64)
    above, slopes, num_negatives, num_wrong = sums(logits, labels, None, positives, 2.0)
    assert above.tolist() == [num_rows * 3 / 2] * num_positives
    assert slopes.tolist() == [num_rows * 3 / 8] * num_positives
    assert (int(num_negatives), int(num_wrong)) == (3 * num_rows, 0)
    state = (logits, labels, None, positives, positives + 1, 2.0, False)
    gradient = update(torch.tensor(1.0), *state, torch.arange(0), float64())
    assert gradient.tolist() == [[num_positives / 2] * 3] * num_rows


# --- accuracy, where it is easily lost ---------------------------------------------------------


def exact_sigmoid(away: float) -> float:
    return 1 / (1 + math.exp(-away))


@pytest.mark.parametrize("spread", [0.0, 64.0], ids=["narrow tile", "wide tile"])
@pytest.mark.parametrize(
    ("delta", "score"),
    [
        *((0.83, -8.98), (0.69, -0.79)),
        pytest.param(
            *(0.09, -2.41),
            marks=pytest.mark.skipif(
                not torch.cuda.is_available() and triton.__version__ < "3.9",
                reason="this interpreter rounds a fused multiply-add twice",
            ),
        ),
    ],
)
def test_small_sums_have_all_their_digits(
    delta: float,
    score: float,
    spread: float,
    sums: Callable[..., Any],
    update: Callable[..., Tensor],
) -> None:
    # All scores are equal, so that roundings add up instead of cancelling. The numbers are such
    # that a plain float32 exponent would be wrong by its difference, its rate or its product.
    low = torch.tensor(score).item()
    high = torch.tensor(low + 39 * delta).item()
    logits, labels = torch.full((300, 1), low), torch.full((300,), BACKGROUND)
    positives, weights = float64(high, high + spread * delta), float64(1.0, 0.0)
    sigmoid = exact_sigmoid((low - high) / delta)
    above, slopes, _, _ = sums(logits, labels, None, positives, delta, rounds=4, parts=32)
    assert above[0].item() == pytest.approx(300 * sigmoid, rel=1e-6, abs=0)
    assert slopes[0].item() == pytest.approx(300 * sigmoid / delta, rel=1e-6, abs=0)
    state = (logits[:3], labels[:3], None, positives, weights, delta, False)
    gradient = update(torch.tensor(1.0), *state, torch.arange(0), float64())
    assert gradient[0].item() == pytest.approx(sigmoid, rel=1e-6, abs=0)
    # Seen from above: 1 - S is what S was.
    slopes = sums(-logits[:9], labels[:9], None, -positives.flip(0), delta)[1]
    assert slopes[-1].item() == pytest.approx(9 * sigmoid / delta, rel=1e-6, abs=0)


# --- against the plain operators, in float64 ----------------------------------------------------


def problem(
    seed: int, num_rows: int, num_classes: int, spread: float, num_positives: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, labels of every kind, a mask, and sorted positives with ties, of other scores."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(num_rows, num_classes, generator=generator)
    labels = torch.randint(-2, num_classes, (num_rows,), generator=generator)
    mask = torch.rand(num_rows, num_classes, generator=generator) < 0.8
    if num_positives is None:
        num_positives = 7
    positives = spread * torch.randn(num_positives, generator=generator)
    positives[1 : num_positives // 2 : 2] = logits[0, 0]
    return logits, labels, mask, positives.double().sort().values


def assert_agrees(
    sums: Callable[..., Any],
    update: Callable[..., Tensor],
    inputs: tuple[Tensor, Tensor, Tensor | None, Tensor],
    delta: float,
    **blocks: int,
) -> None:
    logits, labels, mask, positives = inputs
    exact = (logits.double(), labels.long(), mask, positives)
    above, slopes, *counts = sums(logits, labels, mask, positives, delta, **blocks)
    plain = sigmoid.sum_sigmoids._init_fn(*exact, delta)
    torch.testing.assert_close(above, plain[0], rtol=1e-6, atol=1e-16)
    torch.testing.assert_close(slopes * delta, plain[1] * delta, rtol=1e-6, atol=1e-16)
    assert [int(count) for count in counts] == [int(count) for count in plain[2:]]

    weights = torch.linspace(0.5, 2, len(positives), dtype=torch.float64)
    index = torch.arange(min(2, logits.numel()))
    step = {torch.float16: 2**-11, torch.bfloat16: 2**-7}.get(logits.dtype, 0)
    for derivative in (False, True):
        tail = (weights, delta, derivative, index, weights[: len(index)])
        result = update(torch.tensor(2.0), logits, labels, mask, positives, *tail, **blocks)
        expected = sigmoid.write_sigmoid_update._init_fn(torch.tensor(2.0), *exact, *tail)
        assert result.dtype == logits.dtype
        error = (result.double() - expected).norm()
        unit = 1 / delta if derivative else 1
        assert error <= (1e-6 + step) * expected.norm() + 1e-16 * unit
        if logits.dtype == torch.float32:
            torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-16 * unit)


@pytest.mark.parametrize("delta", [0.5, 0.02, 1e-6, 1e3])
@pytest.mark.parametrize("num_classes", [1, 3])
def test_they_agree_with_the_plain_operators(
    num_classes: int, delta: float, sums: Callable[..., Any], update: Callable[..., Tensor]
) -> None:
    for seed, spread in ((0, 1.0), (1, 30.0)):
        logits, labels, mask, positives = problem(seed, 36 // num_classes, num_classes, spread)
        some = mask if seed == 0 else None
        assert_agrees(sums, update, (logits, labels, some, positives), delta)


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_read_as_it_is(
    dtype: torch.dtype, sums: Callable[..., Any], update: Callable[..., Tensor]
) -> None:
    logits, labels, mask, positives = problem(2, 12, 3, 2.0)
    logits = logits.to(dtype)
    logits[3, 1], logits[4, 0] = math.nan, math.inf
    assert_agrees(sums, update, (logits, labels.to(torch.int8), mask, positives), 0.5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_labels_of_any_integers(
    dtype: torch.dtype, sums: Callable[..., Any], update: Callable[..., Tensor]
) -> None:
    logits, _, mask, positives = problem(3, 4, 200, 1.0, 3)
    labels = torch.tensor([3, 100, 0, 127]).to(dtype)
    if dtype.is_signed:
        labels[2:] = torch.tensor([IGNORED, BACKGROUND])
    blocks = {"block_scores": 256}
    assert_agrees(sums, update, (logits, labels, mask, positives), 0.5, **blocks)


@pytest.mark.parametrize(("num_rows", "num_positives"), [(1, 1), (2, 1), (1, 5), (16, 2), (17, 4)])
def test_sizes_around_a_block(
    num_rows: int, num_positives: int, sums: Callable[..., Any], update: Callable[..., Tensor]
) -> None:
    inputs = problem(4, num_rows, 1, 1.0, num_positives)
    labels = torch.full((num_rows,), BACKGROUND)
    assert_agrees(sums, update, (inputs[0], labels, None, inputs[3]), 0.5)


def test_few_partial_sums_mean_long_chunks(
    sums: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = problem(5, 26, 3, 1.0)  # 78 scores are 5 folds; 8 positives x 16 bytes: 128 a chunk
    launched: list[int] = []
    kernel = sigmoid_triton.sum_kernel

    class Spy:
        def __getitem__(self, grid: tuple[int]) -> Any:
            launched.append(grid[0])
            return kernel[grid]

    monkeypatch.setattr(sigmoid_triton, "sum_kernel", Spy())
    results = [sums(*inputs, 0.5, partial_bytes=128 * most) for most in (100, 3, 1, 0)]
    assert launched == [2 * 5, 2 * 3, 2, 2]  # of 2 tiles
    monkeypatch.setattr(sigmoid_triton, "_LONGEST_CHUNK", 32)
    results.append(sums(*inputs, 0.5, partial_bytes=0))
    assert launched[-1] == 2 * 3
    for result in results[1:]:
        torch.testing.assert_close(result[0], results[0][0], rtol=1e-6, atol=0)
        assert int(result[2]) == int(results[0][2])


def test_the_same_inputs_give_the_same_bits(
    sums: Callable[..., Any], update: Callable[..., Tensor]
) -> None:
    logits, labels, mask, positives = problem(6, 12, 3, 1.0)
    first, second = (sums(logits, labels, mask, positives, 0.5) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    tail = (positives.exp(), 0.5, False, torch.arange(0), float64())
    first, second = (
        update(torch.tensor(1.0), logits, labels, mask, positives, *tail) for _ in range(2)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize("pairs", [40, 1 << 20])
def test_sums_over_the_positives_without_questions(
    pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sigmoid, "_PAIRS", pairs)
    for delta in (0.5, 0.01):
        for num_positives in (0, 17):
            positives = problem(7, 1, 1, 2.0, num_positives)[3]
            expected = sigmoid.sum_sigmoids_of_positives(positives, delta)
            result = sigmoid._sum_all_pairs(positives, delta)
            for one, other in zip(result, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-16 / delta)


# --- as losses ----------------------------------------------------------------------------------


@pytest.fixture
def fused_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators take the kernels on the CPU too."""
    dtypes = (*HALVES, torch.float32)
    monkeypatch.setattr(fused, "can_read", lambda logits: logits.dtype in dtypes)


@pytest.mark.usefixtures("fused_everywhere")
@pytest.mark.parametrize("interpolate", [False, True])
def test_ap_loss_agrees_with_the_reference(
    interpolate: bool,
    with_gradient: WithGradient,
    mixed_problem: Callable[..., tuple[Tensor, Tensor]],
    judge: Callable[..., tuple[Tensor, Tensor]],
) -> None:
    logits, labels = mixed_problem(0, 40)
    settings = {"step": "sigmoid", "delta": 0.5, "interpolate": interpolate}
    expected, expected_update = judge(logits.float(), labels, **settings)
    value, gradient = with_gradient(ap_loss, logits.float(), labels, **settings)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    assert (gradient - expected_update).norm() <= 1e-6 * expected_update.norm()


@pytest.mark.usefixtures("fused_everywhere")
@pytest.mark.parametrize("loss", [ap_loss, auc_loss, smooth_ap_loss])
def test_the_losses_take_the_kernels(
    loss: Callable[..., Tensor],
    with_gradient: WithGradient,
    mixed_problem: Callable[..., tuple[Tensor, Tensor]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits, labels = mixed_problem(1, 2, 20)
    settings = {"delta": 0.5, "scope": "image"}
    if loss is not smooth_ap_loss:
        settings["step"] = "sigmoid"
    calls: list[str] = []
    for name in ("sum_sigmoids", "write_sigmoid_update"):
        function = getattr(sigmoid_triton, name)

        def spy(*inputs: Any, function: Any = function, name: str = name) -> Any:
            calls.append(name)
            return function(*inputs)

        monkeypatch.setattr(sigmoid_triton, name, spy)
    expected, expected_gradient = with_gradient(loss, logits, labels, grad_output=3.0, **settings)
    assert calls == []  # float64 is plain
    value, gradient = with_gradient(loss, logits.float(), labels, grad_output=3.0, **settings)
    assert sorted(calls) == ["sum_sigmoids"] * 2 + ["write_sigmoid_update"] * 2
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    assert (gradient - expected_gradient).norm() <= 1e-6 * expected_gradient.norm()


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("loss", [ap_loss, smooth_ap_loss])
@pytest.mark.parametrize("delta", [0.5, 0.01])
def test_on_cuda_the_losses_have_the_numbers_of_the_cpu_in_float64(
    delta: float, loss: Callable[..., Tensor], with_gradient: WithGradient
) -> None:
    logits, labels, mask, _ = problem(8, 20_000, 3, 2.0)
    labels[torch.rand(20_000, generator=torch.Generator().manual_seed(0)) < 0.97] = BACKGROUND
    settings = {"delta": delta} | ({} if loss is smooth_ap_loss else {"step": "sigmoid"})
    expected, expected_gradient = with_gradient(
        loss, logits.double(), labels, mask=mask, **settings
    )
    value, gradient = with_gradient(
        loss, logits.cuda(), labels.cuda(), mask=mask.cuda(), **settings
    )
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    error = (gradient.cpu() - expected_gradient).norm()
    assert error <= 1e-6 * expected_gradient.norm()
    again = with_gradient(loss, logits.cuda(), labels.cuda(), mask=mask.cuda(), **settings)
    assert torch.equal(value, again[0])
    assert torch.equal(gradient, again[1])


@pytest.mark.gpu
@needs_cuda
def test_on_cuda_nothing_waits_for_the_device() -> None:
    logits, labels, mask, positives = (part.cuda() for part in problem(9, 5000, 3, 2.0))
    scale, index = torch.ones((), device="cuda"), torch.arange(7, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        sigmoid.sum_sigmoids(logits, labels, mask, positives, 0.5)
        sigmoid.sum_sigmoids_of_positives(positives, 0.5)
        state = (logits, labels, mask, positives, positives, 0.5, False, index, positives)
        sigmoid.write_sigmoid_update(scale, *state)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@needs_cuda
def test_on_cuda_more_scores_than_32_bits_can_count() -> None:
    num_rows, num_classes = 2**31 // 64 + 1000, 64
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("needs 20 GiB")
    logits = torch.full((num_rows, num_classes), -1.0, dtype=torch.bfloat16, device="cuda")
    logits[-1, -2:] = torch.tensor([1.0, 5.0])
    labels = torch.full((num_rows,), BACKGROUND, dtype=torch.int8, device="cuda")
    labels[-1] = 63
    positives = torch.tensor([5.0], dtype=torch.float64, device="cuda")
    above, _, num_negatives, num_wrong = sigmoid.sum_sigmoids(logits, labels, None, positives, 2.0)
    assert (num_negatives.item(), num_wrong.item()) == (num_rows * num_classes - 1, 0)
    expected = (num_negatives.item() - 1) * exact_sigmoid(-3) + exact_sigmoid(-2)
    assert above.item() == pytest.approx(expected, rel=1e-6)
    place = torch.tensor([num_rows * num_classes - 1], device="cuda")
    tail = (positives, positives, 2.0, False, place, -positives)
    gradient = sigmoid.write_sigmoid_update(
        torch.ones((), device="cuda"), logits, labels, None, *tail
    )
    assert gradient[-1, -3:].tolist() == pytest.approx(
        [5 * exact_sigmoid(-3), 5 * exact_sigmoid(-2), -5], rel=4e-3
    )
    assert (gradient[:-1] == gradient[0, 0]).all()
