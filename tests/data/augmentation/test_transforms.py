"""Augmentation and resizing of one image: worked by hand, then properties over many keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankdet.data.augmentation import transforms
from rankdet.data.augmentation.batched import (
    BatchedFlipResize,
    BatchedFlipScaleJitter,
    BatchedSSDAugmentation,
)
from rankdet.data.augmentation.parameters import (
    JitterSettings,
    SSDParameters,
    SSDSettings,
    sample_flip,
)
from rankdet.data.augmentation.transforms import (
    FlipResize,
    FlipScaleJitter,
    ResizeFixed,
    ResizeShorter,
    SSDAugmentation,
    WithoutIgnored,
    adjust_colours,
    without_ignored,
)
from rankdet.data.randomness import SampleKey
from rankdet.structures import Target

KEY = SampleKey(0, 0, 0)
MEAN = torch.tensor([0.485, 0.456, 0.406])


def make_target(boxes: list[list[float]], size: tuple[int, int]) -> Target:
    """Labels count up, every second object is ignored, areas are half of the boxes' (masks)."""
    corners = torch.tensor(boxes).view(-1, 4)
    numbers = torch.arange(len(corners))
    areas = (corners[:, 2:] - corners[:, :2]).prod(dim=1) / 2
    return Target(corners, numbers, numbers % 2 == 1, areas, image_id=7, size=size)


def make_image(height: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)


def neutral(**changes: Any) -> SSDParameters:
    """Parameters of one sample that do nothing, but for the changes."""
    values: dict[str, Any] = {
        "brightness": 0.0,
        "contrast": 1.0,
        "is_contrast_first": True,
        "saturation": 1.0,
        "hue": 0.0,
        "lighting": [0.0, 0.0, 0.0],
        "canvases": [4, 4],
        "offsets": [0, 0],
        "crops": [0, 0, 4, 4],
        "is_flipped": False,
    }
    return SSDParameters(
        **{name: torch.tensor([value]) for name, value in (values | changes).items()}
    )


def colour(pixel: list[float], **changes: Any) -> list[float]:
    """What becomes of one pixel, rounded."""
    image = torch.tensor(pixel).view(3, 1, 1)
    return [
        round(value, 4) for value in adjust_colours(image, neutral(**changes)).flatten().tolist()
    ]


# --- colours


def test_neutral_parameters_leave_the_colours() -> None:
    assert colour([0.2, 0.4, 0.9]) == [0.2, 0.4, 0.9]


def test_brightness_is_added_and_clamped() -> None:
    assert colour([0.2, 0.4, 0.95], brightness=0.1) == [0.3, 0.5, 1.0]
    assert colour([0.05, 0.4, 0.9], brightness=-0.1) == [0.0, 0.3, 0.8]


def test_contrast_is_a_factor_and_clamped() -> None:
    assert colour([0.2, 0.4, 0.9], contrast=1.5) == [0.3, 0.6, 1.0]
    assert colour([0.2, 0.4, 0.9], contrast=0.5, is_contrast_first=False) == [0.1, 0.2, 0.45]


def test_saturation_blends_with_grey() -> None:
    grey = 0.2989 * 0.2 + 0.587 * 0.4 + 0.114 * 0.9
    assert colour([0.2, 0.4, 0.9], saturation=0.0) == [round(grey, 4)] * 3
    halfway = [round((value + grey) / 2, 4) for value in (0.2, 0.4, 0.9)]
    assert colour([0.2, 0.4, 0.9], saturation=0.5) == halfway


def test_a_third_of_a_turn_makes_red_green_and_green_blue() -> None:
    assert colour([1.0, 0.0, 0.0], hue=1 / 3) == [0.0, 1.0, 0.0]
    assert colour([0.0, 0.8, 0.2], hue=1 / 3) == [0.2, 0.0, 0.8]


def test_a_turn_of_eighteen_degrees_mixes_red_with_yellow() -> None:
    assert colour([1.0, 0.0, 0.0], hue=0.05) == [1.0, 0.3, 0.0]
    assert colour([1.0, 0.0, 0.0], hue=-0.05) == [1.0, 0.0, 0.3]


