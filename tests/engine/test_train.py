"""The training loop, on a detector with one weight whose steps can be worked out by hand."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from rankdet.engine.distributed import ALONE, PeerStopped, Processes
from rankdet.engine.train import Position, Report, StepSettings, Stopwatch, training_steps
from rankdet.errors import TrainingError
from rankdet.structures import Predictions, Target


@dataclasses.dataclass(frozen=True)
class FakeBatch:
    """Images whose only pixel is the number that the detector multiplies with its weight."""

    images: Tensor
    names: tuple[str, ...]
    targets: list[Target] = dataclasses.field(default_factory=list)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> FakeBatch:
        assert non_blocking  # or the host would wait for the copy
        targets = [*self.targets, f"on {device}"]
        return dataclasses.replace(self, targets=targets)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.names)


class FakeLoader:
    """Batches of one image; `values[e][b]` is the pixel of batch b in epoch e."""

    def __init__(self, values: Sequence[Sequence[float]]) -> None:
        self.values = values
        self.asked: list[tuple[int, int]] = []
        self.num_given = 0

    def __len__(self) -> int:
        return len(self.values[0])

    def epoch(self, epoch: int, start: int = 0) -> Iterator[FakeBatch]:
        self.asked.append((epoch, start))
        for number, value in itertools.islice(enumerate(self.values[epoch]), start, None):
            self.num_given += 1
            yield FakeBatch(torch.full((1, 3, 1, 1), value), (f"epoch{epoch}-batch{number}.jpg",))


class OneWeight(nn.Module):
    """logits = weight * pixel."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.layouts: list[bool] = []

    def forward(self, images: Tensor, targets: object = None) -> list[Predictions]:
        assert self.training
        self.layouts.append(images.is_contiguous(memory_format=torch.channels_last))
        logits = (self.weight * images[:, :1, :1, :1]).reshape(len(images), 1, 1)
        anchors = torch.zeros(1, 4)
        return [Predictions("fake", logits, torch.zeros(len(images), 1, 4), anchors, (1,))]


@dataclasses.dataclass
class FakeLosses:
    parts: dict[str, Tensor]
    assignments: list[FakeAssignment]
    counts: dict[str, Tensor] = dataclasses.field(default_factory=dict)

    @property
    def total(self) -> Tensor:
        return sum(self.parts.values(), start=torch.zeros(()))


@dataclasses.dataclass
class FakeAssignment:
    labels: Tensor


def criterion(stages: list[Predictions], targets: Sequence[Target]) -> FakeLosses:
    """The class loss is the logit itself and the box loss half of it: gradients are known."""
    logits = stages[0].logits
    parts = {"class": logits.mean(), "box": logits.mean() / 2}
    return FakeLosses(parts, [FakeAssignment(torch.zeros(logits.shape[:2]))])


def steps(
    detector: nn.Module,
    loader: FakeLoader,
    *,
    num_epochs: int = 1,
    start: Position | None = None,
    rate: float = 0.1,
    criterion: object = criterion,
    optimizer: torch.optim.Optimizer | None = None,
    processes: Processes = ALONE,
    **settings: object,
) -> list[tuple[Position, Report]]:
    """Train to the end, with plain SGD unless told otherwise."""
    return list(
        training_steps(
            detector,
            criterion,  # type: ignore[arg-type]
            optimizer or torch.optim.SGD(detector.parameters(), lr=99.0),
            loader,
            learning_rate=lambda step: rate,
            average_precision=lambda logits, labels: logits.mean() * 0 + 0.25,
            settings=StepSettings(device=torch.device("cpu"), **settings),  # type: ignore[arg-type]
            num_epochs=num_epochs,
            start=start,
            processes=processes,
        )
    )


def test_a_step_goes_against_the_gradient_with_the_rate_of_the_schedule() -> None:
    detector = OneWeight(1.0)
    ((position, report),) = steps(detector, FakeLoader([[2.0]]))
    # loss = 1.5 * weight * 2, gradient 3, step 0.1 * 3
    assert detector.weight.item() == pytest.approx(0.7)
    assert position == Position(epoch=1, batch=0, step=1)
    assert report.losses == {"class": 2.0, "box": 1.0}
    assert report.gradient_norm == pytest.approx(3.0)
    assert report.learning_rate == 0.1
    assert report.num_images == 1


