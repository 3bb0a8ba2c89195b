"""Memory of a training step with different losses: the paper's figure fig_memory_cost.

"We first evaluate the detection model without a loss (with backward propagation still enabled).
Then, the detection model combined with different losses."
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rankdet.config import Config, merge, to_dict
from rankdet.experiments.comparison import COLOURS, LOSSES
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import GREY, begin_at_zero, label_axes, new_figure, save_figure
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.scales import Training, base_config, with_changes
from rankdet.experiments.tables import markdown_table, missing_text, page

BATCH_SIZES = {
    "smoke": (1, 2),
    "tiny": (1, 2, 4, 8),
    "voc320": (1, 2, 4, 8, 16),
    "paper": (1, 2, 4, 8, 16),
}
NO_CLASS_LOSS = "box loss alone"

_NOTES = (
    "Peak of the memory that torch's allocator holds during forward and backward, above what is "
    "held before (weights and images). Without a loss, the outputs are added up and that sum goes "
    "backward. Losses: the difference to that, with the matching of anchors and the box loss "
    "included, which `box loss alone` has by themselves. With softmax (CE + OHEM) the network has "
    "one column more, without a loss, too. A difference is 0 where the peak is at another moment "
    "than the loss's, as with tiny images, whose gradients of weights are the largest. By itself: "
    "the class loss, forward and backward, above logits and labels that are there already.",
    "On a CUDA device by its allocator's statistics; on a CPU by the profiler, which sees every "
    "allocation and release, inside of operators, too.",
    "Paper: AP-loss takes somewhat more than focal loss and OHEM, negligible against the network; "
    "the memory is linear in the batch size. Its figure has no numbers.",
)


def row_config(request: Request, batch_size: int) -> Config:
    """The settings of the network and of the batch."""
    base = base_config(request, Training())
    config = replace(
        base,
        data=replace(base.data, val_split=None, hold=False, workers=0),
        training=replace(base.training, accumulate=1),
    )
    return replace(
        changed := with_changes(request, config),
        training=replace(changed.training, batch_size=batch_size, accumulate=1),
    )


def plan(request: Request) -> list[Row]:
    """A row for each batch size."""
    rows = []
    for batch_size in BATCH_SIZES[request.scale]:
        config = row_config(request, batch_size)
        rows.append(
            Row(
                key=str(batch_size),
                settings={"config": to_dict(config)},
                run=partial(_result, config, request),
            )
        )
    return rows


def _result(config: Config, request: Request) -> dict[str, Any]:
    """Bytes without a loss, and with each, by the loss's name."""
    result: dict[str, Any] = {"without_loss": {}, "with_loss": {}, "loss_by_itself": {}}
    for names in (["CE-Loss + OHEM"], [name for name in LOSSES if name != "CE-Loss + OHEM"]):
        of_network = _measure(config, names, request)
        result[NO_CLASS_LOSS] = of_network.pop(NO_CLASS_LOSS)  # the last one's, as of AP-loss
        for kind, values in of_network.items():
            result[kind] |= values
    return result


def _measure(config: Config, names: Sequence[str], request: Request) -> dict[str, Any]:
    """Peaks of bytes of one network, which these losses can train, on one batch."""
    from contextlib import closing

    from rankdet import build
    from rankdet.experiments.single_step import (
        class_loss_removed,
        loss_on_outputs,
        outputs_added_up,
        single_step,
    )
    from rankdet.workflows.parts import prepare

    configs = {name: merge(config, {"loss": {"name": LOSSES[name]}}) for name in names}
    parts = prepare(configs[names[0]], request.device)
    with closing(parts.loader):
        batch = next(iter(parts.loader.epoch(0))).to(parts.device)

    def peak_of_step(criterion: Any) -> int:
        return _second_peak(partial(single_step, parts, batch, criterion), parts.device)

    without_loss = peak_of_step(outputs_added_up)
    result: dict[str, Any] = {
        "without_loss": dict.fromkeys(names, without_loss),
        NO_CLASS_LOSS: peak_of_step(class_loss_removed(config)),
        "with_loss": {},
        "loss_by_itself": {},
    }
    for name, own in configs.items():
        loss = build.class_loss(own.loss).to(parts.device)
        result["with_loss"][name] = peak_of_step(build.criterion(own, loss))
        by_itself = loss_on_outputs(parts, batch, loss)
        result["loss_by_itself"][name] = _second_peak(by_itself, parts.device)
    return result


