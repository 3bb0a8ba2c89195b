"""The pictures of the theory: one function for each, from computed numbers to a PNG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankdet.experiments.figures import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    label_axes,
    new_figure,
    save_figure,
)
from rankdet.experiments.theory_inseparable import Bounds, mean_so_far
from rankdet.experiments.theory_separable import Trajectory, is_trapped, three_sample_loss
from rankdet.losses.ap_reference import soft_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_steps(path: Path) -> Path:
    """The Heaviside, piecewise and sigmoid steps (the paper's figure of section 3.4.2)."""
    figure = new_figure(9, 3.6)
    left, right = figure.subplots(1, 2, sharey=True)
    difference = torch.linspace(-3, 3, 1201, dtype=torch.float64)
    colours = [ORANGE, GREEN, BLUE, PURPLE]
    for axes, step, symbol in ((left, "piecewise", "δ"), (right, "sigmoid", "k")):
        for width, colour in zip((0.25, 0.5, 1.0, 2.0), colours, strict=True):
            values = soft_step(difference, step, width)
            axes.plot(difference, values, color=colour, label=f"{symbol} = {width:g}")
        axes.plot([-3, 0, 0, 3], [0, 0, 1, 1], color=BLACK, linestyle="--", label="Heaviside")
        axes.legend(frameon=False, fontsize=9)
    label_axes(left, "Piecewise step", "score difference x", "f(x)")
    label_axes(right, "Sigmoid step", "score difference x", "")
    return save_figure(figure, path)


def plot_convergence(
    path: Path,
    rows: Sequence[Mapping[str, float]],
    example: Trajectory,
    growth: float,
    ceiling: float,
) -> Path:
    """A1. Left: steps of every problem against its bound. Right: the proof, on one problem.

    rows: "steps", "final_loss", "bound", "sharper_bound" of each problem. example: one run, with c
    (growth) and C (ceiling) of its problem.
    """
    figure = new_figure(10, 4.2)
    left, right = figure.subplots(1, 2)
    for key, colour, marker, name in (
        ("bound", BLUE, "o", "bound C / c² of A1"),
        ("sharper_bound", ORANGE, "^", "sharper bound"),
    ):
        left.scatter(
            [row["steps"] for row in rows],
            [row[key] for row in rows],
            s=14,
            color=colour,
            marker=marker,
            alpha=0.6,
            linewidths=0,
            label=name,
        )
    most = max(row["steps"] for row in rows)
    left.plot([1, most], [1, most], color=BLACK, linestyle="--", label="steps that were needed")
    left.set_xscale("log")
    left.set_yscale("log")
    left.legend(frameon=False, fontsize=9)
    num_solved = sum(row["final_loss"] == 0 for row in rows)
    title = f"A1: {num_solved} of {len(rows)} separable problems solved"
    label_axes(left, title, "steps until AP-loss 0", "steps, and their bounds")
    squared = (example.weights**2).sum(dim=1)[1:]
    step = torch.arange(1, len(squared) + 1, dtype=torch.float64)
    right.plot(step, ceiling * step, color=VERMILION, linestyle="--", label="at most C t")
    right.plot(step, squared, color=BLUE, label="‖θ‖² of the run")
    right.plot(step, (growth * step) ** 2, color=GREEN, linestyle=":", label="at least c² t²")
    right.set_xscale("log")
    right.set_yscale("log")
    right.legend(frameon=False, fontsize=9)
    label_axes(right, "The proof on the longest run", "step t", "‖θ‖²")
    return save_figure(figure, path)


def plot_three_samples(
    path: Path, descent: Trajectory, same_step: Trajectory, heaviside: Trajectory
) -> Path:
    """A2. Left: losses against steps. Right: the paths over the smoothed loss's surface."""
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    runs = (
        (descent, VERMILION, "gradient descent on the smoothed loss"),
        (same_step, BLUE, "error-driven update, same smoothed loss"),
        (heaviside, BLACK, "error-driven update, Heaviside step"),
    )
    for run, colour, name in runs:
        marker = "o" if len(run.losses) < 20 else None
        left.plot(
            range(1, len(run.losses) + 1), run.losses, color=colour, label=name, marker=marker
        )
    left.axhline(1 / 6, color=GREY, linestyle=":", label="1/6")
    left.set_xscale("log")
    left.set_ylim(-0.01, 0.25)
    left.legend(frameon=False, fontsize=9, loc="upper right")
    label_axes(left, "A2: loss of the three samples", "step + 1", "loss")

    first, second = torch.meshgrid(
        torch.linspace(-2, 8, 201, dtype=torch.float64),
        torch.linspace(-0.5, 12, 251, dtype=torch.float64),
        indexing="ij",
    )
    grid = torch.stack([first, second], dim=-1)
    filled = right.contourf(
        first,
        second,
        three_sample_loss(grid),
        levels=[0.02 * level for level in range(16)],
        cmap="cividis",
        alpha=0.85,
    )
    figure.colorbar(filled, ax=right, label="smoothed loss F")
    region = is_trapped(grid) & (second > 0) & (second < first)
    right.contourf(first, second, region.double(), levels=[0.5, 1.5], colors="none", hatches=["//"])
    for run, colour, name in runs:
        points = run.weights
        right.plot(points[:, 0], points[:, 1], color="white", linewidth=3.4)
        right.plot(points[:, 0], points[:, 1], color=colour, linewidth=1.8, label=name)
    start = descent.weights[0]
    right.plot(*start, marker="o", color="white", markeredgecolor=BLACK, markersize=8)
    right.set_xlim(-2, 8)
    right.set_ylim(-0.5, 12)
    label_axes(right, "Paths (hatched: θ₁ > θ₂ > 0 and ∂F/∂θ₁ < ∂F/∂θ₂ < 0)", "θ₁", "θ₂")
    right.grid(False)
    return save_figure(figure, path)


def plot_regret(path: Path, panels: Mapping[str, Sequence[tuple[float, Tensor, Bounds]]]) -> Path:
    """A3. One row for each setting, one column for each delta: mean AP-loss and its bounds.

    panels: setting -> (delta, AP-losses (T,), bounds) of each column.
    """
    num_columns = max(len(columns) for columns in panels.values())
    figure = new_figure(3.6 * num_columns, 3.2 * len(panels))
    grid = figure.subplots(len(panels), num_columns, squeeze=False, sharex=True, sharey=True)
    for row, (setting, columns) in zip(grid, panels.items(), strict=True):
        for axes, (delta, losses, bounds) in zip(row, columns, strict=True):
            steps = range(1, len(losses) + 1)
            for values, colour, style, name in (
                (bounds.final1, ORANGE, "-", "bound of Eq. 50"),
                (bounds.final2, SKY, "-", "bound of Eq. 52"),
                (bounds.online, BLUE, "-", "bound of Eq. 48"),
                (mean_so_far(losses), BLACK, "-", "mean AP-loss"),
            ):
                if values is not None:
                    axes.plot(steps, values, color=colour, linestyle=style, label=name)
            axes.axhline(1, color=GREY, linestyle=":")
            axes.set_xscale("log")
            axes.set_yscale("log")
            label_axes(axes, f"{setting}, δ = {delta:g}", "", "")
        row[0].set_ylabel("mean over steps so far")
        row[0].legend(frameon=False, fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("steps T")
    return save_figure(figure, path)


def plot_accuracy_and_ranking(
    path: Path,
    scores: Tensor,
    targets: Tensor,
    *,
    threshold: float,
    accuracy: float,
    average_precision: float,
) -> Path:
    """The introduction's example: anchors (side, side) on the left, their ranking on the right."""
    figure = new_figure(10, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.5])
    _draw_anchors(left, scores, targets, threshold)
    left.set_title(
        f"Accuracy {accuracy:.2f} at threshold {threshold:g}\n"
        "orange: object (dashed); blue frame: detected",
        fontsize=10,
    )
    _draw_ranking(right, scores.flatten(), targets.flatten(), threshold)
    label_axes(
        right, f"AP {average_precision:.2f}: mean of rank⁺/rank over the objects", "rank", "score"
    )
    right.grid(False)
    return save_figure(figure, path)


def _draw_anchors(axes: Axes, scores: Tensor, targets: Tensor, threshold: float) -> None:
    """Draw the anchors (side, side) as squares: filled for an object, framed if detected."""
    from matplotlib.patches import Rectangle

    side = len(scores)
    for row in range(side):
        for column in range(side):
            score, is_positive = float(scores[row, column]), bool(targets[row, column])
            is_detected = score >= threshold
            axes.add_patch(
                Rectangle(
                    (column + 0.08, row + 0.08),
                    0.84,
                    0.84,
                    facecolor=ORANGE if is_positive else "white",
                    edgecolor=BLUE if is_detected else GREY,
                    linewidth=3 if is_detected else 1,
                )
            )
            axes.text(column + 0.5, row + 0.5, f"{score:.2f}", ha="center", va="center", fontsize=9)
            if is_positive:
                axes.add_patch(
                    Rectangle(
                        (column - 0.04, row - 0.04),
                        1.08,
                        1.08,
                        fill=False,
                        edgecolor=VERMILION,
                        linewidth=2,
                        linestyle="--",
                    )
                )
    axes.set(xlim=(-0.15, side + 0.15), ylim=(side + 0.15, -0.15), aspect="equal")
    axes.axis("off")


def _draw_ranking(axes: Axes, scores: Tensor, targets: Tensor, threshold: float) -> None:
    """Draw the scores (anchors,) from high to low, with the precision at each object."""
    order = scores.argsort(descending=True)
    colours = [ORANGE if bool(targets[i]) else "#C8C8C8" for i in order]
    axes.bar(range(1, len(order) + 1), scores[order].tolist(), color=colours)
    axes.axhline(threshold, color=BLUE, linestyle="--")
    axes.text(len(order) + 0.5, threshold, "threshold", color=BLUE, ha="right", va="bottom")
    num_found = 0
    for rank, index in enumerate(order.tolist(), start=1):
        if targets[index]:
            num_found += 1
            axes.annotate(
                f"{num_found}/{rank}",
                (rank, float(scores[index])),
                ha="center",
                va="bottom",
                fontsize=10,
            )