def test_lighting_is_added_to_each_channel() -> None:
    assert colour([0.2, 0.4, 0.95], lighting=[-0.3, 0.1, 0.2]) == [0.0, 0.5, 1.0]


def test_contrast_comes_before_or_after_the_saturation() -> None:
    # Before: 0.9 * 1.5 is clamped to 1. After: the blend is below it and stays.
    grey_before = 0.2989 * 1.0 + (0.587 + 0.114) * 0.45
    before = [round(value, 4) for value in (0.5 + grey_before / 2, 0.225 + grey_before / 2)]
    grey_after = 0.2989 * 0.9 + (0.587 + 0.114) * 0.3
    after = [
        1.0 if value > 1 else round(value, 4)
        for value in (1.5 * (0.45 + grey_after / 2), 1.5 * (0.15 + grey_after / 2))
    ]
    changes = {"contrast": 1.5, "saturation": 0.5}
    assert colour([0.9, 0.3, 0.3], **changes, is_contrast_first=True) == [*before, before[1]]
    assert colour([0.9, 0.3, 0.3], **changes, is_contrast_first=False) == [*after, after[1]]
    assert before != after


def test_contrast_after_comes_after_the_hue_and_before_the_lighting() -> None:
    changes = {"contrast": 1.5, "is_contrast_first": False, "lighting": [-0.5, 0.0, 0.0]}
    assert colour([0.8, 0.0, 0.0], **changes) == [0.5, 0.0, 0.0]


def test_brightness_comes_before_the_contrast() -> None:
    assert colour([0.4, 0.4, 0.4], brightness=0.1, contrast=0.5) == [0.25, 0.25, 0.25]
    assert colour([1.0, 0.0, 0.4], brightness=0.1, contrast=0.5) == [0.5, 0.05, 0.25]


# --- geometry, step by step


def test_expansion_puts_the_image_into_a_canvas_of_the_mean_colour() -> None:
    image = make_image(2, 3) / 255
    target = make_target([[0, 0, 2, 1]], (2, 3))
    pixels, moved = transforms.expand(image, target, (5, 7), (1, 3), min_side=1)
    assert pixels.shape == (3, 5, 7)
    assert torch.equal(pixels[:, 1:3, 3:6], image)
    pixels[:, 1:3, 3:6] = MEAN[:, None, None]
    assert torch.equal(pixels, MEAN[:, None, None].expand(3, 5, 7))
    assert moved.boxes.tolist() == [[3, 1, 5, 2]]
    assert moved.areas.tolist() == [1]
    assert moved.size == (5, 7)


def test_a_crop_keeps_boxes_by_their_centre_and_clips_them() -> None:
    boxes = [
        [0.0, 0.0, 6.0, 4.0],  # centre (3, 2): inside, clipped to the window
        [4.0, 3.0, 6.0, 5.0],  # inside as a whole
        [0.0, 0.0, 3.0, 8.0],  # centre (1.5, 4): outside
        [0.0, 2.0, 4.0, 4.0],  # centre (2, 3): on the left edge, outside
        [5.0, 5.0, 9.0, 7.0],  # centre (7, 6): on the lower edge, outside
    ]
    image = make_image(8, 10) / 255
    target = make_target(boxes, (8, 10))
    pixels, kept = transforms.crop(image, target, (2, 1, 8, 6), min_side=1)
    assert torch.equal(pixels, image[:, 1:6, 2:8])
    assert kept.boxes.tolist() == [[0, 0, 4, 3], [2, 2, 4, 4]]
    assert kept.labels.tolist() == [0, 1]
    assert kept.is_ignored.tolist() == [False, True]
    assert kept.areas.tolist() == [6, 2]  # half of the box, before and after
    assert kept.size == (5, 6)
    assert kept.image_id == 7


def test_a_flip_exchanges_left_and_right() -> None:
    image = make_image(2, 5) / 255
    pixels, moved = transforms.flip(image, make_target([[0.5, 0, 2, 1]], (2, 5)))
    assert torch.equal(pixels, image.flip(2))
    assert moved.boxes.tolist() == [[3, 0, 4.5, 1]]
    assert moved.areas.tolist() == [0.75]
    assert moved.size == (2, 5)


