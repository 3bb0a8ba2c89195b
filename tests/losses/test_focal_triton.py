"""The fused focal loss: by hand, against the plain one in float64, edges, autograd, torch.compile.

The kernels run on the GPU, or interpreted on the CPU: small sizes, in small tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rankdet.losses import BACKGROUND, IGNORED, focal, focal_loss
from rankdet.losses.focal import plain_focal_loss

focal_triton = pytest.importorskip("rankdet.losses.focal_triton", exc_type=ImportError)

WithGradient = Callable[..., tuple[Tensor, Tensor]]
LOG2, LOG3 = math.log(2), math.log(3)
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
HALVES = [torch.float16, torch.bfloat16]

# numpy, which interprets the kernels, warns of what it computes with the scores that are not used.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")


def fused(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    gamma: float = 2.0,
    alpha: float | None = 0.25,
    block: int = 32,
) -> Tensor:
    """The fused loss in small tiles, so that there are many."""
    value: Tensor = focal_triton.fused_focal_loss(logits, labels, mask, gamma, alpha, block)
    return value


def plain(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    gamma: float = 2.0,
    alpha: float | None = 0.25,
) -> Tensor:
    return plain_focal_loss(logits, labels, gamma, alpha, mask, check_finite=False)


def problem(
    device: str, *shape: int, seed: int = 0, scale: float = 4.0
) -> tuple[Tensor, Tensor, Tensor]:
    """float32 logits of the shape, labels of every kind, and a mask."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(*shape, generator=generator)
    labels = torch.randint(IGNORED, shape[-1], shape[:-1], generator=generator)
    mask = torch.rand(shape, generator=generator) < 0.8
    return logits.to(device), labels.to(device), mask.to(device)


