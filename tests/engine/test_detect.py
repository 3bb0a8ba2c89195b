"""Detection over a data set: a detector that sees bright rectangles exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import batched_nms

from rankdet.engine.detect import Detected, View, detect, to_original
from rankdet.errors import TrainingError
from rankdet.structures import Detections, Predictions

Box = tuple[int, int, int, int]
Size = tuple[int, int]


@dataclass(frozen=True)
class Picture:
    """A black picture with a red rectangle (class 0) and a green one (class 1)."""

    size: Size
    red: Box
    green: Box

    def pixels(self) -> Tensor:
        image = torch.zeros(3, *self.size)
        for channel, (x1, y1, x2, y2) in enumerate((self.red, self.green)):
            image[channel, y1:y2, x1:x2] = 1
        return image

    def boxes(self) -> Tensor:
        return torch.tensor([self.red, self.green]).float()


PICTURES = [
    Picture((20, 30), (2, 3, 10, 9), (15, 4, 30, 20)),
    Picture((30, 20), (0, 0, 20, 30), (5, 5, 7, 8)),
    Picture((10, 40), (30, 1, 38, 9), (1, 1, 2, 2)),
    Picture((16, 16), (4, 5, 12, 16), (0, 8, 3, 9)),
    Picture((25, 10), (1, 2, 9, 24), (3, 4, 5, 6)),
]


@dataclass(frozen=True)
class FakeBatch:
    images: Tensor
    sizes: Tensor
    indices: Tensor
    names: tuple[str, ...]


@dataclass
class FakeLoader:
    """The pictures enlarged by whole factors (down, across), in batches with much padding."""

    down: int = 1
    across: int = 1
    is_flipped: bool = False
    batch_size: int = 2
    order: list[int] = field(default_factory=lambda: list(range(len(PICTURES))))
    num_loaded: int = 0

    def __len__(self) -> int:
        return -(-len(self.order) // self.batch_size)

    def epoch(self, epoch: int) -> Iterator[FakeBatch]:
        assert epoch == 0
        for start in range(0, len(self.order), self.batch_size):
            self.num_loaded += 1
            yield self.batch(self.order[start : start + self.batch_size])

    def batch(self, indices: list[int]) -> FakeBatch:
        images = [self.seen(PICTURES[index]) for index in indices]
        height = max(image.shape[1] for image in images) + 13
        width = max(image.shape[2] for image in images) + 17
        padded = torch.zeros(len(images), 3, height, width)
        for row, image in zip(padded, images, strict=True):
            row[:, : image.shape[1], : image.shape[2]] = image
        return FakeBatch(
            images=padded,
            sizes=torch.tensor([image.shape[1:] for image in images]),
            indices=torch.tensor(indices),
            names=tuple(f"{index}.png" for index in indices),
        )

    def seen(self, picture: Picture) -> Tensor:
        pixels = picture.pixels()
        pixels = pixels.repeat_interleave(self.down, 1).repeat_interleave(self.across, 2)
        return pixels.flip(2) if self.is_flipped else pixels


class Seer(nn.Module):
    """Says for each image where red and green are: boxes as deltas, the score as logit.

    Scores grow with the image, so that the largest view is the surest.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.extra = nn.Dropout()
        self.spoil: dict[int, float] = {}  # call: the value that takes the place of an output
        self.spoilt_output = "logits"
        self.num_calls = 0
        self.seen: list[dict[str, Any]] = []

    def forward(self, images: Tensor, sizes: object = None) -> list[Predictions]:
        self.seen.append(
            {
                "training": [module.training for module in self.modules()],
                "grad": torch.is_grad_enabled(),
                "autocast": torch.is_autocast_enabled("cpu"),
                "dtype": torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype,
                "channels_last": images.is_contiguous(memory_format=torch.channels_last),
                "sizes": sizes,
            }
        )
        deltas = torch.stack([self.boxes_of(image) for image in images])
        logits = torch.full((len(images), 2, 1), images.shape[-1] / 1000)
        outputs = {"logits": logits, "deltas": deltas}
        if self.num_calls in self.spoil:
            outputs[self.spoilt_output][-1, -1, -1] = self.spoil[self.num_calls]
        self.num_calls += 1
        return [Predictions("fake", anchors=torch.zeros(2, 4), level_sizes=(2,), **outputs)]

    def boxes_of(self, image: Tensor) -> Tensor:
        boxes = []
        for channel in image[:2]:
            rows, columns = channel.nonzero().unbind(dim=1)
            low, high = (columns.min(), rows.min()), (columns.max() + 1, rows.max() + 1)
            boxes.append(torch.stack([*low, *high]).float())
        return torch.stack(boxes)