def test_resizing_interpolates_between_the_centres_of_pixels() -> None:
    image = torch.tensor([0.0, 0.8]).expand(3, 1, 2).contiguous()
    target = make_target([[0, 0, 1, 1]], (1, 2))
    pixels, moved = transforms.resize(image, target, (2, 4), min_side=1)
    torch.testing.assert_close(pixels[0], torch.tensor([[0.0, 0.2, 0.6, 0.8]] * 2))
    assert moved.boxes.tolist() == [[0, 0, 2, 2]]
    assert moved.areas.tolist() == [2]
    assert moved.size == (2, 4)


def test_white_stays_white_when_it_is_resized() -> None:
    for size in range(2, 40):  # for many of them the weights add up to 1 + 1e-7
        white = torch.full((3, 1, 1), 255, dtype=torch.uint8)
        assert ResizeFixed(size)(white, make_target([], (1, 1)), KEY)[0].max() <= 1


def test_resizing_to_less_does_not_smooth() -> None:
    image = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0]).expand(3, 1, 6).contiguous()
    pixels, _ = transforms.resize(image, make_target([], (1, 6)), (1, 2), min_side=1)
    assert pixels[0].tolist() == [[0.0, 0.0]]  # pixels 1 and 4, and nothing else


Step = Callable[[Tensor, Target], tuple[Tensor, Target]]


@pytest.mark.parametrize(
    "step",
    [
        lambda image, target: transforms.expand(image, target, (6, 6), (1, 1), min_side=2),
        lambda image, target: transforms.crop(image, target, (0, 0, 4, 4), min_side=2),
        lambda image, target: transforms.resize(image, target, (4, 4), min_side=2),
    ],
    ids=["expand", "crop", "resize"],
)
def test_a_step_drops_boxes_that_are_too_small(step: Step) -> None:
    target = make_target([[0, 0, 2, 2], [0, 0, 1.9, 4], [0, 0, 4, 1.9], [1, 1, 4, 4]], (4, 4))
    _, kept = step(torch.zeros(3, 4, 4), target)
    assert kept.labels.tolist() == [0, 3]


def test_a_box_is_dropped_when_its_visible_part_is_too_small() -> None:
    target = make_target([[0, 0, 2.6, 4]], (4, 8))
    assert len(transforms.crop(torch.zeros(3, 4, 8), target, (1, 0, 8, 4), min_side=2)[1]) == 0
    assert len(transforms.crop(torch.zeros(3, 4, 8), target, (1, 0, 8, 4), min_side=1.5)[1]) == 1


# --- whole transforms


def test_the_chain_in_its_order_by_hand() -> None:
    """4 x 4, expanded to 8 x 8 at (2, 4), cropped to 4 x 4 around (4, 2), flipped, halved."""
    image = torch.zeros(3, 4, 4, dtype=torch.uint8)
    image[:, :2, :2] = 255
    target = make_target([[0, 0, 2, 2], [2, 2, 4, 4]], (4, 4))
    parameters = neutral(
        brightness=-0.25, canvases=[8, 8], offsets=[2, 4], crops=[2, 0, 6, 4], is_flipped=True
    )
    pixels, moved = transforms.augment_image(image, target, parameters, size=2)
    expected = MEAN[:, None, None].repeat(1, 2, 2)
    expected[:, 1, 0] = 0.75  # brightness does not reach the canvas around the image
    torch.testing.assert_close(pixels, expected)
    assert moved.boxes.tolist() == [[0, 1, 1, 2]]
    assert moved.labels.tolist() == [0]
    assert moved.areas.tolist() == [0.5]
    assert moved.size == (2, 2)


def no_ssd_steps() -> SSDSettings:
    names = [field.name for field in dataclasses.fields(SSDSettings)]
    never = {name: 0.0 for name in names if name.endswith("probability")}
    return SSDSettings(**never, crop_minimum_ious=(None,))  # type: ignore[arg-type]