@pytest.fixture
def reads_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `focal_loss` take the kernels on whatever device they run on here."""
    monkeypatch.setattr(focal, "can_read", lambda logits: logits.numel() > 0)


# By hand: sigmoid(log 3) = 3/4.


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (0, 0.25 * 0.25**2 * math.log(4 / 3)),
        (BACKGROUND, 0.75 * 0.75**2 * math.log(4)),
        (IGNORED, 0.0),
    ],
)
def test_the_loss_of_a_single_score(label: int, expected: float, kernel_device: str) -> None:
    logits = torch.tensor([[LOG3]], device=kernel_device)
    value = fused(logits, torch.tensor([label], device=kernel_device))
    assert value.item() == pytest.approx(expected, rel=2e-6)
    assert (value.dtype, value.shape) == (torch.float32, ())


def test_the_sum_is_divided_by_the_number_of_positives_that_are_not_masked(
    kernel_device: str,
) -> None:
    logits = torch.zeros(4, 2, device=kernel_device)
    labels = torch.tensor([0, 1, 1, BACKGROUND], device=kernel_device)
    mask = torch.ones(4, 2, dtype=torch.bool, device=kernel_device)
    mask[0, 0] = False
    value = fused(logits, labels, mask, gamma=0.0, alpha=None)
    assert value.item() == pytest.approx(7 * LOG2 / 2)


def test_without_positives_the_sum_is_divided_by_one(kernel_device: str) -> None:
    logits = torch.zeros(3, 2, device=kernel_device)
    labels = torch.full((3,), BACKGROUND, device=kernel_device)
    assert fused(logits, labels, gamma=0.0, alpha=None).item() == pytest.approx(6 * LOG2)


def test_the_gradient_of_cross_entropy_is_probability_minus_target(
    kernel_device: str, with_gradient: WithGradient
) -> None:
    logits = torch.tensor([[LOG3, -LOG3], [LOG3, LOG3]], device=kernel_device)
    labels = torch.tensor([0, IGNORED], device=kernel_device)
    _, gradient = with_gradient(fused, logits, labels, gamma=0.0, alpha=None)
    assert gradient.flatten().tolist() == pytest.approx([-0.25, 0.25, 0, 0])


# Against the plain loss in float64.


@pytest.mark.parametrize("alpha", [0.25, None, 0.0, 1.0])
@pytest.mark.parametrize("gamma", [0, 0.3, 1.0, 1.5, 2.0, 5.0])
def test_it_is_as_close_to_float64_as_plain_float32_is(
    gamma: float, alpha: float | None, kernel_device: str, with_gradient: WithGradient
) -> None:
    logits, labels, mask = problem(kernel_device, 4, 25, 20)
    settings: dict[str, Any] = {"mask": mask, "gamma": gamma, "alpha": alpha}
    ours = with_gradient(fused, logits, labels, block=256, **settings)
    single = with_gradient(plain, logits, labels, **settings)
    double = with_gradient(plain, logits.double(), labels, **settings)
    assert ours[0].item() == pytest.approx(double[0].item(), rel=5e-7)
    error, plain_error = ((result[1] - double[1]).norm() for result in (ours, single))
    assert error <= 2 * plain_error
    assert plain_error <= 2e-6 * double[1].norm()


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_every_single_gradient_is_exact_to_float32(
    scale: float, gamma: float, kernel_device: str, with_gradient: WithGradient
) -> None:
    """Scores far from the boundary have small gradients, which a norm does not see."""
    logits, labels, _ = problem(kernel_device, 50, 4, scale=scale)
    _, gradient = with_gradient(fused, logits, labels, gamma=gamma)
    _, expected = with_gradient(plain, logits.double(), labels, gamma=gamma)
    torch.testing.assert_close(gradient.double(), expected, rtol=3e-5, atol=1e-30)


def test_small_losses_are_exact_too(kernel_device: str) -> None:
    """A logarithm of 1 + 1e-4, in float32, would be wrong by up to 6e-4 of itself."""
    logits = torch.linspace(-15, -6, 64, device=kernel_device)[:, None]
    labels = torch.full((64,), BACKGROUND, device=kernel_device)
    for gamma in (0.0, 2.0):
        value = fused(logits, labels, gamma=gamma)
        expected = plain(logits.double(), labels, gamma=gamma)
        assert value.item() == pytest.approx(expected.item(), rel=4e-6)


def test_gradients_of_confident_mistakes_are_exact(
    kernel_device: str, with_gradient: WithGradient
) -> None:
    """There gamma * softplus is large and 1 - sigmoid small: it is not the difference from 1."""
    logits = torch.linspace(8, 12, 64, device=kernel_device)[:, None]
    labels = torch.full((64,), BACKGROUND, device=kernel_device)
    _, gradient = with_gradient(fused, logits, labels, gamma=7.0)
    _, expected = with_gradient(plain, logits.double(), labels, gamma=7.0)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_read_as_it_is_and_computed_in_float32(
    dtype: torch.dtype, kernel_device: str, with_gradient: WithGradient
) -> None:
    logits, labels, mask = problem(kernel_device, 30, 8)
    logits = logits.to(dtype)
    value, gradient = with_gradient(fused, logits, labels, mask)
    expected_value, expected = with_gradient(fused, logits.float(), labels, mask)
    torch.testing.assert_close(value, expected_value, rtol=1e-6, atol=0)
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient, expected.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_classes", [1, 2, 3, 4, 7, 8, 20, 80])
def test_tiles_that_end_amid_an_anchor_change_nothing(
    num_classes: int, dtype: torch.dtype, kernel_device: str, with_gradient: WithGradient
) -> None:
    logits, labels, mask = problem(kernel_device, 101 // num_classes + 2, num_classes)
    logits = logits.to(dtype)
    tolerance = 3e-6 if dtype == torch.float32 else 2**-7  # interpreted, bfloat16 is cut off
    for block, chosen in ((16, None), (32, mask)):
        value, gradient = with_gradient(fused, logits, labels, chosen, block=block)
        judge = with_gradient(plain, logits.double(), labels, chosen)
        assert value.item() == pytest.approx(judge[0].item(), rel=1e-6)
        torch.testing.assert_close(gradient.double(), judge[1], rtol=tolerance, atol=1e-7)


def test_more_tiles_than_are_added_at_once(
    kernel_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, labels, mask = problem(kernel_device, 67, 5)
    expected = fused(logits, labels, mask)
    monkeypatch.setattr(focal_triton, "_NUM_ADDED", 4)
    torch.testing.assert_close(fused(logits, labels, mask), expected, rtol=1e-6, atol=0)


def test_the_same_inputs_give_the_same_bits(
    kernel_device: str, with_gradient: WithGradient
) -> None:
    logits, labels, mask = problem(kernel_device, 67, 5)
    first, second = (with_gradient(fused, logits, labels, mask) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


# Labels.


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_labels_may_have_any_signed_dtype(
    dtype: torch.dtype, kernel_device: str, with_gradient: WithGradient
) -> None:
    logits, labels, _ = problem(kernel_device, 40, 6)
    ours = with_gradient(fused, logits, labels.to(dtype))
    expected = with_gradient(plain, logits.double(), labels)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-7, check_dtype=False)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_narrow_labels_are_not_confused_by_many_classes(
    dtype: torch.dtype, kernel_device: str
) -> None:
    """200 and 300 are -56 and 44 in int8; 255 is a class of 300, if an unsigned one."""
    for num_classes in (200, 300):
        logits, _, _ = problem(kernel_device, 3, num_classes)
        labels = torch.tensor([0, 44, 127], dtype=dtype, device=kernel_device)
        if dtype == torch.uint8 and num_classes == 300:
            labels[2] = 255
        expected = plain(logits.double(), labels.long())
        assert fused(logits, labels).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("wrong", "dtype"),
    [
        (5, torch.int64),
        (-3, torch.int64),
        (5, torch.int8),
        (-128, torch.int8),
        (254, torch.uint8),
        (255, torch.uint8),
        (2**32 - 2, torch.int64),
        (2**32, torch.int64),
        (-(2**31), torch.int32),
    ],
)
def test_a_wrong_label_makes_value_and_gradient_nan_but_not_where_ignored(
    wrong: int, dtype: torch.dtype, kernel_device: str, with_gradient: WithGradient
) -> None:
    logits, labels, _ = problem(kernel_device, 21, 5)
    labels = labels.clamp(min=0) if dtype == torch.uint8 else labels
    labels = labels.to(dtype)
    labels[13] = wrong
    value, gradient = with_gradient(fused, logits, labels)
    assert value.isnan()
    assert torch.equal(gradient.isnan().all(-1), labels.long() != IGNORED)
    assert torch.equal(gradient.isnan().any(-1), labels.long() != IGNORED)


def test_a_wrong_label_is_seen_where_all_of_its_entries_are_masked(kernel_device: str) -> None:
    logits, labels, mask = problem(kernel_device, 21, 5)
    mask[13] = False
    assert fused(logits, labels, mask).isfinite()
    labels[13] = 5
    assert fused(logits, labels, mask).isnan()


# Scores.


@pytest.mark.parametrize("trash", [math.nan, math.inf, -math.inf])
def test_what_is_ignored_or_masked_changes_nothing(
    trash: float, kernel_device: str, with_gradient: WithGradient
) -> None:
    logits, labels, mask = problem(kernel_device, 33, 4)
    value, gradient = with_gradient(fused, logits, labels, mask)
    is_out = ~mask | (labels == IGNORED)[:, None]
    assert is_out.any(0).all()
    logits[is_out] = trash
    trash_value, trash_gradient = with_gradient(fused, logits, labels, mask)
    assert torch.equal(value, trash_value)
    assert torch.equal(gradient, trash_gradient)
    assert (gradient[is_out] == 0).all()
    assert (gradient[~is_out] != 0).all()


@pytest.mark.parametrize("label", [2, BACKGROUND])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_counted_score_that_is_not_finite_makes_value_and_gradient_nan(
    wrong: float, label: int, kernel_device: str, with_gradient: WithGradient
) -> None:
    logits, labels, mask = problem(kernel_device, 33, 4)
    labels[20], mask[20, 2] = label, True
    logits[20, 2] = wrong
    value, gradient = with_gradient(fused, logits, labels, mask)
    assert value.isnan()
    assert torch.equal(gradient.isnan(), mask & (labels != IGNORED)[:, None])
    assert (gradient[labels == IGNORED] == 0).all()


@pytest.mark.parametrize("large", [90.0, 300.0, 1e4, 3e38])
@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0, 7.5])
def test_large_scores_have_finite_gradients(
    gamma: float, large: float, kernel_device: str, with_gradient: WithGradient
) -> None:
    logits = torch.tensor([[-large], [large], [large], [-large]], device=kernel_device)
    labels = torch.tensor([BACKGROUND, 0, BACKGROUND, 0], device=kernel_device)
    value, gradient = with_gradient(fused, logits, labels, gamma=gamma)
    assert value.item() == pytest.approx((0.75 * large + 0.25 * large) / 2)
    assert gradient.flatten().tolist() == pytest.approx([0, 0, 0.75 / 2, -0.25 / 2])


def test_a_sum_that_overflows_is_infinite_and_has_a_gradient(
    kernel_device: str, with_gradient: WithGradient
) -> None:
    logits = torch.full((2, 2), 3e38, device=kernel_device)
    labels = torch.full((2,), BACKGROUND, device=kernel_device)
    value, gradient = with_gradient(fused, logits, labels, alpha=None)
    assert value.isposinf()
    assert gradient.flatten().tolist() == pytest.approx([1.0] * 4)


# Shapes and strides.


def test_strided_and_expanded_inputs_are_as_good_as_contiguous_ones(
    kernel_device: str, with_gradient: WithGradient
) -> None:
    logits, labels, mask = problem(kernel_device, 2, 20, 3)
    expected = with_gradient(fused, logits, labels, mask)
    leaf = logits.permute(2, 1, 0).contiguous().requires_grad_()
    value = fused(leaf.permute(2, 1, 0), labels.T.contiguous().T, mask.mT.contiguous().mT)
    value.backward()
    assert leaf.grad is not None
    torch.testing.assert_close((value.detach(), leaf.grad.permute(2, 1, 0)), expected)

    row = logits[:1, :1].clone().requires_grad_()
    fused(row.expand(2, 20, 3), labels, mask).backward()
    _, whole = with_gradient(fused, logits[:1, :1].expand(2, 20, 3), labels, mask)
    assert row.grad is not None
    torch.testing.assert_close(row.grad, whole.sum((0, 1), keepdim=True))


def test_the_whole_gradient_is_written_and_nothing_beside_it(
    kernel_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, labels, _ = problem(kernel_device, 7, 3)
    one = torch.ones((), device=kernel_device)
    room = torch.full((64,), 7.0, device=kernel_device)
    monkeypatch.setattr(torch, "empty_like", lambda like: room[16:37].view(like.shape))
    focal_triton.write_gradient(one, one, logits, labels, None, 2.0, 0.25, 16)
    is_written = room != 7
    assert is_written[16:37].all()
    assert is_written.sum() == 21


# Autograd.


def test_the_gradient_is_scaled_by_the_incoming_one(
    kernel_device: str, with_gradient: WithGradient
) -> None:
    logits, labels, _ = problem(kernel_device, 30, 3)
    _, gradient = with_gradient(fused, logits, labels)
    _, scaled = with_gradient(fused, logits, labels, grad_output=-65536.0)
    assert torch.equal(scaled, -65536 * gradient)


def test_the_value_can_be_changed_in_place(kernel_device: str) -> None:
    logits, labels, _ = problem(kernel_device, 10, 3)
    value = fused(logits.requires_grad_(), labels)
    value /= 2
    value.backward()
    assert logits.grad is not None


def test_it_can_be_read_without_gradients(kernel_device: str) -> None:
    logits, labels, _ = problem(kernel_device, 10, 3)
    expected = fused(logits, labels)
    assert not expected.requires_grad
    with torch.inference_mode():
        assert torch.equal(fused(logits.clone(), labels), expected)
    with torch.no_grad():
        assert not fused(logits.requires_grad_(), labels).requires_grad


def test_it_can_be_differentiated_twice(kernel_device: str) -> None:
    logits, labels, mask = problem(kernel_device, 20, 3)
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    products = []
    for loss in (fused, plain):
        leaf = logits.clone().requires_grad_()
        # Not the leaf itself: the graph behind the logits has to be kept as well.
        value = 3 * loss(leaf * leaf, labels, mask, gamma=1.5)
        (gradient,) = torch.autograd.grad(value, leaf, create_graph=True)
        (product,) = torch.autograd.grad(gradient, leaf, direction.to(kernel_device))
        products.append((gradient.detach(), product))
    torch.testing.assert_close(*products)


def test_activation_checkpointing_gives_the_same_gradient(
    kernel_device: str, with_gradient: WithGradient
) -> None:
    logits, labels, _ = problem(kernel_device, 20, 3)
    expected = with_gradient(lambda x: fused(2 * x, labels), logits)
    again = with_gradient(
        lambda x: checkpoint(lambda y: fused(2 * y, labels), x, use_reentrant=False), logits
    )
    assert torch.equal(again[1], expected[1])


def test_autocast_changes_nothing(kernel_device: str, with_gradient: WithGradient) -> None:
    logits, labels, _ = problem(kernel_device, 20, 3)
    expected = with_gradient(fused, logits, labels)
    with torch.autocast(kernel_device, dtype=torch.bfloat16):
        again = with_gradient(fused, logits, labels)
    assert torch.equal(again[0], expected[0])
    assert torch.equal(again[1], expected[1])


# The operators, for torch.compile.


def test_torch_finds_no_fault_with_the_operators(kernel_device: str) -> None:
    logits, labels, mask = problem(kernel_device, 2, 10, 3)
    leaf = logits.permute(1, 0, 2).requires_grad_()
    for chosen in (None, mask.permute(1, 0, 2)):
        inputs = (leaf, labels.T, chosen, 2.0, 0.25)
        torch.library.opcheck(torch.ops.rankdet.mean_focal_loss, inputs)
        state = (torch.tensor(3.0, device=kernel_device), torch.tensor(0.5, device=kernel_device))
        inputs = (*state, leaf.detach(), labels.T, chosen, 1.5, None)
        torch.library.opcheck(torch.ops.rankdet.write_focal_gradient, inputs)


@pytest.mark.usefixtures("reads_all")
@pytest.mark.parametrize(("gamma", "alpha"), [(2.0, 0.25), (1.5, None)])
def test_compiled_in_one_graph_it_is_the_same(
    gamma: float, alpha: float | None, kernel_device: str, with_gradient: WithGradient
) -> None:
    logits, labels, mask = problem(kernel_device, 2, 20, 3)
    torch.compiler.reset()

    def loss(logits: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
        settings: dict[str, Any] = {"gamma": gamma, "alpha": alpha, "check_finite": False}
        return 2 * focal_loss(logits.permute(1, 0, 2), labels, mask=mask, **settings)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for chosen in (None, mask.permute(1, 0, 2)):
        ours = with_gradient(compiled, logits, labels.T, chosen)
        torch.testing.assert_close(ours, with_gradient(loss, logits, labels.T, chosen))


# Through the public function.


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each call of the fused loss."""
    calls: list[int] = []
    original = focal_triton.fused_focal_loss

    def spy(*arguments: Any) -> Tensor:
        calls.append(1)
        value: Tensor = original(*arguments)
        return value

    monkeypatch.setattr(focal_triton, "fused_focal_loss", spy)
    return calls


