"""`rankdet reproduce`: experiments of the paper, and of what it is about."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankdet.cli.options import Out, Seed

# What `rankdet reproduce` knows: the command's name, and one line for `rankdet reproduce list`.
EXPERIMENTS = {
    "theory": "steps, convergence, the three-sample problem, surrogate and regret bounds",
    "ranking": "AP-loss and other losses on a ranking problem, 1 positive to 10,000 negatives",
}

app = typer.Typer(help="Repeat an experiment of the paper.", no_args_is_help=True)


@app.command("list")
def list_experiments() -> None:
    """Name the experiments, one per line."""
    for name, summary in EXPERIMENTS.items():
        typer.echo(f"{name:12} {summary}")


@app.command("theory", help=f"Print and plot {EXPERIMENTS['theory']}.")
def reproduce_theory(out: Out = Path("runs/theory"), seed: Seed = 0) -> None:
    from rankdet.experiments import theory

    theory.run(out, seed=seed)


@app.command("ranking", help=f"Train and plot {EXPERIMENTS['ranking']}.")
def reproduce_ranking(
    out: Out = Path("runs/ranking"),
    seed: Seed = 0,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each loss.")] = 300,
) -> None:
    from rankdet.experiments import ranking

    ranking.run(out, seed=seed, steps=steps)
