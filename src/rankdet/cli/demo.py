"""`rankdet demo`: everything that rankdet does, once, on the embedded data."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rankdet.cli.options import INTERRUPTED, Device, Seed, check_device
from rankdet.config import LOSS_NAMES, closest


def demo(
    out: Annotated[
        Path, typer.Option(file_okay=False, help="A folder that is new, empty, or of a demo.")
    ] = Path("runs/demo"),
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="LOSS,LOSS,...",
            show_default=False,
            help="Also train with these, in the same way and for as many steps: "
            f"{', '.join(name for name in LOSS_NAMES if name != 'ap')}.",
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", dir_okay=False, help="Also write the numbers of all runs here."),
    ] = None,
) -> None:
    """Train a small detector with AP-loss in minutes, evaluate it, predict, and write a report.

    The data are drawn by the program, and no GPU is needed. Called again, it goes on with what was
    stopped (Ctrl-C saves), trains what --compare adds, and leaves the rest as it is.

    Examples:

    rankdet demo

    rankdet demo --compare focal,ohem,auc --out runs/demo
    """
    losses = _losses(compare)
    again = _command(out, compare, seed, device, json_file)
    try:
        typer.echo(
            "The demo: a small RetinaNet, AP-loss and images drawn by the program. The training "
            "takes some minutes on two processors. Loading PyTorch comes first.",
            err=True,
        )
        check_device(device)

        from rankdet.recipes import recipe
        from rankdet.workflows import demo as workflow

        config = replace(recipe("demo"), seed=seed)
        status = workflow.demo(out, config=config, compare=losses, device=device, record=json_file)
    except KeyboardInterrupt:  # not in a training, which would have saved
        status = INTERRUPTED
    if status:
        typer.echo(f"The demo is not finished. Go on with it: {again}", err=True)
        raise typer.Exit(status)


def _losses(text: str | None) -> list[str]:
    """The names in a text such as focal,auc."""
    names = [] if text is None else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in LOSS_NAMES:
            hint = closest(name, LOSS_NAMES)
            raise typer.BadParameter(
                f"{name!r}: expected losses out of {', '.join(LOSS_NAMES)}, with commas."
                + (f" {hint}" if hint else ""),
                param_hint="--compare",
            )
    return names


def _command(
    out: Path, compare: str | None, seed: int, device: str | None, json_file: Path | None
) -> str:
    """What to type to go on.

    >>> _command(Path("my runs"), "focal", 3, None, None)
    "rankdet demo --out 'my runs' --compare focal --seed 3"
    """
    options = {
        "--compare": compare,
        "--seed": seed or None,
        "--device": device,
        "--json": json_file,
    }
    words = ["rankdet", "demo", "--out", str(out)]
    for name, value in options.items():
        words += [] if value is None else [name, str(value)]
    return shlex.join(words)
