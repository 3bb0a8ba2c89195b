"""Augmentation of whole batches: the same as one image at a time, with the same parameters."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from rankdet.data.augmentation import batched, transforms
from rankdet.data.augmentation.packed import (
    PackedTargets,
    PaddedImages,
    pack_targets,
    padded_images,
)
from rankdet.data.augmentation.parameters import (
    JitterSettings,
    SSDSettings,
    sample_jitter,
    sample_ssd,
)
from rankdet.data.randomness import SampleKey
from rankdet.structures import Target

MEAN = torch.tensor([0.485, 0.456, 0.406])

# Places are float32, as in torch's interpolate, which may round once (a fused multiply-add) where
# we round twice: in a canvas of 160 pixels that is 8e-6 of a pixel.
TOLERANCE = 2e-5

Sample = tuple[Tensor, Target]


def make_sample(boxes: Tensor, size: tuple[int, int], seed: int) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=generator)
    numbers = torch.arange(len(boxes))
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1) / 2
    return image, Target(boxes, numbers, numbers % 3 == 1, areas, image_id=seed, size=size)


def random_samples(count: int, longest: int = 40) -> list[Sample]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for number in range(count):
        height, width = torch.randint(1, longest + 1, (2,), generator=generator).tolist()
        corners = torch.rand(number % 5, 2, 2, generator=generator).sort(dim=1).values
        boxes = (corners * torch.tensor([width, height])).view(-1, 4)
        found.append(make_sample(boxes, (height, width), seed=number))
    return found


def packed(batch: list[Sample], device: str = "cpu") -> tuple[PaddedImages, PackedTargets]:
    """The samples as batched augmentation takes them."""
    images, targets = zip(*batch, strict=True)
    return padded_images([image.to(device) for image in images]), pack_targets(targets)


def keys(count: int, seed: int = 0) -> list[SampleKey]:
    return [SampleKey(seed, 0, index) for index in range(count)]


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    height, width = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    place = st.floats(0, 1, width=32)
    corners = draw(st.lists(st.tuples(place, place, place, place), max_size=4))
    scale = torch.tensor([width, height], dtype=torch.float32)
    boxes = (torch.tensor(corners).view(-1, 2, 2).sort(dim=1).values * scale).view(-1, 4)
    if draw(st.booleans()):
        boxes = boxes.round()  # edges on edges of pixels, centres on edges of windows
    return make_sample(boxes, (height, width), seed=draw(st.integers(0, 100)))


def assert_same_target(found: Target, expected: Target) -> None:
    torch.testing.assert_close(found.boxes, expected.boxes, rtol=0, atol=1e-4)
    assert found.labels.tolist() == expected.labels.tolist()
    assert found.is_ignored.tolist() == expected.is_ignored.tolist()
    torch.testing.assert_close(found.areas, expected.areas, rtol=1e-5, atol=1e-5)
    assert (found.image_id, found.size) == (expected.image_id, expected.size)


def check_ssd(batch: list[Sample], chosen: list[SampleKey], size: int, device: str = "cpu") -> None:
    """The batch, and each image on its own, on the same parameters."""
    images, targets = packed(batch, device)
    parameters = sample_ssd(chosen, targets, SSDSettings())
    pixels, moved = batched.augment_batch(images, targets, parameters, size)
    assert pixels.shape == (len(batch), 3, size, size)
    assert pixels.device.type == device
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    for row, (image, target) in enumerate(batch):
        expected, expected_target = transforms.augment_image(
            image, target, parameters.row(row), size
        )
        torch.testing.assert_close(pixels[row].cpu(), expected, rtol=0, atol=TOLERANCE)
        assert_same_target(moved[row].to("cpu"), expected_target)


def check_jitter(batch: list[Sample], chosen: list[SampleKey], device: str = "cpu") -> None:
    images, targets = packed(batch, device)
    jitter = JitterSettings(shorter=(8, 50), step=1, longest=60)
    parameters = sample_jitter(chosen, targets, jitter)
    pixels, moved = batched.jitter_batch(images, targets, parameters, multiple=8)
    height, width = parameters.sizes.amax(dim=0).tolist()
    assert pixels.shape == (len(batch), 3, (height + 7) // 8 * 8, (width + 7) // 8 * 8)
    for row, (image, target) in enumerate(batch):
        expected, expected_target = transforms.jitter_image(image, target, parameters.row(row))
        height, width = expected_target.size
        found = pixels[row].cpu()
        torch.testing.assert_close(found[:, :height, :width], expected, rtol=0, atol=TOLERANCE)
        around = found[:, height:].flatten(1), found[:, :, width:].flatten(1)
        assert all(torch.equal(part, MEAN[:, None].expand_as(part)) for part in around)
        assert_same_target(moved[row].to("cpu"), expected_target)


@settings(max_examples=60, deadline=None)
@given(
    batch=st.lists(samples(), min_size=1, max_size=4),
    seed=st.integers(0, 10**6),
    size=st.integers(1, 48),
)
def test_a_batch_is_augmented_as_each_of_its_images(
    batch: list[Sample], seed: int, size: int
) -> None:
    check_ssd(batch, keys(len(batch), seed), size)


@settings(max_examples=40, deadline=None)
@given(batch=st.lists(samples(), min_size=1, max_size=4), seed=st.integers(0, 10**6))
def test_a_batch_is_jittered_as_each_of_its_images(batch: list[Sample], seed: int) -> None:
    check_jitter(batch, keys(len(batch), seed))


def test_a_large_batch_is_augmented_as_each_of_its_images() -> None:
    check_ssd(random_samples(64), keys(64), size=40)


def test_images_without_any_object_are_augmented() -> None:
    batch = [make_sample(torch.zeros(0, 4), (9, 12), seed) for seed in range(4)]
    check_ssd(batch, keys(4), size=10)
    check_jitter(batch, keys(4))


def test_the_thin_classes_sample_and_apply() -> None:
    batch = random_samples(6)
    images, targets = packed(batch)
    pixels, moved = batched.BatchedSSDAugmentation(20)(images, targets, keys(6))
    jitter = JitterSettings(shorter=(10, 20), step=2, longest=30)
    scaled, scaled_targets = batched.BatchedFlipScaleJitter(16, jitter)(images, targets, keys(6))
    assert [side % 16 for side in scaled.shape[2:]] == [0, 0]
    flipped, flipped_targets = batched.BatchedFlipResize(24)(images, targets, keys(6))
    assert flipped.shape == (6, 3, 24, 24)
    for row, (key, (image, target)) in enumerate(zip(keys(6), batch, strict=True)):
        expected, expected_target = transforms.SSDAugmentation(20)(image, target, key)
        torch.testing.assert_close(pixels[row], expected, rtol=0, atol=TOLERANCE)
        assert_same_target(moved[row], expected_target)
        expected, expected_target = transforms.FlipScaleJitter(jitter)(image, target, key)
        height, width = expected_target.size
        found = scaled[row, :, :height, :width]
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)
        assert_same_target(scaled_targets[row], expected_target)
        expected, expected_target = transforms.FlipResize(24)(image, target, key)
        torch.testing.assert_close(flipped[row], expected, rtol=0, atol=TOLERANCE)
        assert_same_target(flipped_targets[row], expected_target)


def test_the_smallest_side_of_the_settings_is_used() -> None:
    boxes = torch.tensor([[0.0, 0.0, 20.0, 20.0], [0.0, 0.0, 20.0, 4.0]])
    image, target = make_sample(boxes, (20, 20), seed=0)
    images, targets = packed([(image, target)])
    never = {f.name: 0 for f in dataclasses.fields(SSDSettings) if f.name.endswith("probability")}
    chain = SSDSettings(**never, crop_minimum_ious=(None,), min_side=5.0)  # type: ignore[arg-type]
    _, moved = batched.BatchedSSDAugmentation(20, chain)(images, targets, keys(1))
    assert moved[0].labels.tolist() == [0]
    jitter = JitterSettings(shorter=(20, 20), min_side=5.0)
    _, moved = batched.BatchedFlipScaleJitter(1, jitter)(images, targets, keys(1))
    assert moved[0].labels.tolist() == [0]


@pytest.mark.parametrize(
    "augment", [batched.BatchedSSDAugmentation(20), batched.BatchedFlipScaleJitter()]
)
def test_inputs_are_left_as_they_were(
    augment: batched.BatchedSSDAugmentation | batched.BatchedFlipScaleJitter,
) -> None:
    batch = random_samples(3)
    images, targets = packed(batch)
    pixels_before, boxes_before = images.pixels.clone(), targets.boxes.clone()
    areas_before, state = targets.areas.clone(), torch.get_rng_state()
    augment(images, targets, keys(3))
    assert torch.equal(images.pixels, pixels_before)
    assert torch.equal(targets.boxes, boxes_before)
    assert torch.equal(targets.areas, areas_before)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    "augment", [batched.BatchedSSDAugmentation(20), batched.BatchedFlipScaleJitter()]
)
def test_targets_of_other_images_are_refused(
    augment: batched.BatchedSSDAugmentation | batched.BatchedFlipScaleJitter,
) -> None:
    batch = random_samples(3)
    images, targets = packed(batch)
    with pytest.raises(ValueError, match="expected targets of images of the sizes"):
        augment(images, targets.take([1, 0, 2]), keys(3))


def test_what_stands_around_a_padded_image_does_not_matter() -> None:
    batch = random_samples(8)
    images, targets = packed(batch)
    pixels = torch.full_like(images.pixels, 255)
    for row, (height, width) in enumerate(images.sizes.tolist()):
        pixels[row, :, :height, :width] = images.pixels[row, :, :height, :width]
    other = dataclasses.replace(images, pixels=pixels)
    augment = batched.BatchedSSDAugmentation(20)
    assert torch.equal(augment(images, targets, keys(8))[0], augment(other, targets, keys(8))[0])


def test_a_centre_on_the_edge_of_the_window_is_outside() -> None:
    boxes = torch.tensor(
        [[0.0, 2, 4, 4], [2, 0, 4, 2], [6, 2, 10, 4], [3, 5, 5, 7], [2.1, 1.1, 7.9, 5.9]]
    )
    _, target = make_sample(boxes, (8, 10), seed=0)
    parameters = sample_ssd(keys(1), pack_targets([target]), SSDSettings(expand_probability=0.0))
    parameters = dataclasses.replace(parameters, crops=torch.tensor([[2, 1, 8, 6]]))
    moved = batched.move_boxes(pack_targets([target]), parameters, size=8, min_side=1.0)
    assert moved.labels.tolist() == [4]


def test_a_box_whose_visible_part_is_too_small_is_dropped_before_the_resize() -> None:
    # Of the first 0.7 pixels are left in the window, which the resize would make 2.8.
    boxes = torch.tensor([[4.5, 2.0, 5.7, 9.0], [4.5, 2.0, 6.7, 9.0]])
    _, target = make_sample(boxes, (20, 20), seed=0)
    parameters = sample_ssd(keys(1), pack_targets([target]), SSDSettings(expand_probability=0.0))
    parameters = dataclasses.replace(parameters, crops=torch.tensor([[5, 0, 15, 10]]))
    moved = batched.move_boxes(pack_targets([target]), parameters, size=40, min_side=1.0)
    assert moved.labels.tolist() == [1]


# --- the parts


def colours() -> Tensor:
    """(1, 3, 17, 343): all mixtures of a few values, and random pixels; greys among them."""
    values = torch.tensor([0.0, 1e-7, 0.2, 0.5, 0.5000001, 0.9, 1.0])
    mixtures = torch.cartesian_prod(values, values, values).T.reshape(1, 3, 1, -1)
    noise = torch.rand(1, 3, 16, mixtures.shape[-1], generator=torch.Generator().manual_seed(0))
    return torch.cat([mixtures, noise], dim=2)


@pytest.mark.parametrize("turns", [-0.5, -0.05, -0.01, 0.0, 0.03, 0.05, 1 / 3, 0.5])
def test_the_hue_is_turned_as_torchvision_turns_it(turns: float) -> None:
    expected = F.adjust_hue(colours(), turns)
    found = batched.shift_hue(colours(), torch.full((1, 1, 1, 1), turns))
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("saturation", [0.0, 0.5, 1.0, 1.5])
def test_the_saturation_is_changed_as_torchvision_changes_it(saturation: float) -> None:
    expected = F.adjust_saturation(colours(), saturation)
    found = batched.blend_with_grey(colours(), torch.full((1, 1, 1, 1), saturation))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("new_size", [(1, 1), (7, 5), (30, 41), (64, 9), (13, 21)])
def test_resampling_a_whole_image_is_a_resize(new_size: tuple[int, int]) -> None:
    image = torch.rand(1, 3, 13, 21, generator=torch.Generator().manual_seed(0))
    sizes = torch.tensor([[13, 21]])
    taps = batched.axis_taps(
        source_sizes=sizes,
        window_starts=torch.zeros_like(sizes),
        window_sizes=sizes,
        new_sizes=torch.tensor([new_size]),
        is_flipped=torch.tensor([False]),
        device=image.device,
    )
    expected = F.resize(image, list(new_size), antialias=False)
    found = batched.resample(image.clone(), *taps)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_black_and_white_stay_in_their_range() -> None:
    batch = [make_sample(torch.zeros(0, 4), (7, 9), seed) for seed in range(16)]
    images, targets = packed(batch)
    for value in (0, 255):
        flat = dataclasses.replace(images, pixels=torch.full_like(images.pixels, value))
        for augment in (
            batched.BatchedSSDAugmentation(20),
            batched.BatchedFlipScaleJitter(1, JitterSettings(shorter=(5, 40), step=1)),
        ):
            pixels, _ = augment(flat, targets, keys(16))
            assert pixels.min() >= 0
            assert pixels.max() <= 1


def test_a_window_outside_of_the_image_has_the_mean_colour() -> None:
    sizes = torch.tensor([[5, 5]])
    taps = batched.axis_taps(
        source_sizes=sizes,
        window_starts=torch.tensor([[5, -9]]),
        window_sizes=torch.tensor([[4, 6]]),
        new_sizes=torch.tensor([[3, 3]]),
        is_flipped=torch.tensor([True]),
        device=torch.device("cpu"),
    )
    found = batched.resample(torch.ones(1, 3, 5, 5), *taps)
    assert torch.equal(found[0], MEAN[:, None, None].expand(3, 3, 3))


@pytest.mark.gpu
def test_a_gpu_augments_as_the_cpu_does() -> None:
    check_ssd(random_samples(32), keys(32), size=40, device="cuda")
    check_jitter(random_samples(32), keys(32), device="cuda")


@pytest.mark.gpu
def test_augmentation_does_not_wait_for_the_gpu() -> None:
    batch = random_samples(8)
    images, targets = packed(batch, "cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        batched.BatchedSSDAugmentation(20)(images, targets, keys(8))
        batched.BatchedFlipScaleJitter()(images, targets, keys(8))
    finally:
        torch.cuda.set_sync_debug_mode("default")