def test_every_group_of_the_optimiser_gets_the_rate() -> None:
    detector = OneWeight()
    other = nn.Parameter(torch.zeros(()))
    groups = [{"params": [detector.weight]}, {"params": [other]}]
    optimizer = torch.optim.SGD(groups, lr=99.0)
    generator = training_steps(
        detector,
        criterion,
        optimizer,
        FakeLoader([[1.0]]),
        learning_rate=lambda step: 0.25,
        average_precision=lambda logits, labels: logits.sum(),
        settings=StepSettings(device=torch.device("cpu")),
        num_epochs=1,
    )
    ((_, report),) = generator
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
    assert report.learning_rate == 0.25


def test_detector_and_criterion_get_the_targets_on_the_device() -> None:
    seen = []

    class Watched(OneWeight):
        def forward(self, images: Tensor, targets: object = None) -> list[Predictions]:
            seen.append(targets)
            return super().forward(images)

    def watching(stages: list[Predictions], targets: Sequence[Target]) -> FakeLosses:
        seen.append(targets)
        return criterion(stages, targets)

    steps(Watched(), FakeLoader([[1.0]]), criterion=watching)
    assert seen == [["on cpu"], ["on cpu"]]


def test_a_step_trains_whatever_an_evaluation_has_left() -> None:
    detector = OneWeight().eval()
    steps(detector, FakeLoader([[1.0]]))  # the detector itself looks
    assert detector.training


def test_the_learning_rate_is_asked_for_every_step_by_its_number() -> None:
    asked = []

    def learning_rate(step: int) -> float:
        asked.append(step)
        return 0.0

    detector = OneWeight()
    generator = training_steps(
        detector,
        criterion,
        torch.optim.SGD(detector.parameters(), lr=1.0),
        FakeLoader([[1.0] * 3] * 2),
        learning_rate=learning_rate,
        average_precision=lambda logits, labels: logits.sum(),
        settings=StepSettings(device=torch.device("cpu")),
        num_epochs=2,
        start=Position(epoch=1, batch=1, step=4),
    )
    assert [position.step for position, _ in generator] == [5, 6]
    assert asked == [4, 5]


def test_positions_name_the_next_micro_batch() -> None:
    found = [
        position for position, _ in steps(OneWeight(), FakeLoader([[0.0] * 2] * 2), num_epochs=2)
    ]
    assert found == [Position(0, 1, 1), Position(1, 0, 2), Position(1, 1, 3), Position(2, 0, 4)]


def test_accumulated_gradients_are_the_mean_over_the_micro_batches() -> None:
    detector = OneWeight(1.0)
    ((position, report),) = steps(detector, FakeLoader([[2.0, 4.0]]), accumulate=2)
    assert detector.weight.item() == pytest.approx(1 - 0.1 * 1.5 * 3)
    assert report.losses == {"class": 3.0, "box": 1.5}
    assert position == Position(1, 0, 1)


def test_micro_batches_that_do_not_fill_a_step_are_left_out_but_loaded_to_the_end() -> None:
    detector, loader = OneWeight(1.0), FakeLoader([[2.0, 4.0, 1000.0]])
    found = steps(detector, loader, accumulate=2)
    assert [position for position, _ in found] == [Position(1, 0, 1)]
    assert detector.weight.item() == pytest.approx(1 - 0.1 * 1.5 * 3)
    assert loader.num_given == 3


def test_going_on_from_any_position_gives_the_same_weights() -> None:
    values = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
    whole = OneWeight()
    reached = [
        (position, weight)
        for position, weight in _weights_after_each_step(whole, FakeLoader(values))
    ]
    for position, weight in reached[:-1]:
        again, loader = OneWeight(weight), FakeLoader(values)
        steps(again, loader, num_epochs=2, start=position, accumulate=2)
        assert again.weight.item() == whole.weight.item()
        assert loader.asked[0] == (position.epoch, position.batch)


def _weights_after_each_step(
    detector: OneWeight, loader: FakeLoader
) -> Iterator[tuple[Position, float]]:
    for position, _ in training_steps(
        detector,
        criterion,
        torch.optim.SGD(detector.parameters(), lr=1.0),
        loader,
        learning_rate=lambda step: 0.1,
        average_precision=lambda logits, labels: logits.sum(),
        settings=StepSettings(device=torch.device("cpu"), accumulate=2),
        num_epochs=2,
    ):
        yield position, detector.weight.item()