def test_a_chain_without_steps_is_a_resize() -> None:
    image, target = make_image(20, 30), make_target([[1, 2, 13, 17]], (20, 30))
    pixels, moved = SSDAugmentation(16, no_ssd_steps())(image, target, KEY)
    expected, expected_target = ResizeFixed(16)(image, target, KEY)
    torch.testing.assert_close(pixels, expected)
    assert torch.equal(moved.boxes, expected_target.boxes)


def test_fixed_resizing_ignores_the_aspect() -> None:
    image, target = make_image(20, 30), make_target([[3, 5, 15, 20]], (20, 30))
    pixels, moved = ResizeFixed(60)(image, target, KEY)
    assert pixels.shape == (3, 60, 60)
    assert moved.boxes.tolist() == [[6, 15, 30, 60]]
    assert moved.size == (60, 60)


def test_resizing_by_the_shorter_side_keeps_the_aspect() -> None:
    image, target = make_image(20, 30), make_target([[3, 5, 15, 20]], (20, 30))
    pixels, moved = ResizeShorter(shorter=40, longest=100)(image, target, KEY)
    assert pixels.shape == (3, 40, 60)
    assert moved.boxes.tolist() == [[6, 10, 30, 40]]
    assert ResizeShorter(shorter=40, longest=45)(image, target, KEY)[0].shape == (3, 30, 45)


def test_resizing_to_the_same_size_changes_no_pixel() -> None:
    image = make_image(8, 8)
    pixels, _ = ResizeFixed(8)(image, make_target([], (8, 8)), KEY)
    torch.testing.assert_close(pixels, image / 255)


def test_jitter_flips_and_scales() -> None:
    jitter = FlipScaleJitter(JitterSettings(shorter=(40, 40), longest=100, flip_probability=1.0))
    image, target = make_image(20, 30), make_target([[3, 5, 15, 20]], (20, 30))
    pixels, moved = jitter(image, target, KEY)
    expected, _ = ResizeShorter(40, 100)(image.flip(2), target, KEY)
    torch.testing.assert_close(pixels, expected)
    assert moved.boxes.tolist() == [[30, 10, 54, 40]]
    assert moved.size == (40, 60)


def test_the_flip_alone_mirrors_some_samples_and_resizes_all() -> None:
    image, target = make_image(20, 30), make_target([[3, 5, 15, 20]], (20, 30))
    plain, _ = ResizeFixed(60)(image, target, KEY)
    boxes = []
    for index in range(20):
        key = SampleKey(0, 0, index)
        pixels, moved = FlipResize(60)(image, target, key)
        is_flipped = bool(sample_flip([key], 60).is_flipped)
        torch.testing.assert_close(pixels, plain.flip(2) if is_flipped else plain)
        assert moved.size == (60, 60)
        assert moved.boxes.tolist() == ([[30, 15, 54, 60]] if is_flipped else [[6, 15, 30, 60]])
        boxes.append(tuple(moved.boxes[0].tolist()))
    assert len(set(boxes)) == 2


def test_jitter_without_flip_is_a_resize() -> None:
    jitter = FlipScaleJitter(JitterSettings(shorter=(40, 40), longest=100, flip_probability=0.0))
    image, target = make_image(20, 30), make_target([[3, 5, 15, 20]], (20, 30))
    assert torch.equal(jitter(image, target, KEY)[0], ResizeShorter(40, 100)(image, target, KEY)[0])


def test_the_smallest_side_of_the_settings_is_used() -> None:
    image, target = make_image(20, 20), make_target([[0, 0, 20, 20], [0, 0, 20, 4]], (20, 20))
    chain = dataclasses.replace(no_ssd_steps(), min_side=5.0)
    assert len(SSDAugmentation(20, chain)(image, target, KEY)[1]) == 1
    jitter = JitterSettings(shorter=(20, 20), min_side=5.0)
    assert len(FlipScaleJitter(jitter)(image, target, KEY)[1]) == 1


def test_ignored_objects_can_be_left_out() -> None:
    target = make_target([[0, 0, 2, 2], [0, 0, 3, 3], [0, 0, 4, 4]], (4, 4))
    assert without_ignored(target).labels.tolist() == [0, 2]


