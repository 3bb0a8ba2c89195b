"""Sampling of augmentation parameters: ranges, conditions of the crop, independence."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.ops import box_iou

from rankdet.data.augmentation import parameters as parameters_module
from rankdet.data.augmentation.batched import BatchedSSDAugmentation
from rankdet.data.augmentation.packed import pack_targets
from rankdet.data.augmentation.parameters import (
    JitterSettings,
    SSDParameters,
    SSDSettings,
    resized_size,
    sample_flip,
    sample_jitter,
    sample_ssd,
)
from rankdet.data.augmentation.transforms import SSDAugmentation
from rankdet.data.randomness import SampleKey
from rankdet.structures import Target

ALWAYS = {f.name: 1.0 for f in dataclasses.fields(SSDSettings) if f.name.endswith("probability")}
NEVER = dict.fromkeys(ALWAYS, 0.0)


def make_target(
    boxes: list[list[float]], size: tuple[int, int] = (60, 80), ignored: list[bool] | None = None
) -> Target:
    corners = torch.tensor(boxes).view(-1, 4)
    is_ignored = torch.tensor(ignored or [False] * len(corners), dtype=torch.bool)
    return Target(
        boxes=corners,
        labels=torch.zeros(len(corners), dtype=torch.int64),
        is_ignored=is_ignored,
        areas=(corners[:, 2:] - corners[:, :2]).prod(dim=1),
        image_id=0,
        size=size,
    )


def keys(count: int, seed: int = 0) -> list[SampleKey]:
    return [SampleKey(seed, 0, index) for index in range(count)]


def sample(target: Target, count: int = 300, **settings: Any) -> SSDParameters:
    """The parameters of `count` samples of the same target."""
    return sample_ssd(keys(count), pack_targets([target] * count), SSDSettings(**settings))


def fields_of(parameters: SSDParameters) -> dict[str, Tensor]:
    return {f.name: getattr(parameters, f.name) for f in dataclasses.fields(parameters)}


def is_whole(parameters: SSDParameters) -> Tensor:
    whole = torch.cat([torch.zeros_like(parameters.canvases), parameters.canvases.flip(1)], dim=1)
    return (parameters.crops == whole).all(dim=1)


BOX = [20.0, 10.0, 60.0, 50.0]


def test_nothing_happens_when_nothing_is_likely() -> None:
    parameters = sample(make_target([BOX]), crop_minimum_ious=(None,), **NEVER)
    assert parameters.brightness.eq(0).all()
    assert parameters.contrast.eq(1).all()
    assert parameters.saturation.eq(1).all()
    assert parameters.hue.eq(0).all()
    assert parameters.lighting.eq(0).all()
    assert parameters.canvases.eq(torch.tensor([60, 80])).all()
    assert parameters.offsets.eq(0).all()
    assert parameters.crops.eq(torch.tensor([0, 0, 80, 60])).all()
    assert not parameters.is_flipped.any()


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("brightness", -32 / 255, 32 / 255),
        ("contrast", 0.5, 1.5),
        ("saturation", 0.5, 1.5),
        ("hue", -0.05, 0.05),
    ],
)
def test_a_colour_factor_fills_its_range(name: str, low: float, high: float) -> None:
    values = getattr(sample(make_target([BOX]), **ALWAYS), name)
    span = high - low
    assert low <= values.min() < low + 0.02 * span
    assert high - 0.02 * span < values.max() <= high
    assert abs(values.mean() - (low + high) / 2) < 0.05 * span


def test_the_crop_has_the_options_of_the_paper() -> None:
    assert SSDSettings().crop_minimum_ious == (None, 0.1, 0.3, 0.7, 0.9, 0.0)
    assert SSDSettings().num_tries == 50
    assert SSDAugmentation().size == BatchedSSDAugmentation().size == 512


def test_each_step_is_taken_half_of_the_time() -> None:
    parameters = sample(make_target([BOX]), count=600)
    taken = {
        "brightness": parameters.brightness != 0,
        "contrast": parameters.contrast != 1,
        "contrast first": parameters.is_contrast_first,
        "saturation": parameters.saturation != 1,
        "hue": parameters.hue != 0,
        "lighting": parameters.lighting.ne(0).any(dim=1),
        "expand": parameters.canvases[:, 0] != 60,
        "flip": parameters.is_flipped,
    }
    shares = {name: float(mask.float().mean()) for name, mask in taken.items()}
    assert all(0.44 < share < 0.56 for share in shares.values()), shares
    together = torch.stack(list(taken.values())).float()
    assert torch.corrcoef(together).fill_diagonal_(0).abs().max() < 0.15


def test_lighting_noise_has_the_spread_of_the_principal_components() -> None:
    noise = sample(make_target([BOX]), count=3000, **ALWAYS).lighting.double()
    eigenvalues, eigenvectors = torch.linalg.eigh(noise.T.cov())
    expected = 0.1 * torch.tensor([0.0045, 0.0188, 0.2175], dtype=torch.float64)
    torch.testing.assert_close(eigenvalues.sqrt(), expected, rtol=0.06, atol=0)
    assert noise.mean(dim=0).abs().max() < 0.002
    # Mostly all three channels together, a little more of blue.
    strongest = torch.tensor([0.5675, 0.5808, 0.5836], dtype=torch.float64)
    assert (eigenvectors[:, -1] @ strongest).abs() > 0.999


def test_an_expanded_canvas_holds_the_image_at_every_place() -> None:
    target = make_target([[0, 0, 2, 3]], size=(3, 2))
    parameters = sample(target, count=2000, expand_probability=1.0)
    canvases, offsets = parameters.canvases, parameters.offsets
    assert canvases.amin(dim=0).tolist() == [3, 2]
    assert canvases.amax(dim=0).tolist() == [11, 7]  # 4 itself is never drawn
    assert (offsets >= 0).all()
    room = canvases - torch.tensor([3, 2]) - offsets
    assert (room >= 0).all()
    largest = (canvases == torch.tensor([9, 6])).all(dim=1)
    assert set(offsets[largest, 0].tolist()) == set(range(7))
    assert set(offsets[largest, 1].tolist()) == set(range(5))


@pytest.mark.parametrize("minimum", [0.0, 0.1, 0.3, 0.7, 0.9])
@pytest.mark.parametrize("expand_probability", [0.0, 1.0])
def test_every_crop_fulfils_its_conditions(minimum: float, expand_probability: float) -> None:
    target = make_target([BOX, [0, 0, 9, 12], [2, 1, 78, 59]])
    parameters = sample(
        target, crop_minimum_ious=(minimum,), expand_probability=expand_probability, num_tries=200
    )
    cropped = ~is_whole(parameters)
    assert cropped.float().mean() > (0.5 if minimum < 0.7 else 0.02)
    for row in cropped.nonzero()[:, 0].tolist():
        x1, y1, x2, y2 = parameters.crops[row].tolist()
        height, width = parameters.canvases[row].tolist()
        assert 0 <= x1 < x2 <= width
        assert 0 <= y1 < y2 <= height
        assert 0.3 * width - 1 < x2 - x1 <= width
        assert 0.3 * height - 1 < y2 - y1 <= height
        assert 0.5 <= (x2 - x1) / (y2 - y1) <= 2
        boxes = target.boxes + parameters.offsets[row].flip(0).repeat(2)
        x, y = (boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2
        is_inside = (x1 < x) & (x < x2) & (y1 < y) & (y < y2)
        ious = box_iou(boxes, parameters.crops[row, None].float())[:, 0]
        assert (is_inside & (ious >= minimum - 1e-6)).any()


def test_crops_reach_all_sides_of_the_image() -> None:
    crops = sample(make_target([]), crop_minimum_ious=(0.0,), expand_probability=0.0).crops
    assert crops.amin(dim=0)[:2].tolist() == [0, 0]
    assert crops.amax(dim=0)[2:].tolist() == [80, 60]
    sides = crops[:, 2:] - crops[:, :2]
    assert (sides >= torch.tensor([24, 18])).all()
    assert (sides.amin(dim=0) <= torch.tensor([26, 20])).all()
    assert (sides.amax(dim=0) >= torch.tensor([78, 58])).all()
    # Windows of every place are equally likely: as much room before as behind.
    before, behind = crops[:, :2].sum(dim=0), (torch.tensor([80, 60]) - crops[:, 2:]).sum(dim=0)
    assert ((before - behind).abs() < 0.15 * before).all()


def test_the_first_try_that_fits_is_taken() -> None:
    found: dict[int, list[int]] = {}
    for num_tries in range(1, 12):
        parameters = sample(
            make_target([BOX]), count=60, crop_minimum_ious=(0.3,), num_tries=num_tries
        )
        for row, whole in enumerate(is_whole(parameters).tolist()):
            window = parameters.crops[row].tolist()
            if row in found:
                assert window == found[row]
            elif not whole:
                found[row] = window
    assert len(found) > 20


def test_every_option_is_drawn_equally_often() -> None:
    target = make_target([[0, 0, 80, 60]])  # any window has a part of it
    parameters = sample(target, 1200, crop_minimum_ious=(None, 0.0, None), expand_probability=0.0)
    assert 0.62 < is_whole(parameters).float().mean() < 0.72


def test_an_option_that_no_try_fulfils_is_drawn_again() -> None:
    # The authors' code draws until an option can be fulfilled: here only "whole" and "any" can be.
    target = make_target([[0, 0, 2, 2]])
    options = (None, 0.7, 0.8, 0.9, 0.0)
    settings = {"crop_sides": (0.9, 1.0), "expand_probability": 0.0}
    parameters = sample(target, 1200, crop_minimum_ious=options, **settings)
    can_be_cropped = ~is_whole(sample(target, 1200, crop_minimum_ious=(0.0,), **settings))
    assert can_be_cropped.float().mean() > 0.5
    assert 0.45 < is_whole(parameters)[can_be_cropped].float().mean() < 0.55


def test_options_that_can_be_fulfilled_are_equally_likely() -> None:
    target = make_target([[0, 0, 80, 60]])
    settings = {"crop_sides": (0.9, 0.9), "expand_probability": 0.0}  # an IoU of about .81
    parameters = sample(target, 1200, crop_minimum_ious=(None, 0.9, 0.7, 0.95), **settings)
    assert 0.45 < is_whole(parameters).float().mean() < 0.55


def test_no_crop_when_no_try_fits() -> None:
    target = make_target([[0, 0, 2, 2]])  # no window of a third of the image has an IoU of .9
    assert is_whole(sample(target, crop_minimum_ious=(0.9,), expand_probability=0.0)).all()


def test_a_long_image_is_never_cropped_to_a_forbidden_aspect() -> None:
    target = make_target([[0, 0, 900, 90]], size=(100, 1000))
    assert is_whole(sample(target, crop_minimum_ious=(0.0,), expand_probability=0.0)).all()


def test_a_crop_is_made_around_real_objects_not_ignored_ones() -> None:
    real, other = [2.0, 2.0, 12.0, 12.0], [60.0, 40.0, 80.0, 60.0]
    target = make_target([other, real], ignored=[True, False])
    crops = sample(target, crop_minimum_ious=(0.0,), expand_probability=0.0).crops
    assert ((crops[:, :2] < 7) & (crops[:, 2:] > 7)).all()
    assert not (crops[:, 2:] > torch.tensor([70, 50])).all()


def test_ignored_objects_count_where_there_are_no_others() -> None:
    target = make_target([[60.0, 40.0, 80.0, 60.0]], ignored=[True])
    crops = sample(target, crop_minimum_ious=(0.0,), expand_probability=0.0).crops
    assert (crops[:, 2:] > torch.tensor([70, 50])).all()


def test_objects_that_are_too_small_do_not_count() -> None:
    small, large = [2.0, 2.0, 3.5, 12.0], [60.0, 40.0, 80.0, 60.0]
    target = make_target([small, large])
    crops = sample(target, crop_minimum_ious=(0.0,), expand_probability=0.0, min_side=2.0).crops
    assert (crops[:, 2:] > torch.tensor([70, 50])).all()


def test_an_image_without_objects_is_cropped_without_conditions() -> None:
    parameters = sample(make_target([]), crop_minimum_ious=(0.9,), expand_probability=0.0)
    assert not is_whole(parameters).any()


class LargestTensor(TorchDispatchMode):
    """Notes how many numbers the largest tensor had that an operation gave."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.untyped_storage().nbytes() > 8 * self.count:
            self.count = result.untyped_storage().nbytes() // 8
        return result


