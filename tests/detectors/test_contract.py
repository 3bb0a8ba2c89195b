"""What every detector keeps to, whichever it is: input, freezing, copies, types, compiling.

What is of one detector alone stands in its own file.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankdet.detectors import anchors
from rankdet.detectors.detector import Detector, freeze
from rankdet.detectors.faster_rcnn import make_faster_rcnn
from rankdet.detectors.retinanet import make_retinanet
from rankdet.detectors.ssd import make_ssd
from rankdet.structures import Predictions

NUM_CLASSES = 3
STAGES = {"retinanet": ["retinanet"], "ssd": ["ssd"], "faster_rcnn": ["rpn", "roi"]}
Make = Callable[..., Detector]


def make_detector(name: str, **options: Any) -> Detector:
    torch.manual_seed(0)
    options = {"backbone": "small", "norm": "group", **options}
    if name == "retinanet":
        return make_retinanet(NUM_CLASSES, **{"head_norm": "group", **options})
    if name == "ssd":
        return make_ssd(NUM_CLASSES, **options)
    return make_faster_rcnn(
        NUM_CLASSES, anchor_scale=2.0, num_proposals=60, num_test_proposals=40, **options
    )


@pytest.fixture(params=STAGES)
def name(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
def make(name: str) -> Make:
    return lambda **options: make_detector(name, **options)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(4))


def assert_same(found: list[Predictions], expected: list[Predictions]) -> None:
    """To the bit."""
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.logits, other.logits)
        assert torch.equal(one.deltas, other.deltas)
        assert torch.equal(one.anchors, other.anchors)


def assert_close(found: list[Predictions], expected: list[Predictions]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.logits, other.logits)
        torch.testing.assert_close(one.deltas, other.deltas)
        torch.testing.assert_close(one.anchors, other.anchors)


def total(stages: list[Predictions]) -> Tensor:
    return sum(
        (stage.logits.square().sum() + stage.deltas.sum() for stage in stages), torch.zeros(())
    )


# ---- what goes in and comes out


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_stages_have_their_names_and_a_row_for_each_anchor(
    name: str, make: Make, activation: str, images: Tensor
) -> None:
    stages = make(activation=activation).eval()(images)
    assert [stage.name for stage in stages] == STAGES[name]
    for stage in stages:
        num_anchors = stage.anchors.shape[-2]
        assert stage.logits.shape[:2] == stage.deltas.shape[:2] == (2, num_anchors)
        assert sum(stage.level_sizes) == num_anchors
        assert stage.logits.isfinite().all()
    assert stages[-1].logits.shape[2] == NUM_CLASSES + (activation == "softmax")


@pytest.mark.parametrize(("height", "width"), [(32, 32), (100, 70), (33, 257), (1, 1)])
def test_any_image_size_will_do(make: Make, height: int, width: int) -> None:
    for stage in make().eval()(torch.rand(1, 3, height, width)):
        assert sum(stage.level_sizes) == stage.anchors.shape[-2] == stage.logits.shape[1] > 0
        assert stage.logits.isfinite().all()


def test_an_image_has_the_same_predictions_in_any_batch(make: Make, images: Tensor) -> None:
    detector = make().double().eval()
    together, alone = detector(images.double()), detector(images[1:].double())
    for one, other in zip(together, alone, strict=True):
        number = other.logits.shape[1]  # there may be padding for an image with more proposals
        torch.testing.assert_close(one.logits[1:, :number], other.logits)
        torch.testing.assert_close(one.deltas[1:, :number], other.deltas)


@pytest.mark.parametrize(
    "wrong",
    [torch.rand(3, 32, 32), torch.rand(1, 4, 32, 32), torch.zeros(1, 3, 32, 32).byte()],
)
def test_what_is_no_batch_of_images_is_refused(make: Make, wrong: Tensor) -> None:
    with pytest.raises(ValueError, match=r"images: expected \(B, 3, H, W\) of a float type, got"):
        make()(wrong)


@pytest.mark.parametrize("sizes", [[(64, 64)], [64, 64], torch.zeros(2, 3)])
def test_sizes_are_one_of_each_image(make: Make, images: Tensor, sizes: Any) -> None:
    with pytest.raises(ValueError, match="sizes: expected a height and width for each image, got"):
        make()(images, sizes=sizes)


def test_the_normalisation_is_not_saved_but_moves_with_the_detector(make: Make) -> None:
    detector = make()
    assert not {"mean", "deviation"} & set(detector.state_dict())
    assert {name for name, _ in detector.named_buffers()} == {"mean", "deviation"}
    assert detector.double().mean.dtype == torch.float64


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_no_images_give_empty_predictions_that_reach_all_parameters(make: Make, norm: str) -> None:
    detector = make(norm=norm)
    before = copy.deepcopy(detector.state_dict())
    stages = detector(torch.rand(0, 3, 32, 64))
    full = detector.eval()(torch.rand(1, 3, 32, 64))
    for stage, other in zip(stages, full, strict=True):
        assert len(stage.logits) == len(stage.deltas) == 0
        assert stage.logits.shape[2:] == other.logits.shape[2:]
        assert stage.has_own_anchors is other.has_own_anchors
        if not stage.has_own_anchors:
            assert torch.equal(stage.anchors, other.anchors)
    total(stages).backward()
    assert all(p.grad is not None and not p.grad.any() for p in detector.parameters())
    assert all(torch.equal(value, before[name]) for name, value in detector.state_dict().items())


@pytest.mark.parametrize("is_training", [True, False])
def test_no_images_leave_the_mode_as_it_was(make: Make, is_training: bool) -> None:
    detector = make().train(is_training)
    detector(torch.rand(0, 3, 32, 32))
    assert all(layer.training is is_training for layer in detector.modules())


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_class_outputs_name_layers_with_a_row_for_each_anchor_and_column(
    make: Make, activation: str
) -> None:
    detector = make(activation=activation)
    columns = NUM_CLASSES + (activation == "softmax")
    state, outputs = detector.state_dict(), detector.class_outputs()
    assert outputs[0].width == 1
    for output in outputs:
        rows = output.num_anchors * columns * output.width
        assert len(state[f"{output.name}.bias"]) == len(state[f"{output.name}.weight"]) == rows


# ---- anchors are kept


def anchors_of(detector: Detector, height: int, width: int) -> Tensor:
    return detector(torch.rand(1, 3, height, width))[0].anchors


def test_anchors_are_made_once_for_each_size(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "_MOST_KEPT", 2)
    detector = make().eval()
    sizes = [(64, 64), (64, 96), (64, 64), (96, 64), (64, 64), (64, 96)]
    found = [anchors_of(detector, *size) for size in sizes]
    assert found[2] is found[4] is found[0]  # used in between: the oldest that is not was let go
    assert found[5] is not found[1]
    for size, boxes in zip(sizes, found, strict=True):
        assert torch.equal(boxes, anchors_of(make().eval(), *size))


def test_anchors_kept_in_inference_mode_can_be_trained_with(make: Make) -> None:
    detector = make()
    with torch.inference_mode():
        kept = anchors_of(detector, 64, 64)
    assert anchors_of(detector, 64, 64) is kept
    assert not kept.is_inference()  # autograd refuses to keep such tensors for backward


# ---- freezing


@pytest.mark.parametrize("num_stages", [-1, 6])
def test_freezing_more_stages_than_there_are_is_refused(make: Make, num_stages: int) -> None:
    with pytest.raises(ValueError, match=f"num_stages: expected 0 to 5, got {num_stages}"):
        freeze(make(), num_stages)


def test_the_statistics_of_frozen_stages_do_not_move(make: Make, images: Tensor) -> None:
    detector = make(norm="batch")
    freeze(detector, 2)
    for _ in range(2):  # right after freezing, and after the mode was set
        before = copy.deepcopy(detector.body.state_dict())
        detector(images)
        for name, value in detector.body.state_dict().items():
            is_held = name.startswith(("stem", "layer1")) or "running" not in name
            if "num_batches_tracked" not in name:
                assert torch.equal(value, before[name]) is is_held, name
        detector.eval()
        detector.train()


def test_the_mode_of_layers_that_are_not_frozen_follows_the_detector(make: Make) -> None:
    detector = make(norm="batch")
    freeze(detector, 1)
    frozen = {layer for module in detector.freezable_stages[0] for layer in module.modules()}
    norms = {layer for layer in detector.modules() if isinstance(layer, nn.BatchNorm2d)}
    assert norms & frozen
    assert norms - frozen
    for mode in (False, True):
        assert detector.train(mode) is detector
        assert detector.training is mode
        assert all(layer.training is mode for layer in norms - frozen)
        assert not any(layer.training for layer in norms & frozen)


@pytest.mark.parametrize("norm", ["group", "batch", "frozen"])
def test_the_gradient_reaches_every_parameter_that_is_not_frozen(
    make: Make, norm: str, images: Tensor
) -> None:
    detector = make(norm=norm)
    freeze(detector, 2)
    total(detector(images)).backward()
    for name, parameter in detector.named_parameters():
        is_reached = parameter.grad is not None and bool(parameter.grad.any())
        assert is_reached is parameter.requires_grad, name


# ---- copies


def test_a_copy_is_independent_and_gives_the_same(make: Make, images: Tensor) -> None:
    detector = make().eval()
    copied = copy.deepcopy(detector)
    expected = detector(images)
    with torch.no_grad():
        for parameter in detector.parameters():
            parameter.add_(1.0)
    assert_same(copied(images), expected)


def test_a_state_dict_makes_another_detector_the_same(make: Make, images: Tensor) -> None:
    first, second = make(norm="batch").eval(), make(norm="batch").eval()
    with torch.no_grad():
        for value in first.state_dict().values():
            if value.is_floating_point():
                value.add_(0.1 * torch.rand_like(value))
    assert not torch.equal(first(images)[0].logits, second(images)[0].logits)
    second.load_state_dict(first.state_dict(), strict=True)
    assert_same(second(images), first(images))


# ---- how it is run


def test_outputs_are_narrow_under_autocast_and_anchors_are_not(make: Make, images: Tensor) -> None:
    detector = make().eval()
    expected = detector(images)
    with torch.autocast("cpu", torch.bfloat16):
        stages = detector(images)
    for stage, other in zip(stages, expected, strict=True):
        assert stage.logits.dtype == stage.deltas.dtype == torch.bfloat16
        assert stage.anchors.dtype == torch.float32
        if not stage.has_own_anchors:  # proposals change places where their scores are close
            assert torch.equal(stage.anchors, other.anchors)
            torch.testing.assert_close(stage.logits.float(), other.logits, atol=0.1, rtol=0.05)


def test_a_detector_of_float64_computes_in_it(make: Make, images: Tensor) -> None:
    stages = make().double().eval()(images.double())
    expected = make().eval()(images)
    for stage, other in zip(stages, expected, strict=True):
        assert stage.logits.dtype == stage.deltas.dtype == torch.float64
        torch.testing.assert_close(stage.logits.float(), other.logits, atol=1e-3, rtol=1e-3)
    assert stages[0].anchors.dtype == torch.float32


@pytest.mark.parametrize("name", ["retinanet", "ssd"])  # torchvision's RoIAlign has no such type
def test_a_detector_of_bfloat16_computes_in_it(name: str, images: Tensor) -> None:
    (stage,) = make_detector(name).bfloat16().eval()(images.bfloat16())
    assert stage.logits.dtype == stage.deltas.dtype == torch.bfloat16
    assert stage.anchors.dtype == torch.float32
    assert stage.logits.isfinite().all()


def test_channels_last_changes_nothing_and_is_kept(make: Make, images: Tensor) -> None:
    detector = make().double().eval()
    expected = detector(images.double())
    layouts = []
    detector.backbone.register_forward_hook(
        lambda *call: layouts.extend(
            tensor.is_contiguous(memory_format=torch.channels_last)
            for tensor in (call[1][0], call[2]["0"])
        )
    )
    detector.to(memory_format=torch.channels_last)
    stages = detector(images.double().to(memory_format=torch.channels_last))
    assert_close(stages, expected)
    assert layouts == [True, True]


def test_its_parts_can_be_compiled_in_place(make: Make, images: Tensor) -> None:
    detector = make().eval()
    expected = detector(images)
    names = set(detector.state_dict())
    assert len(detector.compilable_parts) == 2
    for part in detector.compilable_parts:
        part.compile(backend="eager")  # which needs no compiler
    assert_close(detector(images), expected)
    assert set(detector.state_dict()) == names


@pytest.mark.gpu
@torch.no_grad()
def test_a_gpu_says_the_same(make: Make, images: Tensor) -> None:
    detector = make().double().eval()
    expected = detector(images.double())
    stages = detector.to("cuda")(images.double().to("cuda"))
    for stage, other in zip(stages, expected, strict=True):
        assert stage.logits.is_cuda
        assert stage.anchors.is_cuda
        # Proposals are decoded in float64 as well: their order is the same.
        torch.testing.assert_close(stage.anchors.cpu(), other.anchors, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(stage.logits.cpu(), other.logits, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(stage.deltas.cpu(), other.deltas, atol=1e-6, rtol=1e-5)
