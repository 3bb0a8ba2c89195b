"""Pictures for the report: which images, small copies of them, and their boxes."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from rankdet.metrics.errors import Verdicts, judge_errors
from rankdet.structures import Detections, Target
from rankdet.workflows.examples import choose_images, pictures, small_jpeg

Row = tuple[int, float, Sequence[float]]
BOX, NEAR, FAR = (0, 0, 10, 10), (0, 0, 10, 4), (50, 50, 60, 60)


def target(*rows: tuple[int, Sequence[float]], ignored: Sequence[int] = ()) -> Target:
    boxes = torch.tensor([box for _, box in rows], dtype=torch.float32).reshape(-1, 4)
    labels = torch.tensor([label for label, _ in rows], dtype=torch.int64)
    is_ignored = torch.tensor([i in ignored for i in range(len(rows))], dtype=torch.bool)
    return Target(boxes, labels, is_ignored, torch.ones(len(rows)), 0, (100, 80))


def found(*rows: Row) -> Detections:
    return Detections(
        torch.tensor([box for _, _, box in rows], dtype=torch.float32).reshape(-1, 4),
        torch.tensor([score for _, score, _ in rows], dtype=torch.float32),
        torch.tensor([label for label, _, _ in rows], dtype=torch.int64),
    )


def row_of_boxes(count: int) -> list[tuple[int, Sequence[float]]]:
    return [(0, (20 * i, 0, 20 * i + 10, 10)) for i in range(count)]


def chosen(
    images: Sequence[tuple[Detections, Target]], thresholds: Sequence[float] = (0.1, 0.1)
) -> dict[int, list[str]]:
    detections, targets = zip(*images, strict=True)
    verdicts = judge_errors(detections, targets, thresholds)
    return choose_images(verdicts, len(images), thresholds)


def of_kind(kind: str, choice: dict[int, list[str]]) -> list[int]:
    return [index for index, kinds in choice.items() if kind in kinds]


# Which images


@pytest.mark.parametrize(
    ("num_images", "expected"),
    [
        (0, []),
        (1, [0]),
        (8, [0, 1, 2, 3, 4, 5, 6, 7]),
        (9, [0, 1, 2, 3, 5, 6, 7, 8]),
        (15, [0, 2, 4, 6, 8, 10, 12, 14]),
    ],
)
def test_samples_are_spread_over_all_images(num_images: int, expected: list[int]) -> None:
    verdicts = judge_errors([found()] * num_images, [target((0, BOX))] * num_images, [0.1])
    assert of_kind("sample", choose_images(verdicts, num_images, [0.1])) == expected


def test_samples_have_objects_that_count_and_do_not_depend_on_what_was_found() -> None:
    targets = [target(), target((0, BOX), ignored=[0]), target((0, BOX)), target((1, FAR))]
    good, nothing = found((0, 0.9, BOX), (1, 0.9, FAR)), found()
    for detections in ([good] * 4, [nothing] * 4, [good, good, nothing, nothing]):
        choice = chosen(list(zip(detections, targets, strict=True)))
        assert of_kind("sample", choice) == [2, 3]


def test_the_best_have_the_highest_f1_then_most_objects() -> None:
    two = row_of_boxes(2)
    images = [
        (found((0, 0.9, BOX)), target((0, BOX))),  # F1 1 with one object
        (found(), target()),  # nothing to find is no success
        (found((0, 0.9, FAR)), target((0, BOX))),  # F1 0
        (found((0, 0.9, BOX), (0, 0.8, FAR)), target(*two)),  # 1 of 2, and 1 false: 1/2
        (found(*((0, 0.9, box) for _, box in two)), target(*two)),  # F1 1 with two objects
        (found((0, 0.9, BOX), (0, 0.8, FAR)), target((0, BOX))),  # F1 2/3
        (found((0, 0.9, BOX)), target((0, BOX))),  # as the first
    ]
    choice = chosen(images)
    ranked = [4, 0, 6, 5, 3]
    assert sorted(of_kind("best", choice)) == sorted(ranked)
    images += images[:1] * 4  # now the poorest are no longer among the best six
    assert set(of_kind("best", chosen(images))) == {4, 0, 6, 7, 8, 9}


def test_a_detection_on_an_ignored_object_does_not_make_an_image_worse() -> None:
    pair = target((0, BOX), (0, FAR), ignored=[1])
    images = [(found((0, 0.9, BOX), (0, 0.8, FAR)), pair)] * 6
    worse = [(found((0, 0.9, BOX), (1, 0.8, (20, 20, 30, 30))), pair)]
    assert of_kind("best", chosen(worse + images)) == [1, 2, 3, 4, 5, 6]
    assert of_kind("worst", chosen(worse + images)) == [0]


def test_the_worst_have_the_surest_mistake_in_its_class() -> None:
    """A score of 0.6 where 0.9 is usual is less than one of 0.2 where 0.01 is."""
    scores = [(0, 0.95), (1, 0.2), (1, 0.02), (0, 0.999), (1, 0.9), (0, 0.91), (1, 0.011)]
    images = [(found((label, score, FAR)), target()) for label, score in scores]
    choice = chosen(images, (0.9, 0.01))
    # Odds over those of the threshold: 2.1, 25, 2.0, 111, 891, 1.1 and 1.1.
    assert list(choice) == [4, 3, 1, 0, 2, 5]
    assert set(map(tuple, choice.values())) == {("worst",)}


def test_one_sure_mistake_is_worse_than_many_others_and_correct_ones_are_none() -> None:
    images = [
        (found((0, 0.99, BOX)), target((0, BOX))),
        (found(*[(0, 0.5, FAR)] * 5), target()),
        (found((0, 0.9, FAR), (0, 0.2, FAR)), target()),
    ]
    assert of_kind("worst", chosen(images)) == [2, 1]


def test_scores_of_zero_and_one_have_an_order_too() -> None:
    images = [(found((0, 1.0, FAR)), target()), (found((0, 0.0, FAR)), target())]
    assert of_kind("worst", chosen(images, (0.0,))) == [0, 1]
    assert of_kind("worst", chosen(images[:1], (1.0,))) == [0]


def test_those_with_most_missed_objects_come_first() -> None:
    counts = [1, 3, 0, 2, 1, 4, 1, 1, 1]
    images = [(found(), target(*row_of_boxes(count))) for count in counts]
    choice = chosen(images)
    assert of_kind("missed", choice) == sorted([5, 1, 3, 0, 4, 6])
    # Of equally many that were missed, those come first where nothing was found.
    images = [
        *[(found((0, 0.9, BOX)), target(*row_of_boxes(2)))] * 3,
        *[(found(), target(*row_of_boxes(1)))] * 6,
    ]
    assert sorted(of_kind("missed", chosen(images))) == [3, 4, 5, 6, 7, 8]


def test_an_ignored_object_is_not_missed() -> None:
    assert of_kind("missed", chosen([(found(), target((0, BOX), ignored=[0]))])) == []


def test_an_image_of_several_kinds_stands_once() -> None:
    images = [(found((0, 0.9, BOX), (0, 0.8, FAR)), target(*row_of_boxes(2)))]
    assert chosen(images) == {0: ["sample", "best", "worst", "missed"]}


def test_samples_stand_first_then_the_best_by_rank() -> None:
    images: list[tuple[Detections, Target]] = [(found(), target((0, BOX)))] * 17
    for index in (3, 5):
        images[index] = (found((0, 0.9, BOX)), target((0, BOX)))
    images[5] = (
        found(*((0, 0.9, box) for _, box in row_of_boxes(3))),
        target(*row_of_boxes(3)),
    )
    assert list(chosen(images))[:10] == [0, 2, 5, 7, 9, 11, 14, 16, 3, 1]


# Small copies


def opened(file: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(file))
    assert image.format == "JPEG"
    image.load()
    return image


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (100, 320, (320, 100)),
        (30, 20, (20, 30)),
        (640, 320, (160, 320)),
        (321, 400, (320, 257)),
        (1, 5000, (320, 1)),
        (3000, 2, (1, 320)),
        (1, 1, (1, 1)),
    ],
)
def test_a_copy_has_at_most_320_pixels_and_is_never_enlarged(
    height: int, width: int, expected: tuple[int, int]
) -> None:
    assert opened(small_jpeg(torch.zeros(3, height, width, dtype=torch.uint8))).size == expected


def test_a_copy_shows_the_same_colours_at_the_same_places() -> None:
    image = torch.zeros(3, 480, 640, dtype=torch.uint8)
    image[0, :240, :320] = 255  # red at the top left
    image[2, 240:, 320:] = 255  # blue at the bottom right
    pixels = np.asarray(opened(small_jpeg(image))).astype(int)
    assert pixels.shape == (240, 320, 3)
    for (y, x), colour in {(60, 80): (255, 0, 0), (180, 240): (0, 0, 255)}.items():
        assert abs(pixels[y, x] - colour).max() < 12


def test_a_copy_of_a_photograph_is_a_small_file() -> None:
    generator = torch.Generator().manual_seed(0)
    rough = torch.randint(0, 256, (1, 3, 60, 80), generator=generator).float()
    smooth = torch.nn.functional.interpolate(rough, (960, 1280), mode="bilinear")[0].byte()
    assert 2_000 < len(small_jpeg(smooth)) < 40_000


# All of it


class Photos:
    """Three grey images, 100 high and 80 wide."""

    category_ids = (1, 2)
    is_annotated = True

    def __init__(self, targets: Sequence[Target], classes: tuple[str, ...]) -> None:
        self.targets = targets
        self.classes = classes

    def __len__(self) -> int:
        return len(self.targets)

    def name(self, index: int) -> str:
        return f"folder/<{index}>.png"

    def size(self, index: int) -> tuple[int, int]:
        return 100, 80

    def image(self, index: int) -> Tensor:
        return torch.full((3, 100, 80), 40 * index, dtype=torch.uint8)

    def target(self, index: int) -> Target:
        return self.targets[index]


STRANGE = ('a "b" </script>', "ü\u2028\n")


def judged(detections: list[Detections], targets: list[Target]) -> Verdicts:
    return judge_errors(detections, targets, (0.5, 0.5))


def test_a_picture_has_boxes_in_pixels_of_the_original() -> None:
    targets = [
        target(),
        target((0, (0.04, 0, 10, 10)), (1, FAR), (0, (70.06, 1, 80, 2)), ignored=[2]),
    ]
    detections = [
        found(),
        found((0, 0.75, BOX), (1, 0.123456, FAR), (0, 0.7, (70, 1, 80, 2)), (1, 0.6543219, BOX)),
    ]
    dataset = Photos(targets, STRANGE)
    verdicts = judged(detections, targets)
    (picture,) = pictures(verdicts, detections, dataset, (0.5, 0.5))
    file = base64.b64decode(picture.pop("jpeg"), validate=True)
    assert opened(file).size == (80, 100)
    assert np.asarray(opened(file)).mean() == pytest.approx(40, abs=1)  # of the image of index 1
    assert picture == {
        "name": "folder/<1>.png",
        "index": 1,
        "kinds": ["sample", "best", "worst", "missed"],
        "width": 80,
        "height": 100,
        "objects": [
            {"box": [0.0, 0.0, 10.0, 10.0], "class": STRANGE[0], "state": "found"},
            {"box": [50.0, 50.0, 60.0, 60.0], "class": STRANGE[1], "state": "missed"},
            {"box": [70.1, 1.0, 80.0, 2.0], "class": STRANGE[0], "state": "ignored"},
        ],
        "detections": [
            {"box": [0.0, 0.0, 10.0, 10.0], "class": STRANGE[0], "score": 0.75, "kind": "correct"},
            {"box": [70.0, 1.0, 80.0, 2.0], "class": STRANGE[0], "score": 0.7, "kind": "uncounted"},
            {"box": [0.0, 0.0, 10.0, 10.0], "class": STRANGE[1], "score": 0.65432, "kind": "class"},
        ],
    }
    json.dumps(picture, allow_nan=False)


def test_a_picture_has_so_many_boxes_as_a_report_accepts() -> None:
    targets = [target(*[(0, BOX)] * 1200)]
    detections = [found(*[(0, 0.9, BOX)] * 1300)]
    dataset = Photos(targets, STRANGE)
    (picture,) = pictures(judged(detections, targets), detections, dataset, (0.5, 0.5))
    assert len(picture["objects"]) == len(picture["detections"]) == 1000
    assert picture["detections"][0]["kind"] == "correct"  # the best come first


def test_every_kind_of_mistake_is_named_in_its_own_image() -> None:
    targets = [target((1, FAR)), target((0, BOX))]
    mistakes = [(0, 0.8, BOX), (0, 0.7, NEAR), (1, 0.6, BOX), (1, 0.5, FAR)]
    detections = [found((1, 0.9, BOX)), found((0, 0.9, BOX), *mistakes)]
    dataset = Photos(targets, ("cat", "dog"))
    first, second = pictures(judged(detections, targets), detections, dataset, (0.5, 0.5))
    assert [row["kind"] for row in first["detections"]] == ["background"]
    assert [row["state"] for row in first["objects"]] == ["missed"]
    assert [row["kind"] for row in second["detections"]] == [
        *("correct", "duplicate", "localisation", "class", "background"),
    ]
    assert [row["state"] for row in second["objects"]] == ["found"]


def test_without_images_there_are_no_pictures() -> None:
    assert pictures(judged([], []), [], Photos([], ("cat", "dog")), (0.5, 0.5)) == []


def test_images_of_which_nothing_is_to_be_said_are_no_pictures() -> None:
    targets = [target(), target()]
    nothing = [found(), found()]
    assert (
        pictures(judged(nothing, targets), nothing, Photos(targets, ("a", "b")), (0.5, 0.5)) == []
    )
