"""The paper's theory, computed: tables, pictures and theory.json (`rankdet reproduce theory`).

A1 (convergence on separable data), A2 (gradient descent trapped at 1/6), A3 (regret bounds on
inseparable data), the step functions of section 3.4.2, and the introduction's example of high
accuracy with low AP. The maths is in `theory_separable` and `theory_inseparable`, with what a
careful reader of the proofs should know. About 40 seconds of one core.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankdet.experiments import theory_inseparable as inseparable
from rankdet.experiments import theory_plots as plots
from rankdet.experiments import theory_separable as separable
from rankdet.losses import binary_ap_loss
from rankdet.provenance import provenance

if TYPE_CHECKING:
    from rich.table import Table

MARGINS = (0.05, 0.1, 0.2, 0.5, 1.0)
DELTAS = (0.5, 1.0, 2.0)

# Two objects on a grid of 25 anchors. One false detection stands above the threshold 0.5 and both
# objects below it: 3 of 25 decisions are wrong. The objects have ranks 3 and 6, so AP is
# (1/3 + 2/6) / 2 = 1/3, interpolated or not.
EXAMPLE_SCORES = torch.tensor(
    [
        [0.12, 0.05, 0.21, 0.08, 0.03],
        [0.07, 0.43, 0.16, 0.62, 0.11],
        [0.02, 0.37, 0.26, 0.19, 0.06],
        [0.14, 0.09, 0.40, 0.31, 0.04],
        [0.01, 0.17, 0.10, 0.46, 0.13],
    ],
    dtype=torch.float64,
)
EXAMPLE_OBJECTS = ((1, 1), (3, 3))
EXAMPLE_THRESHOLD = 0.5


def run(out: Path, *, seed: int = 0) -> dict[str, Any]:
    """What was computed, which is also written to out/theory.json, beside the pictures."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    plots.plot_steps(out / "step_functions.png")
    results: dict[str, Any] = {
        "introduction": accuracy_and_ranking(out),
        "A1": convergence(out, seed=seed),
        "A2": three_samples(out),
        "A3": regret(out, seed=seed),
        "provenance": provenance(seed=seed),
    }
    (out / "theory.json").write_text(json.dumps(results, indent=2) + "\n")
    print_tables(results)
    print(f"Pictures and theory.json are in {out}")
    return results


def accuracy_and_ranking(out: Path) -> dict[str, float]:
    """Accuracy and AP of the introduction's example, and its picture."""
    targets = example_targets()
    is_detected = EXAMPLE_SCORES >= EXAMPLE_THRESHOLD
    accuracy = float((is_detected == (targets == 1)).double().mean())
    average_precision, interpolated = (
        1 - float(binary_ap_loss(EXAMPLE_SCORES, targets, step="heaviside", interpolate=on))
        for on in (False, True)
    )
    plots.plot_accuracy_and_ranking(
        out / "accuracy_and_ranking.png",
        EXAMPLE_SCORES,
        targets,
        threshold=EXAMPLE_THRESHOLD,
        accuracy=accuracy,
        average_precision=average_precision,
    )
    return {
        "num_anchors": targets.numel(),
        "accuracy": accuracy,
        "average_precision": average_precision,
        "interpolated_average_precision": interpolated,
    }


def example_targets() -> Tensor:
    """(5, 5): 1 where an object of the introduction's example is, else 0."""
    targets = torch.zeros(EXAMPLE_SCORES.shape, dtype=torch.long)
    for row, column in EXAMPLE_OBJECTS:
        targets[row, column] = 1
    return targets


