"""The command `rankdet`: reads the options, checks them, and calls the module that does the work.

Everything that needs torch is imported inside the functions: `rankdet --help` answers at once.
"""

from __future__ import annotations

import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rankdet import __version__
from rankdet.errors import RankdetError

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
bench_app = typer.Typer(help="Measure speed, memory and reliability.", no_args_is_help=True)
reproduce_app = typer.Typer(help="Repeat an experiment of the paper.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")
app.add_typer(reproduce_app, name="reproduce")

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
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is not ours.")]


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


@app.command(
    help="Read a whole data set, decode every image, and say what is wrong and what is in it.\n\n"
    "Nothing of yours is changed. The status is 0 without faults, 1 with faults, 2 for a wrong "
    "option.\n\n"
    "An image in two splits is a fault, by its content. It is none where one split holds all files "
    "of the other and the names allow it, as VOC's trainval holds train and val.\n\n"
    "Examples:\n\n"
    "rankdet check VOCdevkit --split 2007_trainval --split 2007_test\n\n"
    "rankdet check coco --json report.json"
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
        classes=_class_list(classes),
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


@app.command(
    help="Write one HTML page with sample pictures and their boxes; it opens without a network.\n\n"
    "DATA may also be the word synthetic: the embedded data set.\n\n"
    "Examples:\n\n"
    "rankdet view VOCdevkit --split 2012_val --out page.html\n\n"
    "rankdet view synthetic --count 12 --out page.html"
)
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
            class_list=_class_list(classes),
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


@app.command(
    help="Write the embedded data set to files: pictures of textured shapes, with boxes.\n\n"
    "OUT is a new or an empty folder. The same options give the same bytes. YOLO has no mark for "
    "ignored objects: there they are written as ordinary ones.\n\n"
    "Example:\n\n"
    "rankdet synth shapes --format coco --train 200 --val 50"
)
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
    _prepare_record(json_file)

    from rankdet.bench import losses

    losses.main(quick=quick, json_file=json_file, device=device, seed=seed)


@bench_app.command("reliability")
def bench_reliability(
    quick: Annotated[bool, typer.Option("--quick", help="Few files, a minute or two.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", dir_okay=False, help="Also write the counts here.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Read thousands of broken data files and count how it ends: never with a traceback."""
    _prepare_record(json_file)

    from rankdet.bench import reliability

    if not reliability.main(quick=quick, json_file=json_file, seed=seed):
        raise typer.Exit(1)


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


def _prepare_record(file: Path | None) -> None:
    """Let a wrong folder or a file of somebody else's show before the minutes of measuring."""
    from rankdet.output import refuse_foreign

    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        refuse_foreign(file, '"provenance": {')


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


def _class_list(file: Path | None) -> tuple[str, ...] | None:
    if file is None:
        return None
    from rankdet.data.reading.formats import read_class_list

    return read_class_list(file)


def _command() -> str:
    """The command as it was typed, without the folder of the program."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def main() -> None:
    """Run the command line; a mistake in the data, or what the system refuses, is one line."""
    for name in ("stdout", "stderr"):  # closed before the start, as by `>&-`: nobody reads it
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - until the end
    for stream in (sys.stdout, sys.stderr):  # names that the terminal has no characters for
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except (RankdetError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