def test_nothing_is_loaded_where_all_epochs_are_done() -> None:
    loader = FakeLoader([[1.0]])
    assert steps(OneWeight(), loader, start=Position(epoch=1, batch=0, step=1)) == []
    assert loader.asked == []


def test_every_so_many_steps_are_measured() -> None:
    found = steps(OneWeight(), FakeLoader([[0.0] * 5]), log_every=2)
    assert [report.is_measured for _, report in found] == [True, False, True, False, True]
    assert [report.batch_ap for _, report in found] == [0.25, None, 0.25, None, 0.25]
    assert set(found[0][1].seconds) == {"data", "forward", "loss", "backward", "step"}
    assert all(seconds >= 0 for seconds in found[0][1].seconds.values())


def test_images_and_seconds_are_those_of_all_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    loader = FakeLoader([[1.0, 1.0]])
    loader.epoch = lambda epoch, start=0: iter(  # type: ignore[method-assign]
        [FakeBatch(torch.ones(2, 3, 1, 1), ("a", "b")), FakeBatch(torch.ones(1, 3, 1, 1), ("c",))]
    )
    ((_, report),) = steps(OneWeight(), loader, accumulate=2)
    assert report.num_images == 3
    # A part lasts from one look at the clock to the next.
    assert report.seconds == {"data": 1, "forward": 2, "loss": 2, "backward": 2, "step": 1}


def test_what_the_criterion_counted_is_the_mean_over_the_images_of_all_micro_batches() -> None:
    def counting(stages: list[Predictions], targets: Sequence[Target]) -> FakeLosses:
        number = stages[0].logits.detach().sum()  # as many as the pixel says
        return dataclasses.replace(criterion(stages, targets), counts={"roi.boxes": number})

    loader = FakeLoader([[10.0, 20.0]])
    ((_, report),) = steps(OneWeight(1.0), loader, accumulate=2, criterion=counting)
    assert report.counts == {"roi.boxes": pytest.approx(15)}
    ((_, report),) = steps(OneWeight(), loader, accumulate=2)
    assert report.counts == {}


def test_the_average_precision_is_that_of_the_last_stage() -> None:
    class TwoStages(OneWeight):
        def forward(self, images: Tensor, targets: object = None) -> list[Predictions]:
            (stage,) = super().forward(images)
            return [stage, dataclasses.replace(stage, logits=stage.logits * 10)]

    def two(stages: list[Predictions], targets: object) -> FakeLosses:
        labels = [FakeAssignment(torch.tensor(0.0)), FakeAssignment(torch.tensor(0.5))]
        return FakeLosses({"class": stages[1].logits.sum()}, labels)

    detector = TwoStages()
    generator = training_steps(
        detector,
        two,
        torch.optim.SGD(detector.parameters(), lr=1.0),
        FakeLoader([[2.0]]),
        learning_rate=lambda step: 0.1,
        average_precision=lambda logits, labels: logits.sum() + labels,
        settings=StepSettings(device=torch.device("cpu")),
        num_epochs=1,
    )
    assert [report.batch_ap for _, report in generator] == [20.5]


def test_a_gradient_above_the_limit_is_scaled_down() -> None:
    detector = OneWeight(1.0)
    ((_, report),) = steps(detector, FakeLoader([[2.0]]), clip_norm=0.5)
    assert detector.weight.item() == pytest.approx(1 - 0.1 * 0.5, rel=1e-4)
    assert report.gradient_norm == pytest.approx(3.0)


