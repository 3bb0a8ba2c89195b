"""Patches on hand-made images: exact pixels, and nothing else changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rankdet.robustness.patches import (
    black_patches,
    centre_windows,
    flip_patches,
    outside_place,
    paste_patch,
    random_patches,
    resized,
)

BOX = torch.tensor([[2.0, 2.0, 10.0, 6.0]])  # its middle half: columns 4..7, rows 3..4


def numbered(height: int = 8, width: int = 12) -> Tensor:
    """A uint8 image in which every pixel of a channel is another number."""
    plane = torch.arange(1, height * width + 1, dtype=torch.uint8).view(1, height, width)
    return torch.cat([plane, plane + 50, plane + 100])


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def outside_of_windows(image: Tensor, boxes: Tensor) -> Tensor:
    """(H, W) bool: where no patch is."""
    is_outside = torch.ones(image.shape[1:], dtype=torch.bool)
    for left, top, right, bottom in centre_windows(boxes, (image.shape[1], image.shape[2])):
        is_outside[top:bottom, left:right] = False
    return is_outside


def test_the_window_is_the_middle_half_of_the_box() -> None:
    assert centre_windows(BOX, (8, 12)) == [(4, 3, 8, 5)]


def test_a_window_is_at_least_one_pixel_and_stays_in_the_image() -> None:
    boxes = torch.tensor([[11.2, 7.5, 11.6, 8.0], [0.0, 0.0, 0.4, 0.4], [-4.0, 0.0, 2.0, 8.0]])
    windows = centre_windows(boxes, (8, 12))
    assert windows == [(11, 7, 12, 8), (0, 0, 1, 1), (0, 2, 3, 6)]


def test_a_black_patch_is_zero_and_the_rest_is_as_it_was() -> None:
    image = numbered()
    before = image.clone()
    result = black_patches(image, BOX)
    assert torch.equal(image, before)
    assert (result[:, 3:5, 4:8] == 0).all()
    is_outside = outside_of_windows(image, BOX)
    assert torch.equal(result[:, is_outside], image[:, is_outside])


def test_an_image_without_objects_stays_as_it_is() -> None:
    image, none = numbered(), torch.zeros(0, 4)
    assert torch.equal(black_patches(image, none), image)
    assert torch.equal(flip_patches(image, none, generator()), image)
    assert torch.equal(random_patches(image, none, generator()), image)
    assert torch.equal(paste_patch(image, none, torch.zeros(3, 2, 2)), image)


def test_a_flip_patch_is_one_of_three_mirror_images_and_all_of_them_occur() -> None:
    image = numbered()
    centre = image[:, 3:5, 4:8]
    mirrored = {
        tuple(centre.flip(sides).flatten().tolist()): sides for sides in ((2,), (1,), (1, 2))
    }
    seen = {
        mirrored[tuple(flip_patches(image, BOX, generator(seed))[:, 3:5, 4:8].flatten().tolist())]
        for seed in range(20)
    }
    assert seen == {(2,), (1,), (1, 2)}


def test_a_random_patch_is_a_piece_of_the_image_outside_of_the_box() -> None:
    image = numbered()
    places = set()
    for seed in range(60):
        piece = random_patches(image, BOX, generator(seed))[:, 3:5, 4:8]
        y, x = divmod(int(piece[0, 0, 0]) - 1, 12)
        assert torch.equal(piece, image[:, y : y + 2, x : x + 4])
        assert x + 4 <= 2 or x >= 10 or y + 2 <= 2 or y >= 6
        places.add((x, y))
    assert {y for _, y in places} == {0, 6}  # no room beside the box, two rows above and below
    assert len(places) > 12


def test_every_place_outside_is_equally_likely() -> None:
    box, piece, size = [3.0, 3.0, 6.0, 6.0], (2, 2), (8, 8)
    random = generator()
    counts: dict[tuple[int, int], int] = {}
    for _ in range(9000):
        place = outside_place(box, piece, size, random)
        counts[place] = counts.get(place, 0) + 1
    wanted = {
        (x, y) for x in range(7) for y in range(7) if x + 2 <= 3 or x >= 6 or y + 2 <= 3 or y >= 6
    }
    assert set(counts) == wanted
    expected = 9000 / len(wanted)
    assert sum((n - expected) ** 2 / expected for n in counts.values()) < 2.5 * len(wanted)


def test_where_the_box_fills_the_image_the_piece_is_from_the_corner_that_overlaps_least() -> None:
    assert outside_place([0.0, 1.0, 8.0, 8.0], (4, 4), (8, 8), generator()) == (0, 0)
    assert outside_place([0.0, 0.0, 7.0, 7.0], (4, 4), (8, 8), generator()) == (4, 4)
    assert outside_place([0.0, 0.0, 8.0, 8.0], (4, 4), (8, 8), generator()) == (0, 0)
    # By trying all places: none overlaps less.
    box, (height, width) = [0.5, 1.0, 7.0, 7.5], (4, 3)
    x, y = outside_place(box, (height, width), (8, 8), generator())

    def shared(x: int, y: int) -> float:
        across = min(x + width, box[2]) - max(x, box[0])
        return across * (min(y + height, box[3]) - max(y, box[1]))

    assert shared(x, y) == min(shared(a, b) for a in range(6) for b in range(5))


def test_patches_show_the_image_as_it_was_where_they_overlap() -> None:
    image = numbered()
    boxes = torch.tensor([[0.0, 0.0, 8.0, 8.0], [2.0, 0.0, 10.0, 8.0]])
    result = flip_patches(image, boxes, generator(1))
    second = result[:, 2:6, 4:8]
    original = image[:, 2:6, 4:8]
    assert any(torch.equal(second, original.flip(sides)) for sides in ((2,), (1,), (1, 2)))


def test_an_adversarial_patch_is_resized_to_its_place() -> None:
    image = numbered()
    patch = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))
    result = paste_patch(image, BOX, patch)
    wanted = (resized(patch, (2, 4)) * 255).round().to(torch.uint8)
    assert torch.equal(result[:, 3:5, 4:8], wanted)
    is_outside = outside_of_windows(image, BOX)
    assert torch.equal(result[:, is_outside], image[:, is_outside])


def test_a_patch_of_the_window_s_size_is_pasted_pixel_by_pixel() -> None:
    patch = (numbered(2, 4)).float() / 255
    assert torch.equal(paste_patch(numbered(), BOX, patch)[:, 3:5, 4:8], numbered(2, 4))


@pytest.mark.parametrize("kind", ["black", "flip", "random", "paste"])
def test_float_images_give_the_same_as_uint8(kind: str) -> None:
    def change(image: Tensor) -> Tensor:
        if kind == "black":
            return black_patches(image, BOX)
        if kind == "flip":
            return flip_patches(image, BOX, generator(5))
        if kind == "random":
            return random_patches(image, BOX, generator(5))
        return paste_patch(image, BOX, torch.full((3, 4, 4), 51 / 255))

    image = numbered()
    floats = change(image.float() / 255)
    assert floats.dtype == torch.float32
    assert torch.equal((floats * 255).round().to(torch.uint8), change(image))


def test_other_types_of_images_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \(3, H, W\) of uint8"):
        black_patches(numbered().int(), BOX)
