"""Suppression of many images at once: by hand, and against torchvision's for one image."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchvision.ops import batched_nms

from rankdet.detectors.suppression import suppress_together


def row_of_boxes(*starts: float) -> Tensor:
    """Boxes of 10 x 10 pixels in one row, which begin at these columns."""
    return torch.tensor([[start, 0, start + 10, 10] for start in starts], dtype=torch.float32)


def kept_of(boxes: Tensor, labels: list[int], **settings: float) -> list[int]:
    """Of one image, all of whose boxes are candidates."""
    settings = {"nms_iou": 0.5, "max_detections": 100, **settings}
    (kept,) = suppress_together(
        boxes[None],
        torch.tensor(labels)[None],
        torch.tensor([len(boxes)]),
        **settings,  # type: ignore[arg-type]
    )
    return kept.tolist()


def test_a_suppressed_box_suppresses_nothing() -> None:
    # Neighbours have an IoU of 7 / 13, the next but one of 4 / 16.
    assert kept_of(row_of_boxes(0, 3, 6), [0, 0, 0]) == [0, 2]


def test_other_classes_are_not_suppressed() -> None:
    assert kept_of(row_of_boxes(0, 0, 0, 0), [0, 1, 0, 2]) == [0, 1, 3]


def test_an_overlap_of_exactly_the_threshold_is_none() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 5]])
    assert kept_of(boxes, [0, 0]) == [0, 1]
    assert kept_of(boxes, [0, 0], nms_iou=0.49) == [0]


def test_only_the_best_are_kept() -> None:
    assert kept_of(row_of_boxes(0, 20, 21, 40, 60), [0] * 5, max_detections=3) == [0, 1, 3]


def test_what_is_no_candidate_neither_stays_nor_suppresses() -> None:
    boxes = torch.stack([row_of_boxes(0, 20, 0), torch.zeros(3, 4), row_of_boxes(0, 1, 20)])
    labels = torch.zeros(3, 3, dtype=torch.int64)
    kept = suppress_together(boxes, labels, torch.tensor([2, 0, 3]), nms_iou=0.5, max_detections=9)
    assert [places.tolist() for places in kept] == [[0, 1], [], [0, 2]]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_without_images_or_candidates_there_is_nothing(shape: tuple[int, int]) -> None:
    kept = suppress_together(
        torch.zeros(*shape, 4),
        torch.zeros(shape, dtype=torch.int64),
        torch.zeros(shape[0], dtype=torch.int64),
        nms_iou=0.5,
        max_detections=9,
    )
    assert [places.tolist() for places in kept] == [[]] * shape[0]


def test_a_long_chain_is_followed_to_its_end() -> None:
    # Each box drops the next one, unless it is dropped itself: every other one stays.
    boxes = row_of_boxes(*(3.0 * number for number in range(101)))
    assert kept_of(boxes, [0] * 101) == list(range(0, 101, 2))


def test_a_box_without_area_drops_nothing_and_is_never_dropped() -> None:
    boxes = torch.tensor([[5.0, 5, 5, 5], [0, 0, 10, 10], [5, 5, 5, 5]])
    assert kept_of(boxes, [0, 0, 0]) == [0, 1, 2]


def test_many_boxes_on_few_objects_take_no_room_for_their_pairs() -> None:
    # The IoU of all pairs in an image would take 40 GB.
    number = 100_000
    one = row_of_boxes(*torch.linspace(0, 1, number).tolist())
    two = torch.cat([one[: number // 2], one[: number // 2] + torch.tensor([50.0, 0, 50, 0])])
    kept = suppress_together(
        torch.stack([one, two]),
        torch.zeros(2, number, dtype=torch.int64),
        torch.tensor([number, number]),
        nms_iou=0.5,
        max_detections=100,
    )
    assert [places.tolist() for places in kept] == [[0], [0, number // 2]]


def random_candidates(seed: int, num_images: int = 4, most: int = 300) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    corners = 100 * torch.rand(num_images, most, 2, generator=generator)
    sides = 5 + 60 * torch.rand(num_images, most, 2, generator=generator)
    labels = torch.randint(0, 3, (num_images, most), generator=generator)
    counts = torch.randint(most // 2, most + 1, (num_images,), generator=generator)
    return torch.cat([corners, corners + sides], dim=2), labels, counts


def by_torchvision(
    boxes: Tensor, labels: Tensor, counts: Tensor, nms_iou: float, most: int
) -> list[list[int]]:
    results = []
    for image, count in enumerate(counts.tolist()):
        scores = torch.arange(count, 0, -1).float()
        kept = batched_nms(boxes[image, :count], scores, labels[image, :count], nms_iou)
        results.append(kept[:most].tolist())
    return results


@pytest.mark.parametrize(("nms_iou", "most"), [(0.5, 20), (0.3, 60), (0.7, 1000)])
def test_it_keeps_what_torchvision_keeps(nms_iou: float, most: int) -> None:
    for seed in range(3):
        candidates = random_candidates(seed)
        kept = suppress_together(*candidates, nms_iou=nms_iou, max_detections=most)
        assert [places.tolist() for places in kept] == by_torchvision(*candidates, nms_iou, most)


@pytest.mark.gpu
def test_a_gpu_keeps_the_same() -> None:
    boxes, labels, counts = random_candidates(0, num_images=9, most=2000)
    kept = suppress_together(
        boxes.cuda(), labels.cuda(), counts.cuda(), nms_iou=0.5, max_detections=100
    )
    expected = by_torchvision(boxes, labels, counts, 0.5, 100)
    assert [places.tolist() for places in kept] == expected
