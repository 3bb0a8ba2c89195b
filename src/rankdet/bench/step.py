"""What a training step costs, part by part, and how many images a second that makes.

The step is the one of `rankdet train --compile`: the same network, criterion, optimiser and loop,
made by the same functions, on a batch that is on the device already. Marks (CUDA events) are put
between its parts while it runs, so that the parts add up to the step. The peer is torchvision's
own RetinaNet in the same process: as its reference script trains it, and with our compiling,
memory layout and precision.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from rankdet import build
from rankdet.bench import gpu
from rankdet.bench.clock import Clock
from rankdet.bench.step_tables import PARTS, print_tables
from rankdet.bench.times_cuda import timed
from rankdet.bench.torchvision_step import DIFFERENCES, make_torchvision, torchvision_step
from rankdet.config import Config, DetectorConfig, LossConfig, TrainingConfig
from rankdet.data.loading.collate import Batch
from rankdet.detectors.assign import Assignment
from rankdet.detectors.criterion import Criterion, Losses
from rankdet.detectors.detector import freeze
from rankdet.detectors.retinanet import RetinaNet
from rankdet.engine.train import StepSettings, Stopwatch, training_step
from rankdet.output import write_whole
from rankdet.provenance import provenance
from rankdet.structures import Predictions, Target

# Weights stay as they are, so that every step has the same work, whatever it does to a network
# with random weights.
_LEARNING_RATE = 1e-12
# torchvision's anchors, P6 and coding of boxes: the recipe torchvision-coco
_AS_TORCHVISION: dict[str, Any] = {
    "p6_from": "p5",
    "anchor_octaves": 3,
    "anchor_grid": "torchvision",
    "box_weights": (1.0, 1.0, 1.0, 1.0),
}


@dataclass(frozen=True)
class Sizes:
    """How much is measured. side: of the square images. is_compiled: backbone and head."""

    backbone: str = "resnet50"
    peer_backbone: str = "resnet50"
    side: int = 512
    num_images: int = 16
    num_warm_up: int = 5
    num_steps: int = 30
    is_compiled: bool = True


QUICK = Sizes("small", "resnet18", 64, 2, num_warm_up=1, num_steps=3, is_compiled=False)


_ENDS = {  # part of the stopwatch: what its last stretch is here
    "forward": "network forward",
    "loss": "box loss",
    "backward": "network backward",
    "step": "optimiser and checks",
}


class _Marks(Stopwatch):
    """A stopwatch of `training_step` that marks the ends of its parts, and never waits."""

    def __init__(self, settings: StepSettings, clock: Clock) -> None:
        super().__init__(settings, is_on=False)
        self.clock = clock

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self.clock.mark("optimiser and checks")  # what is between two parts are checks
        yield
        self.clock.mark(_ENDS[name])


@dataclass(frozen=True)
class Network:
    """A detector, ready to be trained with any loss."""

    config: Config
    detector: RetinaNet
    optimizer: torch.optim.Optimizer
    settings: StepSettings


def make_network(sizes: Sizes, num_classes: int, images: Tensor, **detector: Any) -> Network:
    """The network as `rankdet.workflows.parts.prepare` makes it, with scores that differ on images.

    detector: settings of `DetectorConfig`.
    """
    device = images.device
    config = Config(
        detector=DetectorConfig(
            backbone=sizes.backbone, norm="frozen", frozen_stages=2, **detector
        ),
        training=TrainingConfig(
            batch_size=sizes.num_images, learning_rate=_LEARNING_RATE, compile=sizes.is_compiled
        ),
    )
    module = build.detector(config.detector, num_classes, "sigmoid")
    calm(module)
    freeze(module, build.num_frozen_stages(config.detector))
    module = build.placed(module, config.training, device)
    assert isinstance(module, RetinaNet)
    spread_scores(module, images)
    if config.training.compile:
        for part in module.compilable_parts:
            part.compile()
    settings = StepSettings(
        device=device,
        precision=build.precision(config.training, device),
        channels_last=build.is_channels_last(config.training, device),
    )
    return Network(config, module, build.optimizer(config, module), settings)


def calm(module: nn.Module) -> None:
    """Weaken the residual branches: frozen norms with random weights would let maps grow.

    As the norms of pretrained networks do. The work of a step does not depend on it.
    """
    for name, layer in module.named_modules():
        if name.endswith(("bn3", "layer1.bn2", "layer2.bn2", "layer3.bn2", "layer4.bn2")):
            layer.weight.fill_(0.2)


@torch.no_grad()
def spread_scores(module: RetinaNet, images: Tensor) -> None:
    """Give the scores a standard deviation of 1, as they have in a training.

    With fresh weights all of them would be the same number in bfloat16.
    """
    (predictions,) = module(images[:1])
    module.head.classification_head.cls_logits.weight.div_(predictions.logits.std())


def make_criterion(network: Network, loss_name: str) -> Criterion:
    """The criterion of a training with this loss."""
    config = replace(network.config, loss=LossConfig(name=loss_name))
    return build.criterion(config, build.class_loss(config.loss)).to(network.settings.device)


def make_batch(sizes: Sizes, num_classes: int, device: torch.device, seed: int) -> Batch:
    """Noise with 2 to 8 objects an image, in every fourth three times as many."""
    generator = torch.Generator().manual_seed(seed)
    targets = []
    for index in range(sizes.num_images):
        num_objects = int(torch.randint(2, 9, (1,), generator=generator))
        num_objects *= 3 if index % 4 == 3 else 1
        corners = torch.rand(num_objects, 2, generator=generator) * 0.8 * sizes.side
        # Squares of a number favour small objects, as data sets have them.
        extents = torch.rand(num_objects, 2, generator=generator).square() * 0.9 + 0.05
        boxes = torch.cat([corners, corners + extents * sizes.side], dim=1).clamp(max=sizes.side)
        labels = torch.randint(num_classes, (num_objects,), generator=generator)
        nothing = torch.zeros(num_objects, dtype=torch.bool)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
        size = (sizes.side, sizes.side)
        targets.append(Target(boxes, labels, nothing, areas, index, size).to(device))
    images = torch.rand(sizes.num_images, 3, sizes.side, sizes.side, generator=generator)
    return Batch(
        images=images.to(device),
        targets=targets,
        sizes=torch.full((sizes.num_images, 2), sizes.side),
        indices=torch.arange(sizes.num_images),
        names=tuple(map(str, range(sizes.num_images))),
    )


def no_loss(stages: Sequence[Predictions], targets: Sequence[Target]) -> Losses:
    """The sums of all outputs: nothing is matched, and the network's gradient has its full work."""
    (stage,) = stages
    parts = {"class": stage.logits, "box": stage.deltas}
    return Losses({name: part.sum(dtype=torch.float32) for name, part in parts.items()}, [])


