"""`rankdet train` and `recipes`: settings out of a recipe, a file and options, in this order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from rankdet.cli.options import (
    AllowOutside,
    BatchSize,
    Classes,
    Device,
    FormatOption,
    Settings,
    Workers,
    check_device,
    class_list,
    data_path,
    given,
)
from rankdet.config import (
    BACKBONE_NAMES,
    DETECTOR_NAMES,
    LOSS_NAMES,
    Config,
    apply_settings,
    dump,
    read_config,
)
from rankdet.config.sections import LARGEST_SIDE, SMALLEST_SIDE
from rankdet.errors import ConfigError

_DATA_MISSING = (
    "data.path: there is no data to train on. Give DATA, the word synthetic, or a --config with "
    "data.path."
)


class Precision(StrEnum):
    """What the network computes in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def train(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            show_default=False,
            help="A data set: its folder, or its JSON or YAML file; or the word synthetic. May be "
            "left out with --resume, or if the --config file has data.path.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(file_okay=False, help="The run: a folder that is new or empty.")
    ] = Path("runs/train"),
    recipe: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help="Settings to begin with; see `rankdet recipes`. Default: default.",
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config", exists=True, dir_okay=False, help="A YAML file with further settings."
        ),
    ] = None,
    settings: Settings = None,
    train_split: Annotated[
        str | None, typer.Option(help="To train on: a split, or a sum such as train+val.")
    ] = None,
    val_split: Annotated[
        str | None, typer.Option(help="To evaluate on: a split, or a sum of several.")
    ] = None,
    hold_out: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            show_default=False,
            help="Evaluate on this share of the split to train on, such as 0.1, and train on the "
            "rest. File names decide which images, whatever the seed. In place of --val-split.",
        ),
    ] = None,
    classes: Classes = None,
    format: FormatOption = None,
    detector: Annotated[str | None, typer.Option(help=", ".join(DETECTOR_NAMES) + ".")] = None,
    backbone: Annotated[str | None, typer.Option(help=", ".join(BACKBONE_NAMES) + ".")] = None,
    loss: Annotated[
        str | None, typer.Option(help=f"The class loss: {', '.join(LOSS_NAMES)}.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="To begin with: none; imagenet or another name of torchvision's; a file "
            "(.safetensors or .pth) of a backbone or a detector; or the folder of a run."
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Times through the data; the learning rate's steps move along."),
    ] = None,
    batch_size: BatchSize = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="For the recipe's reference batch size; scaled to --batch-size."),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=SMALLEST_SIDE,
            help="Side of the images in training, in pixels; the evaluation's sizes move along.",
        ),
    ] = None,
    workers: Workers = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="Seed of all random numbers.")
    ] = None,
    device: Device = None,
    precision: Annotated[
        Precision | None,
        typer.Option(show_default=False, help="Default: bfloat16 on CUDA, float32 on a CPU."),
    ] = None,
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the network: a slow start, faster steps.")
    ] = False,
    accumulate: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Divide a batch into so many, one after the other, to save memory. Ranking losses "
            "then rank within each part only.",
        ),
    ] = None,
    rank_locally: Annotated[
        bool,
        typer.Option(
            "--rank-locally",
            help="With several processes (torchrun), ranking losses rank the images of each alone, "
            "as the paper's code does. Default: those of all.",
        ),
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard's files.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run in --out; options given change it."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Resume although data or settings are others.")
    ] = False,
    allow_outside: AllowOutside = False,
) -> None:
    """Train a detector, evaluate it, and keep all of it in a run directory.

    Settings come from the recipe, then the --config file, then the options, then --set: the later
    one counts. The run's config.yaml has all of them.

    Ctrl-C, SIGTERM or a closed terminal saves and stops, with the status 130, 143 or 129; --resume
    goes on from there. Else the status is 0, 1 for an error, 2 for a wrong option.

    For several GPUs or machines, start it with torchrun: --batch-size is that of all processes
    together, and the loss is exactly that of one process with the same batch.

    Examples:

    rankdet train photos --weights imagenet --out runs/photos

    rankdet train VOCdevkit --recipe voc --loss focal --batch-size 8 --out runs/focal

    rankdet train synthetic --recipe small --set loss.settings.delta=0.5

    rankdet train --resume --out runs/photos

    torchrun --nproc-per-node 2 -m rankdet train photos --out runs/photos
    """
    check_device(device)
    if resume and recipe is not None:
        raise typer.BadParameter(
            "the run to go on with has its settings: leave --recipe out.", param_hint="--recipe"
        )
    options = {
        "data": {
            "path": None if data is None else data_path(data),
            "format": None if format is None else format.value,
            "train_split": train_split,
            "val_split": val_split,
            "hold_out": hold_out,
            "classes": class_list(classes),
            "allow_outside": allow_outside or None,
            "size": size,
            "workers": workers,
        },
        "detector": {"name": detector, "backbone": backbone, "weights": weights},
        "loss": {"name": loss},
        "training": {
            "epochs": epochs,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "precision": None if precision is None else precision.value,
            "compile": compile or None,
            "accumulate": accumulate,
            "rank_locally": rank_locally or None,
            "tensorboard": tensorboard or None,
        },
        "seed": seed,
    }
    make_config = config_maker(recipe or "default", config_file, given(options), settings or [])
    if not resume:
        make_config(None)  # a mistake shows before the seconds that torch takes

    from rankdet.workflows import train as workflow

    status = workflow.train(
        out, make_config=make_config, is_resumed=resume, is_forced=force, device=device
    )
    if status:
        raise typer.Exit(status)