@pytest.mark.usefixtures("reads_all")
def test_focal_loss_takes_the_kernels_with_all_of_its_settings(
    launches: list[int], kernel_device: str, with_gradient: WithGradient
) -> None:
    logits, labels, mask = problem(kernel_device, 2, 20, 3)
    for settings in ({"gamma": 1.0, "alpha": 0.6, "mask": mask}, {"alpha": None}, {}):
        ours = with_gradient(focal_loss, logits, labels, **settings)
        expected = with_gradient(plain, logits, labels, **settings)
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-7)
    assert len(launches) == 3


def test_focal_loss_takes_plain_torch_where_kernels_cannot_read(launches: list[int]) -> None:
    focal_loss(torch.zeros(3, 2, dtype=torch.float64), torch.tensor([0, 1, BACKGROUND]))
    focal_loss(torch.zeros(3, 2), torch.tensor([0, 1, BACKGROUND]))
    assert launches == []


@pytest.mark.usefixtures("reads_all")
@pytest.mark.parametrize("shape", [(0, 3), (0, 4, 3), (2, 0, 3), (2, 0)])
def test_an_empty_batch_has_the_value_zero_and_a_connected_graph(
    shape: tuple[int, ...], launches: list[int], kernel_device: str, with_gradient: WithGradient
) -> None:
    labels = torch.full(shape[:-1], BACKGROUND, device=kernel_device)
    value, gradient = with_gradient(focal_loss, torch.empty(shape, device=kernel_device), labels)
    assert value.item() == 0
    assert gradient.shape == shape
    assert launches == []  # no class, no division by the number of classes


