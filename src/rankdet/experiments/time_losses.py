"""Time of different losses by batch size, at the end of a training: the paper's fig_time_cost.

Each loss is timed on the logits that the detector which it trained gives for training images.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rankdet.config import Config, to_dict
from rankdet.errors import ConfigError
from rankdet.experiments.arms import trained
from rankdet.experiments.comparison import COLOURS, LOSSES, variant_config
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import GREY, label_axes, new_figure, save_figure
from rankdet.experiments.losses import RETINANET_VOC
from rankdet.experiments.memory import BATCH_SIZES
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.tables import markdown_table, missing_text, page

LOOP = "AP-Loss, the paper's loop"
_NUM_TIMED = 8  # batches of each size

_NOTES = (
    "Forward and backward of the class loss alone: the mean over up to 8 batches of training "
    "images of the last epoch, seen by the trained detector, of the median of three runs. In "
    "brackets: times focal loss's on the same logits, measured in turn in the same process.",
    "The loop: Algorithm 1 in float32 with the paper's strategies, "
    "`rankdet.experiments.paper_loop`, on the logits of our AP-loss.",
    "Paper: focal loss is the fastest, and takes the same time for every batch size; OHEM, "
    "AUC-loss and AP-loss grow about linearly. Its figure has no numbers.",
)


def plan(request: Request) -> list[Row]:
    """A training for each loss: the same as for the comparison of losses."""
    rows = []
    for variant in RETINANET_VOC:
        config = variant_config(variant, request)
        sizes = list(BATCH_SIZES[request.scale])
        rows.append(
            Row(
                key=variant.row,
                settings={"config": to_dict(config), "batch_sizes": sizes},
                run=partial(_result, config, request),
                trainings=(config,),
            )
        )
    return rows


def _result(config: Config, request: Request) -> dict[str, Any]:
    """Milliseconds of the loss, of focal loss and, for AP-loss, of the loop, by batch size."""
    from rankdet import build
    from rankdet.experiments.loss_times import first_images
    from rankdet.experiments.paper_loop import delta_of, paper_ap_loss
    from rankdet.losses import FocalLoss

    sizes = BATCH_SIZES[request.scale]
    snapshots = _last_logits(config, request, num_images=_NUM_TIMED * max(sizes))
    losses: dict[str, Any] = {
        "milliseconds": build.class_loss(config.loss),
        "focal_milliseconds": FocalLoss(),
    }
    if config.loss.name == "ap":
        losses["loop_milliseconds"] = partial(paper_ap_loss, delta=delta_of(config.loss))
    result: dict[str, Any] = {name: {} for name in losses}
    for size in sizes:
        batches = first_images(snapshots, size)[:_NUM_TIMED]
        if not batches:
            raise ConfigError(
                f"time-losses: expected at least {size} images to train on, for the batches of "
                f"that size; {config.data.path}, split {config.data.train_split}, gives an epoch "
                f"of {sum(len(snapshot.labels) for snapshot in snapshots)}. Give more with --voc."
            )
        times = _mean_milliseconds(losses, batches, config.loss.name == "ohem")
        for name, milliseconds in times.items():
            result[name][str(size)] = milliseconds
    return result


def _last_logits(config: Config, request: Request, num_images: int) -> list[Any]:
    """Snapshots of the last epoch's first batches, seen by the trained detector."""
    from contextlib import closing

    import torch

    from rankdet.experiments.loss_times import Keeping
    from rankdet.experiments.single_step import outputs
    from rankdet.workflows.parts import prepare
    from rankdet.workflows.run import read_checkpoint

    checkpoint = read_checkpoint(trained(config, request), "last")
    parts = prepare(config, request.device, has_checkpoint=True)
    parts.detector.load_state_dict(checkpoint.weights)
    keeping = Keeping(parts.criterion, num_images)
    num_seen = 0
    with closing(parts.loader), torch.no_grad():
        for batch in parts.loader.epoch(config.training.epochs - 1):
            batch = batch.to(parts.device)
            keeping(outputs(parts, batch), batch.targets)
            num_seen += len(batch)
            if num_seen >= num_images:
                break
    return list(keeping.snapshots)


def _mean_milliseconds(
    losses: Mapping[str, Callable[..., Any]], batches: list[Any], has_background: bool
) -> dict[str, float]:
    """The mean over the batches of each loss's time; focal loss has no column for background."""
    from rankdet.experiments.loss_times import Snapshot, seconds_of

    times: dict[str, list[float]] = {name: [] for name in losses}
    for batch in batches:
        objects_alone = batch
        if has_background:
            objects_alone = Snapshot(batch.logits[..., 1:].contiguous(), batch.labels)
        for name, loss in losses.items():
            is_own = name == "milliseconds"
            times[name].append(1e3 * seconds_of(loss, batch if is_own else objects_alone))
    return {name: statistics.mean(values) for name, values in times.items()}


def lines_of(record: Record) -> dict[str, tuple[dict[str, float], dict[str, float]]]:
    """Milliseconds by batch size, and those of focal loss beside, of each loss and of the loop."""
    lines = {}
    for name, result in results_of(record).items():
        lines[name] = (result["milliseconds"], result["focal_milliseconds"])
        if "loop_milliseconds" in result:
            lines[LOOP] = (result["loop_milliseconds"], result["focal_milliseconds"])
    return lines


def markdown(record: Record) -> str:
    """Milliseconds, and the ratio to focal loss."""
    lines = lines_of(record)
    sizes = BATCH_SIZES[record["request"]["scale"]]
    rows = []
    for name in (*LOSSES, LOOP):
        if text := missing_text(record, "AP-Loss" if name == LOOP else name):
            rows.append([name, *[text] * len(sizes)])
            continue
        ours, focal = lines[name]
        rows.append(
            [name]
            + [
                f"{ours[str(size)]:,.2f} ({ours[str(size)] / focal[str(size)]:,.1f})"
                for size in sizes
            ]
        )
    heading = ["ms (times focal), images:", *map(str, sizes)]
    return page(record, SUMMARY, [markdown_table(heading, rows)], _NOTES)


def figure(record: Record, path: Path) -> None:
    """Left: milliseconds. Right: times focal loss in the same process."""
    picture = new_figure(10, 4)
    left, right = picture.subplots(1, 2)
    for name, (ours, focal) in lines_of(record).items():
        sizes = sorted(map(int, ours))
        colour = GREY if name == LOOP else COLOURS[LOSSES[name]]
        left.plot(sizes, [ours[str(s)] for s in sizes], "o-", color=colour, label=name)
        right.plot(sizes, [ours[str(s)] / focal[str(s)] for s in sizes], "o-", color=colour)
    for axes in (left, right):
        axes.set_xlim(left=0)
        axes.set_xticks(BATCH_SIZES[record["request"]["scale"]])
        if axes.lines:
            axes.set_yscale("log")
    if left.lines:
        left.legend(frameon=False, fontsize=8)
    label_axes(left, "Forward and backward of the class loss", "images", "milliseconds")
    label_axes(right, "Against focal loss", "images", "times focal loss")
    save_figure(picture, path)


SUMMARY = "time of each loss by batch size at the end of a training, beside focal loss"
EXPERIMENT = Experiment(
    name="time-losses",
    summary=SUMMARY,
    labels=("fig_time_cost",),
    plan=plan,
    markdown=markdown,
    figure=figure,
)