@dataclass
class FakePostprocess:
    """Takes deltas as boxes; class c is anchor c."""

    calls: list[str] = field(default_factory=list)

    def __call__(self, stages: list[Predictions], sizes: Tensor) -> list[Detections]:
        self.calls.append("both")
        return [self._suppressed(found) for found in self._candidates(stages)]

    def candidates(self, stages: list[Predictions], sizes: Tensor) -> list[Detections]:
        self.calls.append("candidates")
        return self._candidates(stages)

    def suppress(self, detections: Detections) -> Detections:
        self.calls.append("suppress")
        return self._suppressed(detections)

    def _candidates(self, stages: list[Predictions]) -> list[Detections]:
        (stage,) = stages
        return [
            Detections(boxes, logits[:, 0], torch.arange(2))
            for boxes, logits in zip(stage.deltas, stage.logits, strict=True)
        ]

    def _suppressed(self, detections: Detections) -> Detections:
        kept = batched_nms(detections.boxes, detections.scores, detections.labels, 0.5)
        return detections.select(kept)


def size_of(index: int) -> Size:
    return PICTURES[index].size


def run(*views: View, detector: Seer | None = None, **settings: Any) -> Detected:
    settings = {"device": "cpu", **settings}
    found = detect(detector or Seer(), FakePostprocess(), views, size_of, **settings)
    assert found is not None
    return found


def check(found: Detected) -> None:
    """Both rectangles of each picture, once, in the picture's own pixels."""
    assert len(found.detections) == len(PICTURES)
    for detections, picture in zip(found.detections, PICTURES, strict=True):
        assert sorted(detections.labels.tolist()) == [0, 1]
        torch.testing.assert_close(detections.boxes[detections.labels.argsort()], picture.boxes())


# Boxes in the image's own pixels


@pytest.mark.parametrize(("down", "across"), [(1, 1), (2, 2), (3, 5), (4, 1)])
@pytest.mark.parametrize("is_flipped", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 5, 8])
def test_boxes_come_back_in_original_pixels(
    down: int, across: int, is_flipped: bool, batch_size: int
) -> None:
    loader = FakeLoader(down, across, is_flipped, batch_size)
    check(run(View(loader, is_flipped)))


def test_an_enlarged_box_is_scaled_on_each_axis_and_clipped_by_hand() -> None:
    seen = Detections(
        torch.tensor([[8.0, 10.0, 20.0, 30.0], [-4.0, -5.0, 99.0, 99.0]]),
        torch.tensor([0.9, 0.8]),
        torch.tensor([3, 1]),
    )
    found = to_original(seen, (100, 40), (50, 80))  # half as high, twice as wide
    assert found.boxes.tolist() == [[16.0, 5.0, 40.0, 15.0], [0.0, 0.0, 80.0, 49.5]]
    assert found.scores is seen.scores
    assert found.labels is seen.labels


def test_an_unflipped_box_keeps_left_below_right_by_hand() -> None:
    seen = Detections(torch.tensor([[8.0, 10.0, 20.0, 30.0]]), torch.ones(1), torch.zeros(1))
    found = to_original(seen, (100, 40), (50, 80), is_flipped=True)
    assert found.boxes.tolist() == [[40.0, 5.0, 64.0, 15.0]]


@pytest.mark.parametrize("side", [0, 1, 2, 3])
def test_a_box_past_any_edge_is_clipped_to_the_original(side: int) -> None:
    inside = torch.tensor([[2.0, 3.0, 10.0, 20.0]])
    boxes = inside.clone()
    boxes[0, side] = (-1.0, -1.0, 41.0, 101.0)[side]
    found = to_original(Detections(boxes, torch.ones(1), torch.zeros(1)), (100, 40), (100, 40))
    expected = inside.clone()
    expected[0, side] = (0.0, 0.0, 40.0, 100.0)[side]
    assert found.boxes.tolist() == expected.tolist()


def test_boxes_of_low_precision_come_back_as_float32() -> None:
    seen = Detections(torch.ones(1, 4, dtype=torch.bfloat16), torch.ones(1), torch.zeros(1))
    assert to_original(seen, (3, 3), (1000, 1000)).boxes.dtype == torch.float32


def test_an_image_without_detections_has_an_empty_result() -> None:
    class Nothing(FakePostprocess):
        def __call__(self, stages: list[Predictions], sizes: Tensor) -> list[Detections]:
            empty = torch.zeros(0, dtype=torch.int64)
            return [found.select(empty) for found in self._candidates(stages)]

    found = detect(Seer(), Nothing(), [View(FakeLoader())], size_of, device="cpu")
    assert found is not None
    assert [len(detections) for detections in found.detections] == [0] * len(PICTURES)
    assert found.detections[0].boxes.shape == (0, 4)


# Several views


def test_the_duplicates_of_several_views_are_removed() -> None:
    views = [
        View(FakeLoader(across=across, down=across, is_flipped=is_flipped), is_flipped)
        for across in (1, 2, 3)
        for is_flipped in (False, True)
    ]
    check(run(*views))