def median_step(step: Callable[[], object], sizes: Sizes, device: torch.device) -> dict[str, float]:
    """Median milliseconds of a step by the device's and by the wall's clock, and images a second.

    images_per_second is by the wall's clock, over all steps.
    """
    for _ in range(sizes.num_warm_up):
        step()
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.synchronize(device)
    clock, moments = Clock(device), [time.perf_counter()]
    clock.mark("")
    for _ in range(sizes.num_steps):
        step()
        clock.mark("step")
        moments.append(time.perf_counter())
    times = [milliseconds for _, milliseconds in clock.milliseconds()]
    seconds = time.perf_counter() - moments[0]
    walls = [now - before for before, now in itertools.pairwise(moments)]
    numbers = {
        "milliseconds": statistics.median(times),
        "wall_milliseconds": 1e3 * statistics.median(walls),
        "images_per_second": sizes.num_images * sizes.num_steps / seconds,
    }
    if is_cuda:
        numbers["peak_gibibytes"] = torch.cuda.max_memory_allocated(device) / 2**30
    return numbers


def our_step(
    network: Network, criterion: Callable[..., Losses], batch: Batch, watch: Stopwatch | None = None
) -> None:
    """One step of the training loop."""
    training_step(
        network.detector,
        criterion,
        network.optimizer,
        [batch],
        network.settings,
        _unused,
        watch or Stopwatch(network.settings, is_on=False),
    )


def _unused(logits: Tensor, labels: Tensor) -> Tensor:
    raise AssertionError("the average precision was asked for in a step that is not logged")


def part_milliseconds(
    network: Network, criterion: Criterion, batch: Batch, num_steps: int
) -> dict[str, float]:
    """Median milliseconds of each part of the step, forward and backward together."""
    clocks = [Clock(network.settings.device) for _ in range(num_steps)]
    for clock in clocks:
        with _marked(criterion, clock) as marked:
            clock.mark("")
            our_step(network, marked, batch, _Marks(network.settings, clock))
    steps = []
    for clock in clocks:  # read only now: a wait between the steps would change them
        parts = dict.fromkeys(PARTS, 0.0)
        for name, milliseconds in clock.milliseconds():
            parts[name] += milliseconds
        steps.append(parts)
    return {name: statistics.median(step[name] for step in steps) for name in PARTS}


@contextmanager
def _marked(criterion: Criterion, clock: Clock) -> Iterator[Callable[..., Losses]]:
    """The criterion with marks after matching, class loss and both of their gradients.

    Backward goes in the opposite order: first the box loss; then the class loss, whose value is
    then asked for its gradient; then the network, when the logits have theirs.
    """
    assigner = criterion.assigner

    def marked_assigner(stage: Predictions, targets: Sequence[Target]) -> Assignment:
        assignment = assigner(stage, targets)
        clock.mark("matching")
        return assignment

    def mark(name: str, *_: object) -> None:
        clock.mark(name)

    def after_class_loss(module: nn.Module, inputs: object, value: Tensor) -> None:
        clock.mark("class loss")
        value.register_hook(partial(mark, "box loss"))

    def marked(stages: Sequence[Predictions], targets: Sequence[Target]) -> Losses:
        for stage in stages:
            stage.logits.register_hook(partial(mark, "class loss"))
        losses: Losses = criterion(stages, targets)
        return losses

    assert isinstance(criterion.class_loss, nn.Module)
    handle = criterion.class_loss.register_forward_hook(after_class_loss)
    criterion.assigner = marked_assigner
    try:
        yield marked
    finally:
        criterion.assigner = assigner
        handle.remove()


