"""The command `rankdet`: reads the options, checks them, and calls the module that does the work.

Everything that needs torch is imported inside the functions: `rankdet --help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rankdet import __version__

# What `rankdet reproduce` knows: the command's name, and one line for `rankdet reproduce list`.
EXPERIMENTS = {
    "theory": "steps, convergence, the three-sample problem, surrogate and regret bounds",
}

app = typer.Typer(
    name="rankdet",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench_app = typer.Typer(help="Measure speed and memory.", no_args_is_help=True)
reproduce_app = typer.Typer(help="Repeat an experiment of the paper.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")
app.add_typer(reproduce_app, name="reproduce")

Out = Annotated[
    Path, typer.Option(file_okay=False, help="Folder for tables and plots; made if missing.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of all random numbers.")]


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"rankdet {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """Ranking losses for object detection."""


@app.command()
def demo(
    out: Out = Path("runs/demo"),
    seed: Seed = 0,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each loss.")] = 300,
) -> None:
    """Train with AP-loss and with other losses on a 1 : 10,000 problem: a table and a plot."""
    from rankdet.experiments import ranking_demo

    ranking_demo.run(out, seed=seed, steps=steps)


@bench_app.command("losses")
def bench_losses(
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, a minute or two.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", dir_okay=False, help="Also write the table here.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    seed: Seed = 0,
) -> None:
    """Time and memory of the losses, forward and backward, next to sigmoid focal loss."""
    _check_device(device)
    if json_file is not None:  # a wrong folder should show before the minutes of measuring
        json_file.parent.mkdir(parents=True, exist_ok=True)

    from rankdet.bench import losses

    losses.main(quick=quick, json_file=json_file, device=device, seed=seed)


@bench_app.command("table")
def bench_table(
    record: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A --json FILE.")],
) -> None:
    """Print a record of `rankdet bench losses` as a table for a text in Markdown."""
    import json

    from rankdet.bench.tables import markdown

    typer.echo(markdown(json.loads(record.read_text())))


@reproduce_app.command("list")
def list_experiments() -> None:
    """Name the experiments, one per line."""
    for name, summary in EXPERIMENTS.items():
        typer.echo(f"{name:12} {summary}")


@reproduce_app.command("theory", help=f"Print and plot {EXPERIMENTS['theory']}.")
def reproduce_theory(out: Out = Path("runs/theory"), seed: Seed = 0) -> None:
    from rankdet.experiments import theory

    theory.run(out, seed=seed)


def _check_device(device: str) -> None:
    """Refuse a device that is misspelt or not there."""
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise typer.BadParameter(
            f"expected cpu, cuda or cuda:N, got {device!r}", param_hint="--device"
        )

    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises the latter
        reason = str(error).partition("\n")[0]
        raise typer.BadParameter(f"{device!r}: {reason}", param_hint="--device") from error


def main() -> None:
    """Run the command line; what the system refuses (a full disk, a missing right) is one line."""
    try:
        app()
    except OSError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
