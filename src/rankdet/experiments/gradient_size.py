"""Size of the gradients of the class and the box part over a training, with each of four losses.

Both parts pull at the weights that they share, backbone and pyramid. How hard the class part pulls
differs from loss to loss, while the box loss is the same for all: a part that pulls much less is
learned later, and a learning rate that suits one part may not suit the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankdet.config import Config
from rankdet.errors import ConfigError
from rankdet.experiments.comparison import COLOURS, LOSSES
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import count_in_wholes, label_axes, new_figure, save_figure
from rankdet.experiments.losses import measured_rows
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.tables import NO_NUMBER, markdown_table, missing_text, number, page
from rankdet.experiments.time_curve import shown_points

if TYPE_CHECKING:
    from torch import Tensor

    from rankdet.detectors.criterion import Criterion, Losses
    from rankdet.structures import Predictions, Target

SUMMARY = "size of the gradients of class and box part over a training, four losses"
PARTS = ("class", "box")
# Steps of a training, and how many of them lie between two measurements.
_NUM_STEPS = {"smoke": (3, 1), "tiny": (200, 10), "voc320": (1000, 50), "paper": (20_000, 1000)}

_NOTES = (
    "Gradients: their Euclidean norms on the weights that both parts reach, those of the backbone "
    "that are trained and of the pyramid, before any limit; of one batch, before the step.",
    "AP: of the ranking in that batch, in percent.",
)


class Measuring:
    """A criterion that measures the gradients of the parts in every `every`-th call."""

    def __init__(self, criterion: Criterion, parameters: Sequence[Tensor], every: int) -> None:
        self.criterion = criterion
        self.parameters = parameters
        self.every = every
        self.num_calls = 0
        self.points: list[dict[str, Any]] = []

    def __call__(self, stages: Sequence[Predictions], targets: Sequence[Target]) -> Losses:
        """The losses; the graph behind them is as if nothing had been measured."""
        self.num_calls += 1
        if (self.num_calls - 1) % self.every == 0:
            # Of its own: a loss need not be ready for a second backward pass.
            measured = self.criterion(stages, targets)
            sizes = shared_sizes(measured.parts, self.parameters)
            values = {name: float(part.detach()) for name, part in measured.parts.items()}
            self.points.append({"step": self.num_calls, "sizes": sizes, "losses": values})
        return self.criterion(stages, targets)


def shared_sizes(parts: dict[str, Tensor], parameters: Sequence[Tensor]) -> dict[str, float]:
    """Of each scalar, the norm of its gradient on those parameters that all of them reach.

    >>> import torch
    >>> both, own = torch.tensor([1.0, 1.0], requires_grad=True), torch.ones(1, requires_grad=True)
    >>> parts = {"class": (both * torch.tensor([3.0, 4.0])).sum() + 9 * own.sum(), "box": both[0]}
    >>> shared_sizes(parts, [both, own])
    {'class': 5.0, 'box': 1.0}
    """
    import torch

    gradients = [
        torch.autograd.grad(part, parameters, retain_graph=True, allow_unused=True)
        for part in parts.values()
    ]
    shared = [many for many in zip(*gradients, strict=True) if all(one is not None for one in many)]
    return {
        name: float(torch.nn.utils.get_total_norm([many[place] for many in shared]))
        for place, name in enumerate(parts)
    }


def plan(request: Request) -> list[Row]:
    """A row for each loss."""
    num_steps, every = _NUM_STEPS[request.scale]
    # Each step is one call; and a compiled backward pass frees what it was made of.
    fixed = {"accumulate": 1, "compile": False}
    rows = measured_rows(request, _result, max_steps=num_steps, log_every=every, **fixed)
    for name, value in fixed.items():
        given = rows[0].settings["config"]["training"][name]
        if given != value:
            raise ConfigError(
                f"--set training.{name}={given}: gradient-size needs {value}, because it measures "
                "the parts of every step by a backward pass of their own. Leave it out."
            )
    return rows


def _result(config: Config, request: Request) -> dict[str, Any]:
    """points: of each step that was measured the sizes by part, the losses and the batch's AP."""
    import math
    from contextlib import closing

    from rankdet.experiments.short_training import steps_of
    from rankdet.workflows.parts import prepare

    parts = prepare(config, request.device)
    trained = [one for one in parts.detector.parameters() if one.requires_grad]
    criterion = Measuring(parts.criterion, trained, config.training.log_every)
    with closing(parts.loader):
        for _, report in steps_of(
            parts.detector, criterion, parts, name=config.loss.name, config=config
        ):
            if report.is_measured:
                assert report.batch_ap is not None
                is_known = math.isfinite(report.batch_ap)
                criterion.points[-1]["ap"] = 100 * report.batch_ap if is_known else None
    return {"points": criterion.points}


def markdown(record: Record) -> str:
    """Sizes at some of the steps, and how many times the box part's the class part's is."""
    results, rows = results_of(record), []
    for name in LOSSES:
        if text := missing_text(record, name):
            rows.append([name, text, *[NO_NUMBER] * 4])
            continue
        for point in shown_points(results[name]["points"]):
            sizes = [point["sizes"][part] for part in PARTS]
            ratio = f"{sizes[0] / sizes[1]:.2f}" if sizes[1] else NO_NUMBER
            shown = [f"{size:.3g}" for size in sizes]
            rows.append([name, f"{point['step']:,}", *shown, ratio, number(point["ap"])])
    heading = ["training loss", "step", "class part", "box part", "class / box", "AP of the batch"]
    return page(record, SUMMARY, [markdown_table(heading, rows)], list(_NOTES))


def figure(record: Record, path: Path) -> None:
    """The size of either part against the step, a line for each loss."""
    drawn = new_figure(9, 3.5)
    for part, axes in zip(PARTS, drawn.subplots(1, len(PARTS), sharey=True), strict=True):
        for name, result in results_of(record).items():
            steps = [point["step"] for point in result["points"]]
            sizes = [point["sizes"][part] for point in result["points"]]
            axes.plot(steps, sizes, color=COLOURS[LOSSES[name]], marker=".", label=name)
        axes.set_yscale("log")
        count_in_wholes(axes.xaxis)
        label_axes(axes, f"gradient of the {part} part, shared weights", "step", "norm")
        if results_of(record):
            axes.legend(frameon=False, fontsize=8)
    save_figure(drawn, path)


EXPERIMENT = Experiment("gradient-size", SUMMARY, (), plan, markdown, figure, has_trainings=False)