def test_the_surest_view_is_kept() -> None:
    found = run(View(FakeLoader(1, 1)), View(FakeLoader(3, 3)), View(FakeLoader(2, 2)))
    sure = run(View(FakeLoader(3, 3)))
    for merged, alone in zip(found.detections, sure.detections, strict=True):
        assert merged.scores.tolist() == alone.scores.tolist()


def test_what_only_one_view_finds_is_kept() -> None:
    class OneEyed(Seer):
        def boxes_of(self, image: Tensor) -> Tensor:
            boxes = super().boxes_of(image)
            boxes[self.num_calls % 2] = 0  # first view: green only; second: red only
            return boxes

    found = run(View(FakeLoader()), View(FakeLoader(2, 2)), detector=OneEyed())
    for detections, picture in zip(found.detections, PICTURES, strict=True):
        for box in picture.boxes():
            assert (detections.boxes == box).all(dim=1).sum() == 1


def test_one_view_is_suppressed_at_once_and_several_only_when_together() -> None:
    one, two = FakePostprocess(), FakePostprocess()
    detect(Seer(), one, [View(FakeLoader(batch_size=5))], size_of, device="cpu")
    loaders = [FakeLoader(batch_size=5), FakeLoader(2, 2, batch_size=5)]
    detect(Seer(), two, [View(loader) for loader in loaders], size_of, device="cpu")
    assert one.calls == ["both"]
    assert two.calls == ["candidates"] * 2 + ["suppress"] * len(PICTURES)


def test_views_with_other_images_are_refused() -> None:
    loaders = FakeLoader(), FakeLoader(order=[1, 0, 2, 3, 4])
    with pytest.raises(ValueError, match="same images in every view"):
        run(*map(View, loaders))


def test_views_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        run(View(FakeLoader()), View(FakeLoader(order=[0, 1])))


def test_no_view_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one view"):
        run()


# Order and completeness


def test_results_stand_in_the_order_of_the_data_set_whatever_the_batches() -> None:
    check(run(View(FakeLoader(order=[3, 1, 4, 0, 2]))))


@pytest.mark.parametrize("order", [[0, 1, 1, 2], [0, 2], [1, 2]])
def test_an_image_that_comes_twice_or_is_missing_is_our_mistake(order: list[int]) -> None:
    with pytest.raises(AssertionError):
        run(View(FakeLoader(order=order)))


def test_no_images_give_no_results() -> None:
    found = run(View(FakeLoader(order=[])))
    assert found.detections == []
    assert found.images_per_second == found.network_images_per_second == 0


# How the detector is called


def test_the_detector_is_told_the_size_of_each_image_without_its_padding() -> None:
    detector = Seer()
    run(View(FakeLoader(2, 3, batch_size=2)), detector=detector)
    told = [size for call in detector.seen for size in call["sizes"].tolist()]
    assert told == [[2 * picture.size[0], 3 * picture.size[1]] for picture in PICTURES]


@pytest.mark.parametrize("is_training", [False, True])
def test_the_detector_is_evaluated_without_gradients_and_gets_its_modes_back(
    is_training: bool,
) -> None:
    detector = Seer().train(is_training)
    detector.norm.eval()  # as a frozen norm in a detector that trains
    run(View(FakeLoader()), detector=detector)
    assert detector.seen[0]["training"] == [False] * 3
    assert not detector.seen[0]["grad"]
    assert [detector.training, detector.norm.training] == [is_training, False]
    assert detector.extra.training is is_training


def test_the_modes_come_back_after_an_error_too() -> None:
    detector = Seer().train()
    detector.spoil = {0: float("nan")}
    with pytest.raises(TrainingError):
        run(View(FakeLoader()), detector=detector)
    assert detector.training


def test_results_are_ordinary_tensors() -> None:
    found = run(View(FakeLoader())).detections[0]
    assert not found.boxes.is_inference()
    found.boxes.add_(1)  # allowed


def test_the_network_computes_in_float32() -> None:
    """In bfloat16 many scores would be equal, and AP is about their order."""
    detector = Seer()
    run(View(FakeLoader()), detector=detector)
    assert [detector.seen[0]["autocast"], detector.seen[0]["dtype"]] == [False, torch.float32]


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_images_have_the_memory_layout_asked_for(channels_last: bool) -> None:
    detector = Seer()
    run(View(FakeLoader()), detector=detector, channels_last=channels_last)
    assert {seen["channels_last"] for seen in detector.seen} == {channels_last}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("output", ["logits", "deltas"])
def test_an_output_that_is_not_finite_names_the_image(value: float, output: str) -> None:
    detector = Seer()
    detector.spoil, detector.spoilt_output = {1: value}, output
    with pytest.raises(TrainingError, match="not finite") as caught:
        run(View(FakeLoader()), detector=detector)
    assert "3.png" in str(caught.value)
    assert "2.png" not in str(caught.value)  # the other image of the batch is fine


