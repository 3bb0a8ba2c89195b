"""Options that several commands share, and checks of what was given for them."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

INTERRUPTED = 130  # what shells call a program that Ctrl-C ended

Out = Annotated[
    Path, typer.Option(file_okay=False, help="Folder for tables and plots; made if missing.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of all random numbers.")]


class Format(StrEnum):
    """The formats of data sets that can be read and written."""

    VOC = "voc"
    COCO = "coco"
    YOLO = "yolo"


Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        show_default=False,
        help="A data set: its folder, or its JSON or YAML file. VOC, COCO and YOLO are recognised.",
    ),
]
FormatOption = Annotated[
    Format | None, typer.Option("--format", help="The format, if it is not recognised.")
]
Splits = Annotated[
    list[str] | None,
    typer.Option(
        "--split", help="A split, or a sum such as train+val. May be given again. Default: all."
    ),
]
Classes = Annotated[
    Path | None,
    typer.Option(
        "--classes",
        exists=True,
        dir_okay=False,
        help="A text file with a class on each line, in place of the data's own list.",
    ),
]
AllowOutside = Annotated[
    bool, typer.Option("--allow-outside", help="Accept files outside of the data's folder.")
]
# Above this, Pillow itself refuses the image.
MaxPixels = Annotated[int, typer.Option(min=1, help="Larger images are skipped, not decoded.")]
Force = Annotated[bool, typer.Option("--force", help="Replace files that are not ours.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting, as evaluation.nms_iou=0.6. May be given again. `rankdet recipes "
        "default` prints all.",
    ),
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Images at a time.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=256,
        show_default=False,
        help="Processes that load images. Default: by the number of processors; 0: only this one.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(show_default=False, help="cpu, cuda or cuda:N. Default: cuda if there is one."),
]


def check_device(device: str | None) -> None:
    """Refuse a device that is misspelt or not there; None is the usual one."""
    if device is None:
        return
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


def class_list(file: Path | None) -> tuple[str, ...] | None:
    """The classes in a text file; None without one."""
    if file is None:
        return None
    from rankdet.data.reading.formats import read_class_list

    return read_class_list(file)


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that are not None, without sections that are empty then.

    >>> given({"data": {"size": None, "path": "x"}, "loss": {"name": None}, "seed": None})
    {'data': {'path': 'x'}}
    """
    result = {}
    for name, value in options.items():
        kept = given(value) if isinstance(value, dict) else value
        if kept is not None and kept != {}:
            result[name] = kept
    return result


def data_path(data: str) -> str:
    """The path from the root, so that the run can be continued from any folder."""
    return data if data == "synthetic" else os.path.abspath(data)  # noqa: PTH100 - links stay