def test_images_are_laid_out_as_asked() -> None:
    detector, loader = OneWeight(), FakeLoader([[1.0]])
    loader.epoch = lambda epoch, start=0: iter(  # type: ignore[method-assign]
        [FakeBatch(torch.ones(1, 3, 2, 2), ("a.jpg",))]
    )
    steps(detector, loader, channels_last=True)
    steps(detector, loader, channels_last=False)
    assert detector.layouts == [True, False]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_stop_the_training_before_a_weight_changes(
    value: float, fused: bool
) -> None:
    detector = OneWeight(1.0)
    optimizer = torch.optim.SGD(detector.parameters(), lr=99.0, fused=fused)
    with pytest.raises(TrainingError, match="not finite") as error:
        steps(detector, FakeLoader([[0.0, value]]), accumulate=2, optimizer=optimizer)
    assert "epoch0-batch0.jpg, epoch0-batch1.jpg" in str(error.value)
    assert detector.weight.item() == 1.0


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_fused_optimiser_steps_as_any_other_and_stops_where_it_was(kind: type) -> None:
    """It is asked to step before the host knows the numbers: the device decides."""
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    values = [2.0, 3.0, 1.0, math.nan]
    weights, states = [], []
    for fused in (False, True):
        detector = OneWeight(1.0)
        optimizer = kind(detector.parameters(), lr=99.0, fused=fused, **options)
        with pytest.raises(TrainingError, match="class scores = nan"):
            steps(detector, FakeLoader([values]), optimizer=optimizer)
        weights.append(detector.weight.item())
        states.append({k: float(v) for k, v in optimizer.state[detector.weight].items()})
    assert weights[0] != 1.0
    assert weights[1] == pytest.approx(weights[0])
    assert states[1] == pytest.approx(states[0])


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimiser_whose_first_step_was_left_out_can_be_used_again(kind: type) -> None:
    """A fused SGD would keep the memory that it got for its momentum, whatever was in there."""
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    weights = []
    for values in ([math.nan], []):
        detector = OneWeight(1.0)
        optimizer = kind(detector.parameters(), lr=99.0, fused=True, **options)
        for value in values:
            with pytest.raises(TrainingError, match="class scores = nan"):
                steps(detector, FakeLoader([[value]]), optimizer=optimizer)
            assert not optimizer.state
        assert not hasattr(optimizer, "found_inf")  # or a step of somebody else's would ask it
        steps(detector, FakeLoader([[2.0, 3.0]]), optimizer=optimizer)
        weights.append(detector.weight.item())
    assert weights[0] == weights[1] != 1.0


@pytest.mark.parametrize("fused", [False, True])
def test_the_optimiser_steps_with_the_clipped_gradient(fused: bool) -> None:
    detector = OneWeight(1.0)
    optimizer = torch.optim.SGD(detector.parameters(), lr=99.0, fused=fused)
    steps(detector, FakeLoader([[2.0]]), clip_norm=0.5, optimizer=optimizer)
    assert detector.weight.item() == pytest.approx(1 - 0.1 * 0.5)  # the gradient was 3


def test_logits_that_the_loss_does_not_read_are_checked_too() -> None:
    def blind(stages: list[Predictions], targets: object) -> FakeLosses:
        return FakeLosses(
            {"class": stages[0].deltas.sum() * 0 + 0 * detector.weight},
            [FakeAssignment(torch.zeros(1))],
        )

    detector = OneWeight(1.0)
    for values in ([math.nan, 1.0], [1.0, math.nan]):
        with pytest.raises(TrainingError, match="class scores = nan"):
            steps(detector, FakeLoader([values]), criterion=blind, accumulate=2)


def test_many_logits_of_half_precision_may_sum_to_more_than_it_can_hold() -> None:
    class Half(OneWeight):
        def forward(self, images: Tensor, targets: object = None) -> list[Predictions]:
            (stage,) = super().forward(images)
            return [dataclasses.replace(stage, logits=stage.logits.half().expand(-1, 3, -1))]

    ((_, report),) = steps(Half(), FakeLoader([[40000.0]]))
    assert report.losses["class"] == 40000


def test_a_loss_that_refuses_its_scores_becomes_the_same_error() -> None:
    def strict(stages: list[Predictions], targets: object) -> FakeLosses:
        raise FloatingPointError("logits[0] is NaN")

    with pytest.raises(TrainingError, match=r"logits\[0\] is NaN.*epoch0-batch0.jpg"):
        steps(OneWeight(), FakeLoader([[1.0]]), criterion=strict)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_gradient_that_is_not_finite_stops_the_training_though_the_loss_is_fine(
    value: str, clip_norm: float | None, fused: bool
) -> None:
    def steep(stages: list[Predictions], targets: object) -> FakeLosses:
        # The root has an infinite slope at 0, and the value 0.
        logits = stages[0].logits
        part = (logits * 0 if value == "nan" else logits - 1).sqrt().sum()
        return FakeLosses({"class": part}, [FakeAssignment(torch.zeros(1))])

    detector = OneWeight(1.0)
    optimizer = torch.optim.SGD(detector.parameters(), lr=99.0, momentum=0.9, fused=fused)
    settings = {"criterion": steep, "optimizer": optimizer, "clip_norm": clip_norm}
    with pytest.raises(TrainingError, match=f"norm of the gradient = {value}"):
        steps(detector, FakeLoader([[1.0]]), **settings)
    assert detector.weight.item() == 1.0