def test_a_long_list_of_images_is_cut() -> None:
    class Broken(Seer):
        def forward(self, images: Tensor, sizes: object = None) -> list[Predictions]:
            (stage,) = super().forward(images)
            return [replace(stage, logits=stage.logits * float("nan"))]

    class Many(FakeLoader):
        def batch(self, indices: list[int]) -> FakeBatch:
            return super().batch([0] * 11)

    with pytest.raises(TrainingError, match=r"(0\.png, ){7}0\.png and 3 more: "):
        run(View(Many()), detector=Broken())


# Progress, time and stopping


def test_progress_counts_every_image_once() -> None:
    counts: list[int] = []
    run(View(FakeLoader()), View(FakeLoader(2, 2)), on_batch=counts.append)
    assert counts == [2, 2, 1]


def test_a_stop_in_the_middle_gives_nothing_and_loads_no_more() -> None:
    loader, counts = FakeLoader(), []
    detector = Seer().train()
    found = detect(
        detector,
        FakePostprocess(),
        [View(loader)],
        size_of,
        device="cpu",
        on_batch=counts.append,
        should_stop=lambda: bool(counts),
    )
    assert found is None
    assert counts == [2]
    assert loader.num_loaded == 2
    assert detector.training


def test_a_stop_after_the_last_batch_comes_too_late() -> None:
    counts: list[int] = []
    check(
        run(
            View(FakeLoader()),
            on_batch=counts.append,
            should_stop=lambda: sum(counts) == len(PICTURES),
        )
    )


def test_rates_count_from_the_first_batch_and_separate_the_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr("rankdet.engine.detect.time.perf_counter", lambda: clock[0])

    class Slow(FakeLoader):
        def batch(self, indices: list[int]) -> FakeBatch:
            clock[0] += 50.0 if indices[0] == 0 else 3.0  # workers start with the first batch
            return super().batch(indices)

    class SlowSeer(Seer):
        def forward(self, images: Tensor, sizes: object = None) -> list[Predictions]:
            clock[0] += 2.0
            return super().forward(images)

    found = run(View(Slow()), detector=SlowSeer())
    assert found.seconds == 3 * 2.0 + 2 * 3.0
    assert found.network_seconds == 3 * 2.0
    assert found.images_per_second == 5 / 12
    assert found.network_images_per_second == 5 / 6


# The outputs


def test_outputs_of_the_first_view_are_handed_on_with_their_batch() -> None:
    told: list[tuple[list[Predictions], FakeBatch]] = []
    detector = Seer()
    found = run(
        *(View(FakeLoader()), View(FakeLoader(2, 2)), View(FakeLoader(is_flipped=True), True)),
        detector=detector,
        on_outputs=lambda stages, batch: told.append((stages, batch)),
    )
    check(found)
    assert [batch.indices.tolist() for _, batch in told] == [[0, 1], [2, 3], [4]]
    for (stage,), batch in told:
        assert torch.equal(batch.images, FakeLoader().batch(batch.indices.tolist()).images)
        assert len(stage.logits) == len(batch.names)
        assert stage.logits[0, 0, 0] == batch.images.shape[-1] / 1000
    assert detector.num_calls == 9  # no view is looked at twice


def test_outputs_that_are_not_finite_are_not_handed_on() -> None:
    detector = Seer()
    detector.spoil = {0: float("nan")}
    with pytest.raises(TrainingError):
        run(View(FakeLoader()), detector=detector, on_outputs=lambda *_: pytest.fail("told"))


def test_the_time_of_who_gets_the_outputs_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("rankdet.engine.detect.time.perf_counter", lambda: clock[0])

    class SlowSeer(Seer):
        def forward(self, images: Tensor, sizes: object = None) -> list[Predictions]:
            clock[0] += 2.0
            return super().forward(images)

    def look(stages: list[Predictions], batch: FakeBatch) -> None:
        clock[0] += 10.0

    found = run(View(FakeLoader()), detector=SlowSeer(), on_outputs=look)
    assert found.seconds == found.network_seconds == 3 * 2.0


def test_a_detector_that_was_compiled_for_training_runs_as_it_is_written() -> None:
    compiled = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Any:
        compiled.append(graph)
        return graph.forward

    detector = Seer()
    detector.norm.compile(backend=backend)
    layer = detector.norm
    detector.boxes_of = lambda image: Seer.boxes_of(detector, image * (layer(image[None])[0] > -9))  # type: ignore[method-assign]
    check(run(View(FakeLoader()), detector=detector))
    assert compiled == []
    detector.norm(torch.rand(2, 3, 4, 4))
    assert len(compiled) == 1
