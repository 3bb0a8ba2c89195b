"""The losses on a CUDA device: the same numbers as on the CPU, and NaN instead of questions."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rankdet import losses
from rankdet.losses import BACKGROUND, IGNORED, ap_loss, ap_loss_reference, binary_ap_loss, fused

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ALL_LOSSES = [
    losses.ap_loss,
    losses.auc_loss,
    losses.focal_loss,
    losses.ghm_loss,
    losses.dr_loss,
    losses.smooth_ap_loss,
    losses.hinge_ap_loss,
    losses.ohem_loss,
    losses.cross_entropy_loss,
]


def problem(seed: int, num_anchors: int = 3000) -> tuple[Tensor, Tensor]:
    """Logits (2, A, 5) and labels (2, A) on the CPU, with ignored anchors."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, num_anchors, 5, generator=generator)
    labels = torch.randint(0, 4, (2, num_anchors), generator=generator)
    draw = torch.rand(2, num_anchors, generator=generator)
    labels[draw < 0.9] = BACKGROUND
    labels[draw > 0.97] = IGNORED
    return logits, labels


def gradient(
    loss: Callable[..., Tensor], logits: Tensor, labels: Tensor, **settings: object
) -> Tensor:
    logits = logits.detach().requires_grad_()
    (result,) = torch.autograd.grad(loss(logits, labels, **settings), logits)
    return result.double().cpu()