TRANSFORMS = [
    SSDAugmentation(24),
    FlipScaleJitter(JitterSettings(shorter=(10, 40), longest=50, step=1)),
    ResizeShorter(20, 30),
    ResizeFixed(16),
]
each_transform = pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: type(t).__name__)


@each_transform
@pytest.mark.parametrize(
    ("image", "found"),
    [(torch.zeros(3, 4, 5), "float32"), (make_image(5, 4), r"\(3, 5, 4\)")],
    ids=["float", "other size"],
)
def test_an_image_of_another_kind_than_its_target_is_refused(
    transform: Any, image: Tensor, found: str
) -> None:
    with pytest.raises(ValueError, match=rf"expected a uint8 image of shape \(3, 4, 5\).*{found}"):
        transform(image, make_target([], (4, 5)), KEY)


@each_transform
def test_transforms_leave_their_inputs_and_the_global_random_state(transform: Any) -> None:
    image, target = make_image(20, 30), make_target([[3, 5, 15, 20], [0, 0, 30, 20]], (20, 30))
    image_before, boxes_before = image.clone(), target.boxes.clone()
    areas_before, state = target.areas.clone(), torch.get_rng_state()
    for index in range(8):
        transform(image, target, SampleKey(0, 0, index))
    assert torch.equal(image, image_before)
    assert torch.equal(target.boxes, boxes_before)
    assert torch.equal(target.areas, areas_before)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("transform", TRANSFORMS[:2], ids=lambda t: type(t).__name__)
def test_the_key_alone_decides(transform: Any) -> None:
    image, target = make_image(20, 30), make_target([[3, 5, 15, 20]], (20, 30))
    first, again = (transform(image, target, SampleKey(1, 2, 3)) for _ in range(2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1].boxes, again[1].boxes)
    other = transform(image, target, SampleKey(1, 2, 4))
    assert first[0].shape != other[0].shape or not torch.equal(first[0], other[0])


@st.composite
def samples(draw: st.DrawFn) -> tuple[Tensor, Target]:
    height, width = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    place = st.floats(0, 1, width=32)
    corners = draw(st.lists(st.tuples(place, place, place, place), max_size=4))
    scale = torch.tensor([width, height], dtype=torch.float32)
    boxes = (torch.tensor(corners).view(-1, 2, 2).sort(dim=1).values * scale).view(-1, 4)
    image = make_image(height, width, seed=draw(st.integers(0, 100)))
    return image, make_target(boxes.tolist(), (height, width))


@each_transform
@settings(max_examples=40, deadline=None)
@given(sample=samples(), index=st.integers(0, 10**6))
def test_results_are_sound_whatever_the_image(
    transform: Any, sample: tuple[Tensor, Target], index: int
) -> None:
    image, target = sample
    pixels, moved = transform(image, target, SampleKey(0, 0, index))
    assert pixels.dtype == torch.float32
    assert pixels.shape == (3, *moved.size)
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    assert type(moved.boxes) is Tensor
    height, width = moved.size
    edge = torch.tensor([width, height, width, height])
    assert ((moved.boxes >= 0) & (moved.boxes <= edge * (1 + 1e-6))).all()
    assert (moved.boxes[:, 2:] - moved.boxes[:, :2] >= 1).all()
    assert set(moved.labels.tolist()) <= set(target.labels.tolist())
    assert torch.equal(moved.is_ignored, moved.labels % 2 == 1)
    # The share of the mask in the box stays what it was.
    boxes_area = (moved.boxes[:, 2:] - moved.boxes[:, :2]).prod(dim=1)
    torch.testing.assert_close(moved.areas, boxes_area / 2, rtol=1e-3, atol=1e-4)


# --- bounded memory


def test_a_huge_image_is_made_smaller_before_the_chain() -> None:
    image = torch.zeros(3, 40, 80, dtype=torch.uint8)
    image[:, :, ::2] = 200  # stripes of one pixel: averaged, not picked
    target = make_target([[0.0, 0.0, 40.0, 20.0]], (40, 80))
    small, moved = transforms.shrink(image, target, longest=20, min_side=1.0)
    assert small.shape == (3, 10, 20)
    assert (small[:, :, 2:-2].int() - 100).abs().max() <= 12
    assert moved.boxes.tolist() == [[0.0, 0.0, 10.0, 5.0]]
    assert moved.areas.tolist() == [400.0 / 16]
    assert moved.size == (10, 20)