def class_loss_on_device(network: Network, criterion: Criterion, batch: Batch) -> float | None:
    """Median milliseconds of the class loss, forward and backward, without the host: as a CUDA
    graph. None on other devices. In the step, a host that is slow to launch it adds to its time."""
    settings = network.settings
    if settings.device.type != "cuda":
        return None
    with torch.no_grad(), torch.autocast("cuda", settings.precision):
        (stage,) = network.detector(batch.images)
    labels = criterion.assigner(stage, batch.targets).labels
    logits = stage.logits.detach().requires_grad_()
    replay, _ = gpu.capture(
        lambda: torch.autograd.grad(criterion.class_loss(logits, labels), logits)
    )
    times = timed(lambda replay: replay(), [replay], with_head_start=True)
    return float(times["milliseconds"])


def measure_network(
    network: Network, batch: Batch, sizes: Sizes, loss_names: Sequence[str]
) -> list[dict[str, Any]]:
    """A row for each loss: the step, its parts, and the difference to a step without a loss."""
    device = network.settings.device
    floor = median_step(partial(our_step, network, no_loss, batch), sizes, device)
    rows = []
    for name in loss_names:
        criterion = make_criterion(network, name)
        numbers = median_step(partial(our_step, network, criterion, batch), sizes, device)
        parts = part_milliseconds(network, criterion, batch, sizes.num_steps)
        rows.append(
            {
                "loss": name,
                "classes": network.detector.head.classification_head.num_classes,
                "anchors_per_place": network.detector.head.classification_head.num_anchors,
                **numbers,
                "parts": parts,
                "class_loss_on_device": class_loss_on_device(network, criterion, batch),
                "without_loss_milliseconds": floor["milliseconds"],
            }
        )
    return rows


def measure(
    sizes: Sizes, device: torch.device, seed: int, advance: Callable[[str], None]
) -> dict[str, Any]:
    """All numbers of the tables; `advance` is told what comes next."""
    ours: list[dict[str, Any]] = []
    for name, num_classes, detector in (
        ("ours", 80, {}),
        ("ours", 20, {}),
        ("as torchvision's", 80, _AS_TORCHVISION),
    ):
        advance(f"network {name}, {num_classes} classes")
        _forget_compiled()
        torch.manual_seed(seed)
        batch = make_batch(sizes, num_classes, device, seed)
        network = make_network(sizes, num_classes, batch.images, **detector)
        ours += [
            {"network": name, **row}
            for row in measure_network(network, batch, sizes, ("ap", "focal"))
        ]
        del network
    batch = make_batch(sizes, 80, device, seed)
    peers = []
    for name, is_like_ours in (("reference", False), ("like ours", True)):
        advance(f"torchvision, {name}")
        _forget_compiled()
        torch.manual_seed(seed)
        peer = make_torchvision(
            sizes.peer_backbone,
            80,
            device,
            side=sizes.side,
            is_channels_last=is_like_ours and device.type == "cuda",
            is_compiled=is_like_ours and sizes.is_compiled,
        )
        calm(peer)
        step = torchvision_step(
            peer,
            batch,
            precision=torch.bfloat16 if is_like_ours and device.type == "cuda" else None,
        )
        peers.append({"name": name, **median_step(step, sizes, device)})
        del peer, step
    return {
        "side": sizes.side,
        "images": sizes.num_images,
        "objects": sum(len(target) for target in batch.targets),
        "backbone": sizes.backbone,
        "steps": sizes.num_steps,
        "ours": ours,
        "torchvision": peers,
        "differences": list(DIFFERENCES),
    }


def _forget_compiled() -> None:
    """Make room for another compiled network: after a few, torch would run the next one eagerly."""
    torch.compiler.reset()


def main(*, quick: bool, json_file: Path | None, device: str, seed: int) -> None:
    """Measure, print the tables, and write them as JSON if asked."""
    console = Console()
    sizes = QUICK if quick else Sizes()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)
        results = measure(
            sizes,
            torch.device(device),
            seed,
            lambda text: progress.update(task, description=text),
        )
    print_tables(results, console, with_bars=not quick)
    if quick:
        console.print("--quick: a small network without compiling; bars are for the full run.")
    if json_file is not None:
        record = {"provenance": provenance(seed=seed, device=device, quick=quick), **results}
        write_whole(json_file, (json.dumps(record, indent=2) + "\n").encode())
        console.print(f"wrote {json_file}")