def _second_peak(run: Callable[[], object], device: Any) -> int:
    """What is allocated once (libraries' work spaces, compiled kernels) is no step's memory."""
    from rankdet.experiments.peak_memory import peak_bytes

    run()
    return peak_bytes(run, device)


def markdown(record: Record) -> str:
    """MiB without a loss, and the difference with each."""
    results = results_of(record)
    sizes = BATCH_SIZES[record["request"]["scale"]]
    rows = [["network without a loss"], [NO_CLASS_LOSS], *([name] for name in LOSSES)]
    rows += [[f"{name}, by itself"] for name in LOSSES]
    for size in sizes:
        if text := missing_text(record, str(size)):
            for texts in rows:
                texts.append(text)
            continue
        result = results[str(size)]
        base = result["without_loss"]
        values = [base["AP-Loss"], result[NO_CLASS_LOSS] - base["AP-Loss"]]
        values += [result["with_loss"][name] - base[name] for name in LOSSES]
        texts_of_size = [f"{mebibytes(values[0]):,.2f}"]
        texts_of_size += [f"{mebibytes(value):+,.2f}" for value in values[1:]]
        texts_of_size += [f"{mebibytes(result['loss_by_itself'][name]):,.2f}" for name in LOSSES]
        for texts, text in zip(rows, texts_of_size, strict=True):
            texts.append(text)
    heading = ["MiB, images in the batch:", *map(str, sizes)]
    return page(record, SUMMARY, [markdown_table(heading, rows)], _NOTES)


def mebibytes(count: float) -> float:
    """
    >>> mebibytes(1 << 20)
    1.0
    """
    return count / 2**20


def figure(record: Record, path: Path) -> None:
    """The whole step, the difference to one without a loss, and the class loss by itself."""
    results = {int(key): result for key, result in results_of(record).items()}
    picture = new_figure(12, 4)
    left, middle, right = picture.subplots(1, 3)
    sizes: Sequence[int] = sorted(results)
    without = [mebibytes(results[size]["without_loss"]["AP-Loss"]) for size in sizes]
    left.plot(sizes, without, "s:", color=GREY, label="without a loss")
    for name, loss in LOSSES.items():
        whole = [results[size]["with_loss"][name] for size in sizes]
        base = [results[size]["without_loss"][name] for size in sizes]
        line = {"color": COLOURS[loss], "marker": "o", "label": name}
        left.plot(sizes, [mebibytes(value) for value in whole], **line)
        differences = [mebibytes(a - b) for a, b in zip(whole, base, strict=True)]
        middle.plot(sizes, differences, **line)
        alone = [mebibytes(results[size]["loss_by_itself"][name]) for size in sizes]
        right.plot(sizes, alone, **line)
    for axes, title in (
        (left, "Network and losses"),
        (middle, "Difference made by the losses"),
        (right, "The class loss by itself"),
    ):
        axes.set_xlim(left=0)
        axes.set_xticks(sizes)
        label_axes(axes, title, "images in the batch", "MiB at the peak")
    for axes in (left, right):
        begin_at_zero(axes)
    left.legend(frameon=False, fontsize=8)
    save_figure(picture, path)


SUMMARY = "memory of a training step without a loss and with each of four, by batch size"
EXPERIMENT = Experiment(
    name="memory",
    summary=SUMMARY,
    labels=("fig_memory_cost",),
    plan=plan,
    markdown=markdown,
    figure=figure,
    has_trainings=False,
)
