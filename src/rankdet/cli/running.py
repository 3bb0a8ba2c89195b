"""`rankdet evaluate` and `predict`: what a trained run is good for."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from rankdet.cli.options import (
    BatchSize,
    Device,
    Force,
    Settings,
    Workers,
    check_device,
    data_path,
    given,
)
from rankdet.config import Config, apply_settings
from rankdet.errors import ConfigError

Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        exists=True,
        file_okay=False,
        show_default=False,
        help="The folder that `rankdet train` wrote.",
    ),
]
Checkpoint = Annotated[
    str, typer.Option(help="best, last, or the folder of a checkpoint of the run.")
]


class Protocol(StrEnum):
    """Whose metrics."""

    VOC = "voc"
    COCO = "coco"


class Output(StrEnum):
    """The files for the detections."""

    JSON = "json"
    CSV = "csv"
    BOTH = "both"


def evaluate(
    run: Run,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA", show_default=False, help="Other data than the run was trained with."
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            show_default=False, help="A split, or a sum of several. Default: the run's val split."
        ),
    ] = None,
    checkpoint: Checkpoint = "best",
    protocol: Annotated[
        Protocol | None, typer.Option(show_default=False, help="Default: by the data's format.")
    ] = None,
    scales: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...", help="Multi-scale testing: several shorter sides, as 400,500,600."
        ),
    ] = None,
    flip: Annotated[
        bool, typer.Option("--flip", help="Look at every image mirrored, too.")
    ] = False,
    shorter: Annotated[
        int | None,
        typer.Option(min=32, help="Resize the shorter side to this; --longest moves along."),
    ] = None,
    longest: Annotated[
        int | None, typer.Option(min=32, help="The longer side is at most this.")
    ] = None,
    batch_size: BatchSize = None,
    workers: Workers = None,
    device: Device = None,
    out: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            show_default=False,
            help="The JSON file. Default: RUN/results.json; for another split, other data or other "
            "scales and thresholds a name that says so.",
        ),
    ] = None,
    submission: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Also write the evaluation server's files here."),
    ] = None,
    no_pictures: Annotated[
        bool, typer.Option("--no-pictures", help="Keep no images in the JSON file.")
    ] = False,
    force: Force = False,
    settings: Settings = None,
) -> None:
    """Measure a trained detector: AP, a table of classes, and the best threshold of each.

    Examples:

    rankdet evaluate runs/photos

    rankdet evaluate runs/voc VOCdevkit --split 2007_test --scales 400,500,600,700 --flip

    rankdet evaluate runs/voc --split 2012_test --submission upload
    """
    check_device(device)
    sides = None if scales is None else _parse_scales(scales)
    options = given(
        {
            "data": {"workers": workers},
            "evaluation": {
                "protocol": None if protocol is None else protocol.value,
                "flip": flip or None,
                "batch_size": batch_size,
                "shorter": shorter,
                "longest": longest,
                "scales": sides,
                "pictures": False if no_pictures else None,
            },
        }
    )
    for text in settings or []:
        if not text.lstrip().startswith(("evaluation.", "data.")):
            raise ConfigError(
                f"--set {text}: expected evaluation.KEY=VALUE or data.KEY=VALUE. "
                "The rest cannot be changed once a detector is trained."
            )

    def changes(stored: Config) -> Config:
        return apply_settings(stored, settings or [], _with_dependants(options, stored))

    from rankdet.workflows import evaluate as workflow

    workflow.evaluate(
        run,
        data=None if data is None else data_path(data),
        split=split,
        checkpoint=checkpoint,
        changes=changes,
        out=out,
        submission=submission,
        device=device,
        is_forced=force,
    )


def _parse_scales(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise typer.BadParameter(
            f"expected whole numbers with commas, as 400,500,600; got {text!r}",
            param_hint="--scales",
        ) from error


def _with_dependants(options: dict[str, Any], stored: Config) -> dict[str, Any]:
    """The options, and what they replace: the last word about an image's size counts."""
    wanted = dict(options.get("evaluation", {}))
    if "shorter" in wanted:
        before = stored.evaluation
        wanted.setdefault("longest", round(before.longest * wanted["shorter"] / before.shorter))
        wanted.setdefault("scales", [])
    if wanted.keys() & {"shorter", "longest", "scales"}:
        wanted["fixed_size"] = None
    return {**options, "evaluation": wanted}


def predict(
    run: Run,
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGES...", exists=True, show_default=False, help="Images, or folders of them."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            file_okay=False, show_default=False, help="Folder for pictures and detections."
        ),
    ],
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            show_default=False,
            help="Show detections from this score on. Default: the best threshold of each class, "
            "found by the evaluation.",
        ),
    ] = None,
    checkpoint: Checkpoint = "best",
    format: Annotated[
        Output, typer.Option(help="The detections: as COCO's JSON, as a table, or both.")
    ] = Output.BOTH,
    no_pictures: Annotated[
        bool, typer.Option("--no-pictures", help="Do not draw the boxes on the images.")
    ] = False,
    batch_size: BatchSize = None,
    device: Device = None,
    force: Force = False,
) -> None:
    """Detect objects in images: pictures with boxes, and a file with all detections.

    Examples:

    rankdet predict runs/photos holiday.jpg --out detections

    rankdet predict runs/photos folder --out detections --format csv --no-pictures --threshold 0.4
    """
    check_device(device)

    from rankdet.workflows import predict as workflow

    workflow.predict(
        run,
        images,
        out,
        threshold=threshold,
        checkpoint=checkpoint,
        format=format.value,
        with_pictures=not no_pictures,
        batch_size=batch_size,
        device=device,
        is_forced=force,
    )