@pytest.mark.usefixtures("reads_all")
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_check_finite_says_what_is_wrong_and_where(wrong: float, kernel_device: str) -> None:
    logits, labels, mask = problem(kernel_device, 2, 20, 3)
    labels[0, 0], labels[0, 1], mask[0, 0] = BACKGROUND, IGNORED, True
    logits[0, 1] = math.nan
    focal_loss(logits, labels, mask=mask, check_finite=True)
    logits[0, 0, 2] = wrong
    message = r"logits: 1 of \d+ scores are not finite .*index \(0, 0, 2\): -?(nan|inf)"
    with pytest.raises(FloatingPointError, match=message):
        focal_loss(logits, labels, mask=mask, check_finite=True)
    assert focal_loss(logits, labels, mask=mask, check_finite=False).isnan()


@pytest.mark.usefixtures("reads_all")
def test_inputs_that_do_not_fit_are_refused_before_a_launch(
    launches: list[int], kernel_device: str
) -> None:
    logits, labels, mask = problem(kernel_device, 20, 3)
    with pytest.raises(ValueError, match="labels: expected shape"):
        focal_loss(logits, labels[1:])
    with pytest.raises(ValueError, match=r"mask: expected torch\.bool"):
        focal_loss(logits, labels, mask=mask.float())
    with pytest.raises(ValueError, match="gamma: expected"):
        focal_loss(logits, labels, gamma=-1.0)
    assert launches == []