def test_thousands_of_objects_take_no_more_memory_than_some() -> None:
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(20_000, 2, generator=generator) * 400
    crowded = make_target(torch.cat([corners, corners + 20], dim=1).tolist(), size=(420, 420))
    with LargestTensor() as largest:
        sample_ssd(keys(4), pack_targets([crowded] * 4), SSDSettings())
    assert largest.count <= 4096 * 50 * 4  # of 80,000 objects, all tries and corners: 16 million


def test_objects_in_many_parts_give_the_same_crops(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = [make_target([BOX, [0, 0, 9, 12], [2, 1, 78, 59]][: n % 4]) for n in range(100)]
    at_once = sample_ssd(keys(100), pack_targets(targets), SSDSettings())
    monkeypatch.setattr(parameters_module, "_OBJECTS_AT_ONCE", 2)
    in_parts = sample_ssd(keys(100), pack_targets(targets), SSDSettings())
    assert torch.equal(at_once.crops, in_parts.crops)


def test_a_window_has_at_least_one_pixel() -> None:
    target = make_target([], size=(3, 3))
    parameters = sample(target, expand_probability=0.0, crop_aspects=(0.0, 100.0))
    sides = parameters.crops[:, 2:] - parameters.crops[:, :2]
    assert sides.amin() == 1


def test_a_centre_on_the_edge_of_the_window_is_outside() -> None:
    # A 2 x 2 image: windows of one pixel have their corners at the box's centre, others hold it.
    target = make_target([[0.0, 0.0, 2.0, 2.0]], size=(2, 2))
    assert is_whole(sample(target, crop_minimum_ious=(0.0,), expand_probability=0.0)).all()


def test_a_sample_does_not_depend_on_its_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = []
    for number in range(32):
        size = tuple(torch.randint(5, 90, (2,), generator=generator).tolist())
        corners = torch.rand(number % 5, 2, 2, generator=generator).sort(dim=1).values
        boxes = (corners * torch.tensor([size[1], size[0]])).view(-1, 4)
        targets.append(make_target(boxes.tolist(), size))
    together = sample_ssd(keys(32), pack_targets(targets), SSDSettings())
    for row, (key, target) in enumerate(zip(keys(32), targets, strict=True)):
        alone = sample_ssd([key], pack_targets([target]), SSDSettings())
        for name, value in fields_of(together.row(row)).items():
            assert torch.equal(value, getattr(alone, name)), name


@pytest.mark.parametrize("name", sorted(ALWAYS))
def test_a_probability_changes_its_own_step_only(name: str) -> None:
    step = {"expand": ("canvases", "offsets"), "flip": ("is_flipped",)}
    own = step.get(name.removesuffix("_probability"), (name.removesuffix("_probability"),))
    target = make_target([BOX])
    options: dict[str, Any] = {} if own[0] != "canvases" else {"crop_minimum_ious": (None,)}
    before = fields_of(sample(target, 100, **options))
    after = fields_of(sample(target, 100, **options, **{name: 0.9}))
    for field in before.keys() - {*own, "crops"}:
        assert torch.equal(before[field], after[field]), field
    assert all(not torch.equal(before[field], after[field]) for field in own)
    if own[0] != "canvases":
        assert torch.equal(before["crops"], after["crops"])


def test_seed_epoch_and_index_all_matter() -> None:
    chosen = [SampleKey(0, 0, 0), SampleKey(1, 0, 0), SampleKey(0, 1, 0), SampleKey(0, 0, 1)]
    parameters = sample_ssd(
        chosen, pack_targets([make_target([BOX])] * 4), SSDSettings(brightness_probability=1.0)
    )
    assert len(set(parameters.brightness.tolist())) == 4


def test_the_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    sample(make_target([BOX]), count=3)
    sample_jitter(keys(3), pack_targets([make_target([BOX])] * 3), JitterSettings())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "wrong",
    [
        {"flip_probability": 1.5},
        {"hue_probability": -0.1},
        {"contrast": (1.5, 0.5)},
        {"saturation": (-0.5, 0.5)},
        {"expand": (0.5, 2.0)},
        {"crop_sides": (0.3, 1.1)},
        {"crop_aspects": (2.0, 0.5)},
        {"crop_minimum_ious": ()},
        {"hue": 0.6},
        {"num_tries": 0},
        {"min_side": 0.0},
    ],
)
def test_impossible_settings_of_the_chain_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SSDSettings(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shorter": (800, 480)},
        {"step": 0},
        {"longest": 0},
        {"flip_probability": 2},
        {"min_side": 0},
    ],
)
def test_impossible_settings_of_the_jitter_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        JitterSettings(**wrong)


