"""`rankdet check`, `view` and `synth`: data sets, before anything is trained on them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from rankdet.cli.options import (
    AllowOutside,
    Classes,
    Data,
    Force,
    Format,
    FormatOption,
    MaxPixels,
    Seed,
    Splits,
    class_list,
)


def check(
    data: Data,
    format: FormatOption = None,
    split: Splits = None,
    classes: Classes = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=256,
            show_default=False,
            help="Processes that decode. Default: one per processor, up to 16; 0: only this one.",
        ),
    ] = None,
    max_pixels: MaxPixels = 50_000_000,
    allow_outside: AllowOutside = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Also write everything here; - is standard output."),
    ] = None,
    limit_examples: Annotated[
        int, typer.Option(min=0, max=200, help="Findings of one kind that are printed.")
    ] = 5,
    force: Force = False,
) -> None:
    """Read a whole data set, decode every image, and say what is wrong and what is in it.

    Nothing of yours is changed. The status is 0 without faults, 1 with faults, 2 for a wrong
    option.

    An image in two splits is a fault, by its content. It is none where one split holds all files
    of the other and the names allow it, as VOC's trainval holds train and val.

    Examples:

    rankdet check VOCdevkit --split 2007_trainval --split 2007_test

    rankdet check coco --json report.json
    """
    if data == "synthetic":
        raise typer.BadParameter(
            "the embedded data set is drawn, not read: there is nothing to check. Write it to "
            "files with `rankdet synth`, or look at it with `rankdet view synthetic`.",
            param_hint="DATA",
        )
    from rich.console import Console

    from rankdet import output
    from rankdet.data.checking import report as reports
    from rankdet.data.checking.check import check as check_data
    from rankdet.data.processors import usual_num_workers

    is_json_printed = json_file == Path("-")
    if json_file is not None and not is_json_printed:
        output.refuse_foreign(json_file, reports.JSON_MARK, force)
    report = check_data(
        Path(data),
        format=format,
        split_names=split or (),
        classes=class_list(classes),
        allow_outside=allow_outside,
        max_pixels=max_pixels,
        num_workers=usual_num_workers(most=16) if workers is None else workers,
    )
    # A pipe has no width; at rich's usual 80 columns the tables would be folded.
    width = None if sys.stdout.isatty() else 120
    console = Console(stderr=is_json_printed, width=width, highlight=False)
    reports.print_report(report, console, limit_examples)
    if json_file is not None:
        text = reports.as_json(report, _command())
        if is_json_printed:
            typer.echo(text, nl=False)
        else:
            output.write_whole(json_file, text.encode("utf-8"))
    if report.num_faults:
        raise typer.Exit(1)


def view(
    data: Data,
    out: Annotated[
        Path, typer.Option(dir_okay=False, help="The HTML file to write.", show_default=False)
    ],
    format: FormatOption = None,
    split: Splits = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="Pictures of each split.")] = 24,
    classes: Classes = None,
    class_names: Annotated[
        list[str] | None,
        typer.Option("--class", help="Only pictures that show this class. May be given again."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another number, other pictures.")] = 0,
    max_pixels: MaxPixels = 50_000_000,
    allow_outside: AllowOutside = False,
    force: Force = False,
) -> None:
    """Write one HTML page with sample pictures and their boxes; it opens without a network.

    DATA may also be the word synthetic: the embedded data set.

    Examples:

    rankdet view VOCdevkit --split 2012_val --out page.html

    rankdet view synthetic --count 12 --out page.html
    """
    from rankdet import output
    from rankdet.data.checking import view as pages

    output.refuse_foreign(out, pages.MARK, force)
    wanted = class_names or ()
    if data == "synthetic":
        if format is not None or classes is not None:
            raise typer.BadParameter(
                "the embedded data set has neither another format nor other classes: leave "
                "--format and --classes out.",
                param_hint="DATA",
            )
        sections = pages.synthetic_sections(
            split_names=split or (), wanted=wanted, count=count, seed=seed
        )
    else:
        sections = pages.file_sections(
            Path(data),
            format=format,
            split_names=split or (),
            class_list=class_list(classes),
            wanted=wanted,
            count=count,
            seed=seed,
            allow_outside=allow_outside,
            max_pixels=max_pixels,
        )
    page = pages.render_page(sections, data, wanted)
    output.write_whole(out, page)
    num_pictures = sum(len(section.samples) for section in sections)
    typer.echo(f"Wrote {out}: {num_pictures} pictures, {len(page) / 1e6:.1f} MB.")


def synth(
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", file_okay=False, show_default=False, help="The folder to write."
        ),
    ],
    format: Annotated[Format, typer.Option(help="How to write it.")] = Format.COCO,
    train: Annotated[int, typer.Option(min=0, max=999_999, help="Training images.")] = 2000,
    val: Annotated[int, typer.Option(min=0, max=999_999, help="Validation images.")] = 500,
    seed: Seed = 0,
    size: Annotated[int, typer.Option(min=64, max=2048, help="Side of an image, in pixels.")] = 160,
) -> None:
    """Write the embedded data set to files: pictures of textured shapes, with boxes.

    OUT is a new or an empty folder. The same options give the same bytes. YOLO has no mark for
    ignored objects: there they are written as ordinary ones.

    Example:

    rankdet synth shapes --format coco --train 200 --val 50
    """
    if train + val == 0:
        raise typer.BadParameter("expected at least one image in all", param_hint="--train, --val")

    from rankdet.data.write import synthesise
    from rankdet.progress import progress

    with progress("Drawing") as meter:
        synthesise(
            out,
            format,
            train=train,
            val=val,
            seed=seed,
            size=size,
            on_start=meter.expect,
            on_image=meter.advance,
        )
    typer.echo(f"Wrote {out}: {train} training and {val} validation images as {format.upper()}.")
    typer.echo(f"Next, try: rankdet check {shlex.quote(str(out))}")


def _command() -> str:
    """The command as it was typed, without the folder of the program."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