# On a GPU.


@GPU
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_on_cuda_focal_loss_is_fused_and_close_to_float64(
    dtype: torch.dtype, launches: list[int], with_gradient: WithGradient
) -> None:
    logits, labels, mask = problem("cuda", 4, 3001, 20)
    logits = logits.to(dtype)
    for gamma in (2.0, 1.5):
        ours = with_gradient(focal_loss, logits, labels, mask=mask, gamma=gamma)
        single = with_gradient(plain, logits.float(), labels, mask, gamma=gamma)
        value, gradient = with_gradient(plain, logits.double(), labels, mask, gamma=gamma)
        assert ours[0].item() == pytest.approx(value.item(), rel=1e-6)
        rounded = single[1].to(dtype).double()
        error, plain_error = (g.double() - gradient for g in (ours[1], rounded))
        assert error.norm() <= 2 * plain_error.norm()
    assert len(launches) == 2


@GPU
@pytest.mark.gpu
def test_on_cuda_nothing_waits_for_the_device(with_gradient: WithGradient) -> None:
    logits, labels, mask = problem("cuda", 4, 3001, 20)
    expected = with_gradient(focal_loss, logits, labels, mask=mask)  # compiles the kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = with_gradient(focal_loss, logits, labels, mask=mask)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(again[0], expected[0])
    assert torch.equal(again[1], expected[1])