def test_jitter_draws_the_eleven_usual_sizes_equally_often() -> None:
    targets = pack_targets([make_target([], size=(300, 400))] * 1100)
    parameters = sample_jitter(keys(1100), targets, JitterSettings())
    values, counts = parameters.sizes[:, 0].unique(return_counts=True)
    assert values.tolist() == list(range(480, 801, 32))
    assert counts.min() > 60
    assert torch.equal(parameters.sizes[:, 1], (parameters.sizes[:, 0] * 4 / 3).round().long())
    assert 0.45 < parameters.is_flipped.float().mean() < 0.55


def test_half_of_the_samples_are_flipped_and_all_have_the_size() -> None:
    parameters = sample_flip(keys(1000), 96)
    assert parameters.sizes.unique(dim=0).tolist() == [[96, 96]]
    assert parameters.sizes.shape == (1000, 2)
    assert 0.45 < parameters.is_flipped.float().mean() < 0.55
    assert torch.equal(sample_flip(keys(1000)[7:9], 96).is_flipped, parameters.is_flipped[7:9])


def test_jitter_with_step_one_draws_all_whole_numbers() -> None:
    targets = pack_targets([make_target([], size=(10, 20))] * 200)
    settings = JitterSettings(shorter=(5, 9), step=1)
    assert sample_jitter(keys(200), targets, settings).sizes[:, 0].unique().tolist() == [
        *range(5, 10)
    ]


def test_jitter_keeps_the_longer_side_below_its_limit() -> None:
    targets = pack_targets([make_target([], size=(1000, 250))] * 50)
    parameters = sample_jitter(keys(50), targets, JitterSettings())
    assert parameters.sizes.unique(dim=0).tolist() == [[1333, 333]]


@pytest.mark.parametrize(
    ("size", "shorter", "longest", "expected"),
    [
        ((375, 500), 600, 1000, (600, 800)),
        ((500, 375), 600, 1000, (800, 600)),
        ((200, 500), 600, 1000, (400, 1000)),
        ((500, 500), 500, 833, (500, 500)),
        ((500, 334), 500, 833, (749, 500)),
        ((1, 5000), 600, 1000, (1, 1000)),
    ],
)
def test_the_aspect_is_kept(
    size: tuple[int, int], shorter: int, longest: int, expected: tuple[int, int]
) -> None:
    assert resized_size(size, shorter, longest) == expected