def test_an_image_within_the_limit_is_not_touched() -> None:
    image, target = make_image(8, 20), make_target([[1.0, 1.0, 5.0, 5.0]], (8, 20))
    same, moved = transforms.shrink(image, target, longest=20, min_side=1.0)
    assert same is image
    assert moved is target


def test_the_chain_expands_only_images_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = transforms.expand

    def spy(image: Tensor, *rest: Any) -> tuple[Tensor, Target]:
        seen.append(tuple(image.shape[1:]))
        return real(image, *rest)

    monkeypatch.setattr(transforms, "expand", spy)
    target = make_target([[0.0, 0.0, 60.0, 60.0]], (60, 90))
    SSDAugmentation(24, longest=30)(make_image(60, 90), target, KEY)
    assert seen == [(20, 30)]


@pytest.mark.parametrize("size", [0, -5, 1.5, "64", None, (64, 64)])
def test_a_size_that_is_none_is_refused_when_a_transform_is_made(size: Any) -> None:
    fixed = (FlipResize, BatchedFlipResize, ResizeFixed)
    for make in (*fixed, SSDAugmentation, ResizeShorter, BatchedSSDAugmentation):
        with pytest.raises(ValueError, match="expected a whole number of pixels above 0, got"):
            make(size)
    with pytest.raises(ValueError, match="longest"):
        SSDAugmentation(64, longest=size)
    with pytest.raises(ValueError, match="multiple"):
        BatchedFlipScaleJitter(size)


# --- mirrored, and without ignored objects


@pytest.mark.parametrize("plain", [ResizeShorter(6, 100), ResizeFixed(8)])
def test_a_mirrored_resize_is_the_resized_image_mirrored(plain: Any) -> None:
    target = make_target([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 8.0, 5.0]], size=(5, 9))
    image = make_image(5, 9)
    pixels, moved = plain(image, target, KEY)
    mirrored, mirrored_target = dataclasses.replace(plain, is_flipped=True)(image, target, KEY)
    width = pixels.shape[2]
    assert torch.equal(mirrored, pixels.flip(2))
    assert not torch.equal(mirrored, pixels)
    assert mirrored_target.size == moved.size == tuple(pixels.shape[1:])
    expected = moved.boxes[:, [2, 1, 0, 3]] * torch.tensor([-1.0, 1.0, -1.0, 1.0])
    expected = expected + torch.tensor([width, 0.0, width, 0.0])
    assert torch.allclose(mirrored_target.boxes, expected)
    assert torch.equal(mirrored_target.labels, moved.labels)


def test_a_transform_can_be_given_the_objects_that_count_alone() -> None:
    target = make_target([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 4.0, 4.0], [2.0, 0.0, 4.0, 3.0]], (4, 4))
    seen = []

    def spy(image: Tensor, target: Target, key: SampleKey) -> tuple[Tensor, Target]:
        seen.append((target.labels.tolist(), key))
        return image / 255, target

    pixels, moved = WithoutIgnored(spy)(make_image(4, 4), target, SampleKey(1, 2, 3))
    assert seen == [([0, 2], SampleKey(1, 2, 3))]
    assert moved.boxes.tolist() == [[0.0, 0.0, 2.0, 2.0], [2.0, 0.0, 4.0, 3.0]]
    assert torch.equal(pixels, make_image(4, 4) / 255)
    assert len(target) == 3


def test_ignored_objects_do_not_choose_the_crop() -> None:
    boxes = [[2.0, 2.0, 20.0, 20.0], [30.0, 30.0, 38.0, 38.0]]
    target, image = make_target(boxes, size=(40, 40)), make_image(40, 40)
    transform = SSDAugmentation(32)
    for index in range(5):
        key = SampleKey(0, 0, index)
        pixels, moved = WithoutIgnored(transform)(image, target, key)
        wanted, wanted_target = transform(image, without_ignored(target), key)
        assert torch.equal(pixels, wanted)
        assert torch.equal(moved.boxes, wanted_target.boxes)
