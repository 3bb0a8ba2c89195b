"""AP-loss against BCE, focal loss and AUC-loss on a made-up ranking problem, 1 : 10,000.

The command is `rankdet reproduce ranking`. The same small network, first weights, mini-batches,
optimiser, schedule and number of steps for every loss; each takes the learning rate, out of the
same few, that has the best average precision on a validation split, and is then judged on a test
split that takes no part in it. BCE and focal loss depend on the last layer's first bias, so each is
trained with two: p = sigmoid(bias) is 0.01, as in RetinaNet, or the true rate of positives. Ranking
losses do not see it. The data are Gaussian clusters, so the best possible ranking (by the true
likelihood ratio) is known and stands in the table as the ceiling. One seed is one draw: a few
points between two losses are noise. The settings were settled on seeds 0 to 2.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankdet.experiments.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    VERMILION,
    label_axes,
    new_figure,
    save_figure,
)
from rankdet.experiments.ranking_problem import (
    Split,
    World,
    average_precision,
    draw_batch,
    draw_split,
    likelihood_ratio,
    make_world,
    precision_recall,
)
from rankdet.losses import BACKGROUND, ap_loss, auc_loss, focal_loss
from rankdet.provenance import provenance

Loss = Callable[[Tensor, Tensor], Tensor]

binary_cross_entropy = partial(focal_loss, gamma=0.0, alpha=None)


@dataclass(frozen=True)
class Contender:
    """A loss, the sigmoid of the last layer's first bias, and how its line looks."""

    loss: Loss
    first_probability: float
    colour: str
    line_style: str = "-"


CONTENDERS: Mapping[str, Contender] = {
    "AP-loss": Contender(ap_loss, 0.01, BLUE),
    "AUC-loss": Contender(auc_loss, 0.01, GREEN),
    "focal loss (p 0.01)": Contender(focal_loss, 0.01, ORANGE),
    "focal loss (p 0.0001)": Contender(focal_loss, 0.0001, ORANGE, "--"),
    "BCE (p 0.01)": Contender(binary_cross_entropy, 0.01, VERMILION),
    "BCE (p 0.0001)": Contender(binary_cross_entropy, 0.0001, VERMILION, "--"),
}


@dataclass(frozen=True)
class Settings:
    """The problem and the budget that all losses share."""

    negatives_per_positive: int = 10_000
    train_positives: int = 200
    validation_positives: int = 40
    test_positives: int = 200
    batch_positives: int = 4
    num_features: int = 16
    num_hidden: int = 32
    hard_fraction: float = 0.02
    learning_rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    num_evaluations: int = 5


@dataclass(frozen=True)
class Training:
    """One run: the model at its end, validation AP along it, and the seconds that training took."""

    model: nn.Module
    learning_rate: float
    steps: list[int]
    validation_ap: list[float]
    seconds: float