@GPU
@pytest.mark.gpu
def test_on_cuda_a_graph_captures_it(with_gradient: WithGradient) -> None:
    logits, labels, _ = problem("cuda", 4, 3001, 20)
    other, other_labels, _ = problem("cuda", 4, 3001, 20, seed=1)
    expected = with_gradient(focal_loss, other, other_labels)
    leaf = logits.clone().requires_grad_()
    with_gradient(focal_loss, logits, labels)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = focal_loss(leaf, labels)
        (gradient,) = torch.autograd.grad(value, leaf)
    with torch.no_grad():
        leaf.copy_(other)
    labels.copy_(other_labels)
    graph.replay()
    torch.testing.assert_close((value.detach(), gradient), expected, rtol=0, atol=0)


@GPU
@pytest.mark.gpu
def test_on_cuda_torch_compile_takes_it_whole(with_gradient: WithGradient) -> None:
    logits, labels, mask = problem("cuda", 4, 3001, 20)
    torch.compiler.reset()
    compiled = torch.compile(focal_loss, fullgraph=True)
    ours = with_gradient(compiled, logits, labels, mask=mask)
    torch.testing.assert_close(ours, with_gradient(focal_loss, logits, labels, mask=mask))


@GPU
@pytest.mark.gpu
def test_on_cuda_gradient_scaling_and_autocast_give_the_same_step() -> None:
    weights = []
    for is_mixed in (False, True):
        torch.manual_seed(0)
        layer = torch.nn.Linear(16, 8, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", enabled=is_mixed)
        inputs = torch.randn(500, 16, device="cuda")
        labels = torch.randint(-2, 8, (500,), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16, enabled=is_mixed):
            value = focal_loss(layer(inputs), labels)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        weights.append(layer.weight.detach())
    torch.testing.assert_close(*weights, rtol=1e-2, atol=1e-3)


@GPU
@pytest.mark.gpu
def test_on_cuda_labels_are_not_read_unless_asked(with_gradient: WithGradient) -> None:
    logits, labels, _ = problem("cuda", 20, 5)
    labels[3] = 5
    for check_finite in (None, False, True):  # True is about scores; labels are not raised about
        value, gradient = with_gradient(focal_loss, logits, labels, check_finite=check_finite)
        assert value.isnan()
        assert torch.equal(gradient.isnan().all(-1), labels != IGNORED)


@GPU
@pytest.mark.gpu
@pytest.mark.slow
def test_on_cuda_more_than_two_to_the_31_scores() -> None:
    num_rows, num_classes = 2**31 // 80 + 1001, 80
    logits = torch.full((num_rows, num_classes), -3.0, device="cuda", dtype=torch.bfloat16)
    labels = torch.full((num_rows,), BACKGROUND, device="cuda", dtype=torch.int8)
    labels[-1], labels[0], labels[-2] = 79, 0, IGNORED
    assert logits.numel() > 2**31
    logits.requires_grad_()
    value = focal_loss(logits, labels)
    few_labels = torch.tensor([BACKGROUND, 79, 0, IGNORED], device="cuda")
    few = torch.full((4, num_classes), -3.0, device="cuda", dtype=torch.float64)
    few.requires_grad_()
    parts = [plain(few[i : i + 1], few_labels[i : i + 1]) for i in range(4)]
    expected = (parts[0] * (num_rows - 3) + parts[1] + parts[2]) / 2
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(value * num_rows, logits)
    (judge,) = torch.autograd.grad(sum(parts) * num_rows / 2, few)
    rows = torch.stack([gradient[-3], gradient[-1], gradient[0], gradient[-2]])
    torch.testing.assert_close(rows.double(), judge, rtol=1e-2, atol=0)