def config_maker(
    recipe_name: str, file: Path | None, options: dict[str, Any], settings: list[str]
) -> Callable[[Config | None], Config]:
    """A function from the stored settings of a run (None: a new run) to those that are wanted."""

    def make_config(stored: Config | None) -> Config:
        base = _recipe(recipe_name, options) if stored is None else stored
        if file is not None:
            base = read_config(file, base)
        changes = options if stored is not None else _with_dependants(options, base)
        config = apply_settings(base, settings, changes)
        if not config.data.path:
            raise ConfigError(_DATA_MISSING)
        return config

    return make_config


def _recipe(name: str, options: dict[str, Any]) -> Config:
    """The recipe; with --hold-out, without its split to evaluate on."""
    from rankdet.recipes import recipe

    base = recipe(name)
    if "hold_out" not in options.get("data", {}):
        return base
    return replace(base, data=replace(base.data, val_split=None))


def _with_dependants(options: dict[str, Any], base: Config) -> dict[str, Any]:
    """The options, and what moves along with them: --set can still say otherwise."""
    changes = {
        name: dict(part) if isinstance(part, dict) else part for name, part in options.items()
    }
    epochs = changes.get("training", {}).get("epochs")
    if epochs is not None:
        factor = epochs / base.training.epochs
        changes["training"]["milestones"] = [time * factor for time in base.training.milestones]
    size = changes.get("data", {}).get("size")
    if size is not None:
        changes["evaluation"] = _evaluation_sizes(base, size / base.data.size)
    return changes


def _evaluation_sizes(base: Config, factor: float) -> dict[str, Any]:
    """Those of the recipe times the factor: objects are as large as in the training."""
    before = base.evaluation
    sides = {name: getattr(before, name) for name in ("shorter", "longest", "fixed_size")}
    return {
        name: min(max(round(side * factor), SMALLEST_SIDE), LARGEST_SIDE)
        for name, side in sides.items()
        if side is not None
    }


def recipes(
    name: Annotated[
        str | None, typer.Argument(show_default=False, help="A recipe, to print all its settings.")
    ] = None,
) -> None:
    """List the recipes, or print one as YAML, ready to be changed and given to --config.

    Examples:

    rankdet recipes

    rankdet recipes voc > my.yaml
    """
    from rankdet.recipes import RECIPES, recipe, summary

    if name is not None:
        typer.echo(dump(recipe(name)), nl=False)
        return
    width = max(map(len, RECIPES))
    for known in RECIPES:
        typer.echo(f"{known:{width}}  {summary(known)}")