def test_a_part_of_the_loss_that_is_not_finite_is_named() -> None:
    def broken(stages: list[Predictions], targets: object) -> FakeLosses:
        logit = stages[0].logits.sum()
        parts = {"class": logit, "box": logit.detach() * math.inf}
        return FakeLosses(parts, [FakeAssignment(torch.zeros(1))])

    with pytest.raises(TrainingError, match="the box loss = inf"):
        steps(OneWeight(), FakeLoader([[1.0]]), criterion=broken)


def test_autocast_reaches_the_detector_and_not_the_criterion() -> None:
    seen = []

    class Wide(OneWeight):
        def forward(self, images: Tensor, targets: object = None) -> list[Predictions]:
            seen.append(torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"))
            return super().forward(images)

    def watching(stages: list[Predictions], targets: Sequence[Target]) -> FakeLosses:
        seen.append(torch.is_autocast_enabled("cpu"))
        return criterion(stages, targets)

    for precision in (torch.bfloat16, torch.float16):
        steps(Wide(), FakeLoader([[1.0]]), criterion=watching, precision=precision)
    steps(Wide(), FakeLoader([[1.0]]), criterion=watching)
    assert seen == [torch.bfloat16, False, torch.float16, False, False, False]


@pytest.mark.parametrize("is_on", [True, False])
def test_a_gpu_finishes_its_work_only_where_time_is_measured(
    monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    gpu = torch.device("cuda:1")
    with Stopwatch(StepSettings(device=gpu), is_on).part("step"):
        pass
    assert waited == [gpu, gpu] * is_on


# Several processes


class Pair(Processes):
    """Two processes, of which the other says what the test wants."""

    def __init__(self, rank: int, other: list[float]) -> None:
        super().__init__(rank, world_size=2)
        object.__setattr__(self, "other", other)

    @property
    def is_alone(self) -> bool:
        return False

    def summed(self, tensor: Tensor) -> Tensor:
        return tensor + torch.tensor(self.other)  # type: ignore[attr-defined]

    def gathered(self, content: bytes) -> list[bytes]:
        return [content, b'["theirs.jpg"]'] if self.is_first else []


def test_losses_are_averaged_over_the_processes_and_images_counted() -> None:
    # Of the other: sum of the scores, class and box loss, norm, images.
    pair = Pair(0, [5.0, 4.0, 3.0, 3.0, 3.0])
    ((_, report),) = steps(OneWeight(1.0), FakeLoader([[2.0]]), processes=pair)
    assert report.losses == {"class": 3.0, "box": 2.0}
    assert report.gradient_norm == 3.0
    assert report.num_images == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_a_number_of_another_process_that_is_not_finite_stops_this_one_too(rank: int) -> None:
    detector = OneWeight(1.0)
    pair = Pair(rank, [math.nan, 4.0, 3.0, 3.0, 3.0])
    with pytest.raises(TrainingError) as error:
        steps(detector, FakeLoader([[2.0]]), processes=pair)
    assert detector.weight.item() == 1.0
    if rank:
        assert str(error.value) == (
            "process 1 stops with the others: the sum of the class scores = nan"
        )
    else:
        assert "Its images: epoch0-batch0.jpg, theirs.jpg." in str(error.value)


def test_what_another_process_raises_comes_before_the_step() -> None:
    class Failing(Pair):
        @contextlib.contextmanager
        def together(self) -> Iterator[None]:
            yield
            raise PeerStopped("process 1: no luck")

    detector = OneWeight(1.0)
    with pytest.raises(PeerStopped):
        steps(detector, FakeLoader([[2.0]]), processes=Failing(0, [0.0] * 5))
    assert detector.weight.item() == 1.0