def make_model(settings: Settings, first_probability: float, seed: int) -> nn.Module:
    """A network with one hidden layer; the same first weights for the same seed.

    The last bias makes sigmoid(score) about first_probability, as in RetinaNet.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        last = nn.Linear(settings.num_hidden, 1)
        model = nn.Sequential(
            nn.Linear(settings.num_features, settings.num_hidden), nn.ReLU(), last
        )
    nn.init.constant_(last.bias, math.log(first_probability / (1 - first_probability)))
    return model


@torch.no_grad()
def split_scores(model: nn.Module, split: Split) -> tuple[Tensor, Tensor]:
    """Scores of the positives (P,) and negatives (N,), in blocks to bound the memory."""
    blocks = [model(block)[:, 0] for block in split.negatives.split(100_000)]
    return model(split.positives)[:, 0], torch.cat(blocks)


def train(
    contender: Contender,
    learning_rate: float,
    data: tuple[Split, Split],
    settings: Settings,
    *,
    steps: int,
    seed: int,
    on_step: Callable[[], None] = lambda: None,
) -> Training:
    """Train on the first split of the data with Adam, and measure AP on the second on the way.

    The learning rate falls in a straight line to 0, which makes the end of a run less noisy.
    """
    train_split, validation_split = data
    model = make_model(settings, contender.first_probability, seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    generator = torch.Generator().manual_seed(seed)
    num_negatives = settings.batch_positives * settings.negatives_per_positive
    labels = torch.full((settings.batch_positives + num_negatives,), BACKGROUND)
    labels[: settings.batch_positives] = 0
    every = max(1, steps // settings.num_evaluations)
    seconds, measured_at, validation_ap = 0.0, [], []
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            measured_at.append(step)
            validation_ap.append(average_precision(*split_scores(model, validation_split)))
        if step == steps:
            break
        begin = time.perf_counter()
        batch = draw_batch(train_split, settings.batch_positives, num_negatives, generator)
        loss = contender.loss(model(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        seconds += time.perf_counter() - begin
        on_step()
    return Training(model, learning_rate, measured_at, validation_ap, seconds)


def run(
    out: Path, *, seed: int = 0, steps: int = 300, settings: Settings | None = None
) -> dict[str, Any]:
    """What was measured, which is also written to out/ranking.json, beside the picture."""
    from rich.progress import Progress

    settings = settings or Settings()
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    world = make_world(settings.num_features, settings.hard_fraction, generator)
    train_split, validation_split, test_split = (
        draw_split(world, number, number * settings.negatives_per_positive, generator)
        for number in (
            settings.train_positives,
            settings.validation_positives,
            settings.test_positives,
        )
    )
    trainings: dict[str, list[Training]] = {name: [] for name in CONTENDERS}
    with Progress() as progress:
        for name, contender in CONTENDERS.items():
            task = progress.add_task(name, total=steps * len(settings.learning_rates))
            for learning_rate in settings.learning_rates:
                training = train(
                    contender,
                    learning_rate,
                    (train_split, validation_split),
                    settings,
                    steps=steps,
                    seed=seed,
                    on_step=partial(progress.advance, task),
                )
                trainings[name].append(training)
    results = evaluate(trainings, world, test_split, out / "ranking.png")
    results["settings"] = dataclasses.asdict(settings)
    results["provenance"] = provenance(seed=seed, steps=steps)
    (out / "ranking.json").write_text(json.dumps(results, indent=2) + "\n")
    print_table(results)
    print(f"The picture and ranking.json are in {out}")
    return results


def evaluate(
    trainings: Mapping[str, Sequence[Training]],
    world: World,
    test_split: Split,
    picture: Path,
) -> dict[str, Any]:
    """Test AP of each loss's chosen run and of the best possible ranking, and the picture."""
    ceiling = (
        likelihood_ratio(world, test_split.positives),
        torch.cat([likelihood_ratio(world, b) for b in test_split.negatives.split(100_000)]),
    )
    curves = {"best possible": precision_recall(*ceiling)}
    chosen = {
        name: max(runs, key=lambda training: training.validation_ap[-1])
        for name, runs in trainings.items()
    }
    rows = []
    for name, best in chosen.items():
        scores = split_scores(best.model, test_split)
        curves[name] = precision_recall(*scores)
        rows.append(
            {
                "loss": name,
                "test_ap": average_precision(*scores),
                "validation_ap": best.validation_ap[-1],
                "learning_rate": best.learning_rate,
                "first_probability": CONTENDERS[name].first_probability,
                "seconds": best.seconds,
                "steps": best.steps,
                "validation_ap_at_steps": best.validation_ap,
                "validation_ap_of_learning_rates": {
                    str(training.learning_rate): training.validation_ap[-1]
                    for training in trainings[name]
                },
            }
        )
    plot(picture, curves, chosen)
    return {"losses": rows, "best_possible_test_ap": average_precision(*ceiling)}


def plot(
    path: Path, curves: Mapping[str, tuple[Tensor, Tensor]], trainings: Mapping[str, Training]
) -> Path:
    """Left: precision-recall curves on the test split. Right: validation AP against steps."""
    figure = new_figure(10, 4.2)
    left, right = figure.subplots(1, 2)
    for name, (recall, precision) in curves.items():
        colour, style = _line(name)
        left.plot(recall, precision, color=colour, linestyle=style, label=name)
    for name, training in trainings.items():
        colour, style = _line(name)
        right.plot(training.steps, training.validation_ap, color=colour, linestyle=style)
    for axes in (left, right):
        axes.set_ylim(0, 1.02)
    left.legend(frameon=False, fontsize=8)
    label_axes(left, "Test split, 1 positive in 10,000", "recall", "precision")
    label_axes(right, "Along training", "step", "average precision, validation split")
    return save_figure(figure, path)


def _line(name: str) -> tuple[str, str]:
    """Colour and style of the line of that name."""
    if name in CONTENDERS:
        return CONTENDERS[name].colour, CONTENDERS[name].line_style
    return GREY, ":"


def print_table(results: Mapping[str, Any]) -> None:
    """Show the results on the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "loss",
        "test AP",
        "validation AP",
        "learning rate",
        "seconds",
        title="Ranking 1 positive among 10,000 negatives",
        caption="p: sigmoid of the last layer's first bias",
    )
    for row in sorted(results["losses"], key=lambda row: -row["test_ap"]):
        table.add_row(
            row["loss"],
            f"{row['test_ap']:.3f}",
            f"{row['validation_ap']:.3f}",
            f"{row['learning_rate']:g}",
            f"{row['seconds']:.1f}",
        )
    table.add_row("best possible", f"{results['best_possible_test_ap']:.3f}")
    Console().print(table)