def convergence(out: Path, *, seed: int, problems_per_margin: int = 24) -> dict[str, Any]:
    """A1 on random separable problems: the steps that each needs, and the bounds."""
    generator = torch.Generator().manual_seed(seed)
    rows, longest = [], None
    for margin in MARGINS:
        for _ in range(problems_per_margin):
            problem = separable.random_separable_problem(generator, margin=margin)
            trajectory = separable.train_until_separated(problem, generator)
            row = {
                "margin": margin,
                "steps": len(trajectory.weights) - 1,
                "final_loss": float(trajectory.losses[-1]),
                "bound": separable.step_bound(problem),
                "sharper_bound": separable.sharper_bound(problem),
            }
            if longest is None or row["steps"] > longest[0]["steps"]:
                longest = (row, problem, trajectory)
            rows.append(row)
    assert longest is not None
    _, problem, trajectory = longest
    growth, ceiling = separable.proof_constants(problem)
    plots.plot_convergence(out / "convergence.png", rows, trajectory, growth, ceiling)
    return {
        "num_problems": len(rows),
        "num_solved": sum(row["final_loss"] == 0 for row in rows),
        "most_steps": max(row["steps"] for row in rows),
        "largest_ratio_to_bound": max(row["steps"] / row["bound"] for row in rows),
        "largest_ratio_to_sharper_bound": max(row["steps"] / row["sharper_bound"] for row in rows),
        "problems": rows,
    }


def three_samples(out: Path, *, steps: int = 1000) -> dict[str, Any]:
    """A2: where gradient descent on the smoothed loss and the error-driven update end."""
    start = torch.tensor([3.0, 1.0], dtype=torch.float64)
    # The update of appendix A1 is |P| = 2 times that of the library: 2 is as long a step as 4.
    descent = separable.descend_smoothed(start, learning_rate=4.0, steps=steps)
    same_step = separable.descend_error_driven(
        start, learning_rate=2.0, steps=steps, step="sigmoid"
    )
    heaviside = separable.descend_error_driven(start, learning_rate=1.0, steps=steps)
    plots.plot_three_samples(out / "three_samples.png", descent, same_step, heaviside)
    return {
        "start": start.tolist(),
        "sufficiently_large": separable.sufficiently_large(),
        "gradient_descent": _summary(descent),
        "error_driven_sigmoid": _summary(same_step),
        "error_driven_heaviside": _summary(heaviside),
    }


def _summary(trajectory: separable.Trajectory) -> dict[str, Any]:
    return {
        "steps": len(trajectory.losses) - 1,
        "first_loss": float(trajectory.losses[0]),
        "last_loss": float(trajectory.losses[-1]),
        "last_weights": trajectory.weights[-1].tolist(),
    }


def regret(out: Path, *, seed: int, steps: int = 4000) -> dict[str, Any]:
    """A3: the mean AP-loss of the modified update on inseparable data, and its bounds."""
    generator = torch.Generator().manual_seed(seed)
    panels, rows = {}, []
    for setting, num_samples in (("offline", 1), ("online", 4)):
        samples = [inseparable.random_inseparable_sample(generator) for _ in range(num_samples)]
        start = 0.2 * torch.randn(4, generator=generator, dtype=torch.float64)
        columns = []
        for delta in DELTAS:
            history = inseparable.run_modified_update(
                samples, start, delta=delta, steps=steps, generator=generator
            )
            bounds = _best_bounds(history, samples, delta)
            columns.append((delta, history.ap_losses, bounds))
            rows.append(_regret_row(setting, delta, history, bounds))
        panels[setting] = columns
    plots.plot_regret(out / "regret.png", panels)
    return {"steps": steps, "runs": rows}


def _best_bounds(
    history: inseparable.OnlineRun, samples: Sequence[inseparable.Sample], delta: float
) -> inseparable.Bounds:
    """Each bound with the comparator that makes it lowest at the end of the run."""
    comparator = inseparable.best_online_comparator(history, samples, delta)
    bounds = inseparable.regret_bounds(history, samples, comparator, delta)
    if len(samples) > 1:
        return bounds
    comparator = inseparable.best_final_comparator(history, samples[0], delta)
    final = inseparable.regret_bounds(history, samples, comparator, delta)
    return inseparable.Bounds(bounds.online, final.final1, final.final2)