@pytest.mark.parametrize("loss", ALL_LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_loss_gives_the_numbers_of_the_cpu(
    loss: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    logits, labels = problem(0)
    logits = logits.to(dtype)
    expected = loss(logits, labels)
    actual = loss(logits.cuda(), labels.cuda())
    assert actual.dtype == expected.dtype
    assert actual.item() == pytest.approx(expected.item(), rel=1e-5)
    there, here = gradient(loss, logits.cuda(), labels.cuda()), gradient(loss, logits, labels)
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    assert (there - here).norm() <= tolerance * here.norm()


@pytest.mark.parametrize("step", ["piecewise", "heaviside", "sigmoid"])
@pytest.mark.parametrize("scope", ["batch", "image"])
def test_ap_loss_agrees_with_the_reference(step: str, scope: str) -> None:
    for seed in range(5):
        logits, labels = problem(seed, 300)
        settings = {"step": step, "delta": 0.5}
        targets = torch.nn.functional.one_hot(labels.clamp(min=0), 5)
        targets[labels < 0] = 0
        counted = (labels != IGNORED)[..., None].expand_as(logits)
        if scope == "batch":
            value, update = ap_loss_reference(logits, targets, mask=counted, **settings)
        else:
            parts = [
                ap_loss_reference(x, t, mask=c, **settings)
                for x, t, c in zip(logits, targets, counted, strict=True)
            ]
            value = torch.stack([value for value, _ in parts]).mean()
            update = torch.stack([update for _, update in parts]) / 2
        actual = ap_loss(logits.cuda(), labels.cuda(), scope=scope, **settings)
        assert actual.item() == pytest.approx(value.item(), rel=1e-6)
        ours = gradient(ap_loss, logits.cuda(), labels.cuda(), scope=scope, **settings)
        assert (ours - update).norm() <= 1e-6 * update.norm()


def test_wrong_labels_make_the_loss_nan_without_being_read() -> None:
    logits, labels = problem(1)
    labels[0, 0] = 5
    assert ap_loss(logits.cuda(), labels.cuda()).isnan()
    labels[0, 0] = -3
    assert losses.auc_loss(logits.cuda(), labels.cuda()).isnan()
    assert binary_ap_loss(torch.zeros(3).cuda(), torch.tensor([0, 1, 2]).cuda()).isnan()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_make_value_and_gradient_nan(bad: float) -> None:
    logits, labels = problem(2)
    place = tuple((labels == BACKGROUND).nonzero()[0].tolist())
    logits[place] = bad
    result = gradient(ap_loss, logits.cuda(), labels.cuda())
    assert torch.equal(result.isnan().any(-1), labels != IGNORED)
    with pytest.raises(FloatingPointError, match="5 of"):
        ap_loss(logits.cuda(), labels.cuda(), check_finite=True)


def test_torch_compile_takes_it_whole() -> None:
    logits, labels = (part.cuda() for part in problem(3))
    compiled = torch.compile(ap_loss, fullgraph=True)
    here, there = (gradient(loss, logits, labels) for loss in (ap_loss, compiled))
    assert torch.allclose(here, there, rtol=1e-5)


def test_more_scores_than_one_block_of_the_accelerator() -> None:
    logits = torch.randn(2**25 + 3, 1, device="cuda")
    labels = torch.full((len(logits),), BACKGROUND, device="cuda")
    labels[::500_000] = 0
    there = ap_loss(logits, labels)
    assert there.item() == pytest.approx(ap_loss(logits.cpu(), labels.cpu()).item(), rel=1e-5)


# The fused kernels of AP-loss and AUC-loss.

WithGradient = Callable[..., tuple[Tensor, Tensor]]


def batch(
    *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, positives: float = 0.003
) -> tuple[Tensor, Tensor]:
    """Logits (..., K) and labels on the GPU, as of a half-trained net: positives are higher."""
    generator = torch.Generator("cuda").manual_seed(seed)
    logits = torch.randn(*shape, generator=generator, device="cuda") - 4
    draw = torch.rand(shape[:-1], generator=generator, device="cuda")
    labels = torch.randint(0, shape[-1], shape[:-1], generator=generator, device="cuda")
    labels[draw > positives] = BACKGROUND
    labels[draw > 0.99] = IGNORED
    places = labels.clamp(min=0).unsqueeze(-1)
    logits.scatter_add_(-1, places, 3.0 * (labels >= 0).unsqueeze(-1))
    return logits.to(dtype), labels


@pytest.fixture
def ranking() -> Any:
    """The module of the fused kernels."""
    return pytest.importorskip("rankdet.losses.fused_ranking", exc_type=ImportError)


def assert_near(result: Tensor, update: Tensor) -> None:
    """Fails unless a gradient of the device is the update in float64, as a whole and each entry."""
    error = (result.double().cpu() - update).abs()
    assert error.norm() <= 1e-6 * update.norm()
    assert (error <= 1e-5 * update.abs() + 1e-6 * update.abs().max()).all()


@pytest.mark.parametrize("loss", [ap_loss, losses.auc_loss])
@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((20_000, 3), {}),
        ((20_001, 1), {"step": "heaviside"}),
        ((4, 5000, 20), {"delta": 0.5}),
        ((4, 5000, 20), {"scope": "image"}),
        ((5, 5000, 20), {"scope": 2}),
        ((3, 1001, 7), {"scope": "image", "step": "heaviside"}),
    ],
)
def test_fused_kernels_give_what_the_cpu_gives_in_float64(
    loss: Callable[..., Tensor],
    shape: tuple[int, ...],
    settings: dict[str, Any],
    with_gradient: WithGradient,
) -> None:
    logits, labels = batch(*shape, positives=0.02)
    mask = torch.rand(logits.shape, device="cuda") < 0.9
    for chosen in (None, mask):
        here = None if chosen is None else chosen.cpu()
        value, update = with_gradient(
            loss, logits.double().cpu(), labels.cpu(), mask=here, **settings
        )
        actual, result = with_gradient(loss, logits, labels, mask=chosen, **settings)
        assert actual.item() == pytest.approx(value.item(), rel=1e-6)
        assert_near(result, update)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_kernels_give_the_same_bits_in_every_run(
    dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    logits, labels = batch(8, 32_736, 20, dtype=dtype)
    for settings in ({}, {"step": "heaviside"}):
        value, result = with_gradient(ap_loss, logits, labels, **settings)
        assert 0 < value < 1
        for _ in range(3):
            again, again_result = with_gradient(ap_loss, logits, labels, **settings)
            assert torch.equal(again, value)
            assert torch.equal(again_result, result)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("loss", [ap_loss, losses.auc_loss])
def test_nothing_waits_for_the_device(
    loss: Callable[..., Tensor],
    dtype: torch.dtype,
    ranking: Any,
    with_gradient: WithGradient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("waits for the number of positives")

    monkeypatch.setattr(ranking, "_Arrival", refuse)
    logits, labels = batch(8, 2000, 20, dtype=dtype)
    value, result = with_gradient(loss, logits, labels)  # compiles the kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        again, again_result = with_gradient(loss, logits, labels)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(again, value)
    assert torch.equal(again_result, result)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_more_positives_than_there_is_room_for(
    is_compiled: bool, ranking: Any, with_gradient: WithGradient
) -> None:
    logits, labels = batch(300_000, 1, positives=1 / 3)
    assert (labels >= 0).sum() > ranking.CAPACITY
    value, update = with_gradient(ap_loss, logits.double().cpu(), labels.cpu())
    torch.compiler.reset()
    loss = torch.compile(ap_loss, fullgraph=True) if is_compiled else ap_loss
    actual, result = with_gradient(loss, logits, labels)
    assert actual.item() == pytest.approx(value.item(), rel=1e-6)
    assert_near(result, update)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_and_eager_losses_of_a_detector_agree(
    dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    torch.compiler.reset()
    compiled = torch.compile(ap_loss, fullgraph=True)
    for seed in (0, 1):
        logits, labels = batch(8, 32_736, 20, dtype=dtype, seed=seed)
        value, result = with_gradient(ap_loss, logits, labels)
        again, again_result = with_gradient(compiled, logits, labels)
        assert torch.equal(again, value)
        assert torch.equal(again_result, result)


def test_a_cuda_graph_ranks_new_contents(ranking: Any, with_gradient: WithGradient) -> None:
    logits, labels = batch(8, 10_000, 20, positives=0.001)
    with_gradient(ap_loss, logits, labels)  # compiles the kernels
    leaf = logits.clone().requires_grad_()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = ap_loss(leaf, labels)
        (result,) = torch.autograd.grad(value, leaf)
    for seed, positives in ((0, 0.001), (1, 0.02), (2, 0.0)):
        new, new_labels = batch(8, 10_000, 20, seed=seed, positives=positives)
        with torch.no_grad():
            leaf.copy_(new)
        labels.copy_(new_labels)
        graph.replay()
        expected, expected_result = with_gradient(ap_loss, new, new_labels)
        assert torch.equal(value.detach(), expected)
        assert torch.equal(result, expected_result)


def test_a_cuda_graph_makes_more_positives_than_there_is_room_for_nan(
    ranking: Any, with_gradient: WithGradient
) -> None:
    logits, labels = batch(300_000, 1, positives=0.1)
    expected, expected_result = with_gradient(ap_loss, logits, labels)
    leaf = logits.clone().requires_grad_()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = ap_loss(leaf, labels)
        (result,) = torch.autograd.grad(value, leaf)
    graph.replay()
    assert torch.equal(value.detach(), expected)
    assert torch.equal(result, expected_result)
    labels.masked_fill_(labels == BACKGROUND, 0)
    assert (labels >= 0).sum() > ranking.CAPACITY
    graph.replay()
    assert value.isnan()
    assert torch.equal(result.isnan()[:, 0], labels != IGNORED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("step", ["piecewise", "heaviside"])
def test_the_loss_needs_little_more_memory_than_its_gradient(dtype: torch.dtype, step: str) -> None:
    logits, labels = batch(8, 32_736, 20, dtype=dtype)
    logits.requires_grad_()
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        (result,) = torch.autograd.grad(ap_loss(logits, labels, step=step), logits)
        growth = torch.cuda.max_memory_allocated() - before
        size = result.numel() * result.element_size()
        assert size <= growth <= size + (32 << 20)
        del result


def test_autocast_gradient_scaling_and_checkpoints_give_the_same_step() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    inputs = torch.randn(2000, 16, device="cuda", generator=generator)
    labels = batch(2000, 8, positives=0.1)[1]
    gradients = []
    for is_mixed, is_checkpointed in ((False, False), (False, True), (True, True)):
        torch.manual_seed(0)
        layer = torch.nn.Linear(16, 8, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", enabled=is_mixed)

        def loss(inputs: Tensor, layer: torch.nn.Module = layer) -> Tensor:
            return ap_loss(layer(inputs), labels)

        with torch.autocast("cuda", dtype=torch.float16, enabled=is_mixed):
            value = (
                checkpoint(loss, inputs, use_reentrant=False) if is_checkpointed else loss(inputs)
            )
        assert value.dtype == torch.float32
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        assert layer.weight.grad is not None
        gradients.append(layer.weight.grad)
        scaler.step(optimizer)
    assert torch.equal(gradients[0], gradients[1])
    torch.testing.assert_close(gradients[0], gradients[2], rtol=2e-2, atol=1e-4)


def test_second_derivatives_are_refused() -> None:
    logits, labels = (part.cuda() for part in problem(4))
    leaf = logits.requires_grad_()
    (first,) = torch.autograd.grad(ap_loss(leaf, labels), leaf, create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()


def test_without_triton_plain_torch_gives_the_same(
    ranking: Any,
    with_gradient: WithGradient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    logits, labels = batch(4, 3000, 5, positives=0.02)
    value, result = with_gradient(ap_loss, logits, labels)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the fused kernels are not there")

    monkeypatch.setattr(ranking, "fused_loss", refuse)
    with pytest.raises(AssertionError, match="not there"):
        ap_loss(logits, labels)
    monkeypatch.setattr(fused, "_HAS_TRITON", False)
    monkeypatch.setattr(fused, "_told", [])
    with caplog.at_level(logging.WARNING, logger="rankdet"):
        for _ in range(2):
            plain, plain_result = with_gradient(ap_loss, logits, labels)
    assert len(caplog.records) == 1
    assert plain.item() == pytest.approx(value.item(), rel=1e-5)
    assert (plain_result - result).norm() <= 1e-5 * result.norm()


def test_histograms_that_many_programs_share_count_in_a_second_number(ranking: Any) -> None:
    logits = batch(1 << 24, 1)[0]
    labels = torch.full((1 << 24,), BACKGROUND, device="cuda")
    labels[:: (1 << 24) // 40] = 0
    shifts, results = [], []
    for capacity, room in ((None, ranking.DEFAULT_BLOCKS.room), (64, 0)):
        blocks = ranking.DEFAULT_BLOCKS._replace(room=room)
        value, state = ranking.rank(
            logits, labels, None, "interpolated_ap", 1.0, capacity, blocks=blocks
        )
        scale = torch.ones((), device="cuda")
        result = ranking.write_update(scale, logits, labels, None, state, 1.0, blocks=blocks)
        shifts.append(state.header[ranking.ap_triton.COUNT_SHIFT.value].item())
        results.append((value, result))
    assert shifts[0] > 0
    assert shifts[1] == 0
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.slow
def test_more_scores_than_32_bits_can_count() -> None:
    num_rows, num_classes = 2**31 // 80 + 1001, 80
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("needs 20 GiB")
    logits = torch.full((num_rows, num_classes), -3.0, device="cuda", dtype=torch.bfloat16)
    labels = torch.full((num_rows,), BACKGROUND, device="cuda", dtype=torch.int8)
    labels[-1], labels[0], labels[-2] = 79, 0, IGNORED
    logits[-1, 79], logits[0, 0], logits[-1, 5], logits[-2] = 0.0, -3.5, 0.5, math.nan
    assert logits.numel() > 2**31
    logits.requires_grad_()
    # Above -3.5 stand the other positive, f(1/2) = 3/4 of all negatives and one whole; above 0
    # one, by 3/4.
    num_negatives = (num_rows - 1) * num_classes - 2
    above = 0.75 * (num_negatives - 1) + 1
    low, high = above / (2 + above), 3 / 7
    weight = low / above
    value = ap_loss(logits, labels)
    assert value.item() == pytest.approx((low + high) / 2, rel=1e-6)
    (result,) = torch.autograd.grad(value * num_rows, logits)
    of_many = 0.75 * weight / 2 * num_rows
    expected = torch.full((4, num_classes), of_many, dtype=torch.float64)
    expected[1, 79], expected[1, 5] = -high / 2 * num_rows, (weight + high) / 2 * num_rows
    expected[2, 0] = -low / 2 * num_rows
    expected[3] = 0
    rows = torch.stack([result[-3], result[-1], result[0], result[-2]])
    torch.testing.assert_close(rows.double().cpu(), expected, rtol=1e-2, atol=0)
    assert (result[1:-2] == result[1, 0]).all()
