"""`rankdet robustness`: perturbed images and attacks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankdet.cli.options import (
    BatchSize,
    Device,
    Force,
    Seed,
    Settings,
    Workers,
    check_device,
    data_path,
    given,
)
from rankdet.cli.running import Checkpoint, Run
from rankdet.config import Config, apply_settings

OtherData = Annotated[
    str | None,
    typer.Argument(
        metavar="DATA", show_default=False, help="Other data than the run was trained with."
    ),
]
Split = Annotated[
    str | None, typer.Option(show_default=False, help="The images. Default: the run's val split.")
]
Limit = Annotated[
    int | None, typer.Option(min=1, show_default=False, help="Only the first so many images.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Only this: black, random, flip, adversarial, noise, deepfool, or a corruption. "
        "May be given again.",
    ),
]
Corruptions = Annotated[
    bool,
    typer.Option(
        "--corruptions",
        help="Also blur, JPEG, brightness, contrast and noise, each in five severities.",
    ),
]
TrainSplit = Annotated[
    str | None,
    typer.Option(
        "--train-split",
        "--patch-split",
        show_default=False,
        help="Train the adversarial patch on this. Default: as the run was trained.",
    ),
]
PatchFile = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False, show_default=False, help="Use this patch: a picture or .safetensors."
    ),
]
PatchSteps = Annotated[int, typer.Option(min=1, help="Steps of the patch's training.")]
DeepFoolObjects = Annotated[
    int, typer.Option(min=0, help="Attack so many detected objects; 0: all of them.")
]
OutFolder = Annotated[
    Path | None,
    typer.Option(file_okay=False, show_default=False, help="Folder for the files. Default: RUN."),
]
NoPictures = Annotated[bool, typer.Option("--no-pictures", help="Keep no example images.")]


def robustness(
    run: Run,
    data: OtherData = None,
    split: Split = None,
    limit: Limit = None,
    only: Only = None,
    corruptions: Corruptions = False,
    train_split: TrainSplit = None,
    patch: PatchFile = None,
    patch_steps: PatchSteps = 300,
    deepfool_objects: DeepFoolObjects = 200,
    seed: Seed = 0,
    checkpoint: Checkpoint = "best",
    batch_size: BatchSize = None,
    workers: Workers = None,
    settings: Settings = None,
    device: Device = None,
    out: OutFolder = None,
    no_pictures: NoPictures = False,
    force: Force = False,
) -> None:
    """Measure a trained detector on perturbed images: patches on objects, noise, attacks.

    Writes robustness.json, which `rankdet report RUN` shows, and the adversarial patch.

    Examples:

    rankdet robustness runs/photos

    rankdet robustness runs/voc VOCdevkit --split 2007_test --limit 500 --only black --only noise

    rankdet robustness runs/photos --corruptions --patch other/robustness-patch.safetensors
    """
    check_device(device)
    options = given(
        {
            "data": {"workers": workers},
            "evaluation": {
                "batch_size": batch_size,
                "pictures": False if no_pictures else None,
            },
        }
    )

    def changes(stored: Config) -> Config:
        return apply_settings(stored, settings or [], options)

    from rankdet.robustness.adversarial import PatchSettings
    from rankdet.workflows import robustness as workflow

    workflow.robustness(
        run,
        data=None if data is None else data_path(data),
        split=split,
        limit=limit,
        only=only or [],
        with_corruptions=corruptions,
        train_split=train_split,
        patch_file=patch,
        patch_settings=PatchSettings(steps=patch_steps),
        deepfool_objects=deepfool_objects or None,
        seed=seed,
        checkpoint=checkpoint,
        changes=changes,
        device=device,
        out=out,
        is_forced=force,
    )
