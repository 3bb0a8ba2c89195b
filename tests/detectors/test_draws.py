"""Random choices: the same for an image and its draw, and without a pattern."""

from __future__ import annotations

import zlib

import pytest
import torch

from rankdet.data.randomness import SampleKey
from rankdet.detectors.draws import PREFERRED, drawn, lots
from rankdet.structures import Target

CPU = torch.device("cpu")


def make_target(image_id: int = 1, size: tuple[int, int] = (64, 64), draw: int = 0) -> Target:
    none = torch.zeros(0)
    return Target(none.view(0, 4), none.long(), none.bool(), none, image_id, size, draw)


def test_numbers_are_in_their_range_and_no_two_boxes_have_the_same() -> None:
    numbers = lots([make_target(1), make_target(2)], 100_000, CPU, "rois")
    assert numbers.dtype == torch.int64
    assert numbers.shape == (2, 100_000)
    assert 0 <= numbers.min() < numbers.max() < PREFERRED
    assert len(numbers.unique()) == 200_000


def test_numbers_are_spread_evenly_however_close_the_images_are() -> None:
    numbers = lots([make_target(number) for number in range(100)], 1000, CPU, "rois")
    shares = numbers.double() / PREFERRED
    assert abs(shares.mean() - 0.5) < 0.005
    assert (shares.mean(dim=0) - 0.5).abs().max() < 0.15  # of each place, over 100 images
    assert (shares.mean(dim=1) - 0.5).abs().max() < 0.05  # of each image, over 1000 places
    for bit in range(61):
        assert abs(((numbers >> bit) & 1).double().mean() - 0.5) < 0.01


def test_numbers_are_spread_evenly_however_close_the_draws_of_an_image_are() -> None:
    targets = [make_target(3, draw=SampleKey(0, epoch, 3).draw) for epoch in range(100)]
    shares = lots(targets, 1000, CPU, "anchors").double() / PREFERRED
    assert (shares.mean(dim=0) - 0.5).abs().max() < 0.15  # of each place, over 100 epochs
    assert (shares.mean(dim=1) - 0.5).abs().max() < 0.05  # of each epoch, over 1000 places


def test_an_image_has_the_same_numbers_in_any_batch() -> None:
    one, other = make_target(-7), make_target(2**40)
    together = lots([one, other], 50, CPU, "rois")
    assert torch.equal(together[1:], lots([other], 50, CPU, "rois"))
    assert torch.equal(together[:1], lots([one], 60, CPU, "rois")[:, :50])


def test_another_image_size_draw_or_purpose_has_other_numbers() -> None:
    usual = lots([make_target(3)], 50, CPU, "rois")
    for other in (
        lots([make_target(4)], 50, CPU, "rois"),
        lots([make_target(3, (64, 65))], 50, CPU, "rois"),
        lots([make_target(3, draw=1)], 50, CPU, "rois"),
        lots([make_target(3)], 50, CPU, "anchors"),
    ):
        assert not (usual == other).any()


def test_the_numbers_are_those_of_splitmix_in_whole_numbers_of_any_size() -> None:
    # Also: a checkpoint of an older version must go on with the same choices.
    numbers = lots([make_target(5, draw=9)], 40, CPU, "rois")[0].tolist()
    seed = zlib.crc32(b"rois 5 (64, 64) 9")
    for place, number in enumerate(numbers):
        mixed = ((seed << 32) + place) % 2**64
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
        assert number == (mixed ^ mixed >> 31) % PREFERRED


def test_no_image_has_no_numbers() -> None:
    assert lots([], 5, CPU, "rois").shape == (0, 5)


def test_the_highest_are_drawn_and_those_below_zero_do_not_count() -> None:
    places, is_drawn = drawn(torch.tensor([[5, -1, 9, 7], [-1, -1, 0, -1]]), 2)
    assert places[0].tolist() == [2, 3]
    assert is_drawn.tolist() == [[True, True], [True, False]]
    assert places[1, 0] == 2


@pytest.mark.gpu
def test_a_gpu_has_the_same_numbers() -> None:
    targets = [make_target(number, draw=7 * number) for number in range(5)]
    there = lots(targets, 10_000, torch.device("cuda"), "rois")
    assert there.is_cuda
    assert torch.equal(there.cpu(), lots(targets, 10_000, CPU, "rois"))