def _regret_row(
    setting: str, delta: float, history: inseparable.OnlineRun, bounds: inseparable.Bounds
) -> dict[str, Any]:
    mean_loss = inseparable.mean_so_far(history.ap_losses)
    given = [bound for bound in (bounds.online, bounds.final1, bounds.final2) if bound is not None]
    return {
        "setting": setting,
        "delta": delta,
        "mean_ap_loss": float(mean_loss[-1]),
        "last_ap_loss": float(history.ap_losses[-1]),
        "regret_bound1": float(bounds.online[-1]),
        "final_bound1": None if bounds.final1 is None else float(bounds.final1[-1]),
        "final_bound2": None if bounds.final2 is None else float(bounds.final2[-1]),
        "all_bounds_hold": all(bool((mean_loss <= bound).all()) for bound in given),
        "surrogate_bound_holds": bool(
            (history.surrogates >= delta / 4 * history.ap_losses * (1 - 1e-12)).all()
        ),
    }


def print_tables(results: dict[str, Any]) -> None:
    """Show the results on the terminal."""
    from rich.console import Console

    console = Console()
    example = results["introduction"]
    console.print(
        f"Introduction: {example['num_anchors']} anchors, accuracy {example['accuracy']:.2f}, "
        f"AP {example['average_precision']:.2f}"
    )
    console.print(_convergence_table(results["A1"]["problems"]))
    console.print(_three_samples_table(results["A2"]))
    console.print(_regret_table(results["A3"]))


def _convergence_table(problems: Sequence[Mapping[str, float]]) -> Table:
    """A1: one row for each margin."""
    from rich.table import Table

    table = Table(
        "margin",
        "problems",
        "solved",
        "median steps",
        "most steps",
        "lowest bound",
        title="A1: steps until AP-loss 0, and the bound C / c²",
    )
    for margin in MARGINS:
        rows = [row for row in problems if row["margin"] == margin]
        steps = sorted(row["steps"] for row in rows)
        table.add_row(
            f"{margin:g}",
            str(len(rows)),
            str(sum(row["final_loss"] == 0 for row in rows)),
            str(steps[len(steps) // 2]),
            str(steps[-1]),
            f"{min(row['bound'] for row in rows):.1e}",
        )
    return table


def _three_samples_table(summaries: Mapping[str, Any]) -> Table:
    """A2: one row for each update."""
    from rich.table import Table

    table = Table(
        "update",
        "steps",
        "first loss",
        "last loss",
        "last weights",
        title="A2: three samples, from weights (3, 1)",
    )
    for name in ("gradient_descent", "error_driven_sigmoid", "error_driven_heaviside"):
        row = summaries[name]
        table.add_row(
            name.replace("_", " "),
            str(row["steps"]),
            f"{row['first_loss']:.4f}",
            f"{row['last_loss']:.4f}",
            ", ".join(f"{weight:.2f}" for weight in row["last_weights"]),
        )
    return table


def _regret_table(regrets: Mapping[str, Any]) -> Table:
    """A3: one row for each setting and delta."""
    from rich.table import Table

    headings = {
        "mean_ap_loss": "mean AP-loss",
        "regret_bound1": "bound of Eq. 48",
        "final_bound1": "bound of Eq. 50",
        "final_bound2": "bound of Eq. 52",
    }
    table = Table(
        "setting",
        "delta",
        *headings.values(),
        "all hold",
        title=f"A3: inseparable data, {regrets['steps']} steps",
    )
    for row in regrets["runs"]:
        numbers = ["" if row[key] is None else f"{row[key]:.3f}" for key in headings]
        holds = row["all_bounds_hold"] and row["surrogate_bound_holds"]
        table.add_row(row["setting"], f"{row['delta']:g}", *numbers, "yes" if holds else "NO")
    return table
