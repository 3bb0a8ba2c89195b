"""`rankdet reproduce`: the tables and figures of the paper, and experiments of what it is about."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rankdet.cli.options import (
    INTERRUPTED,
    Device,
    Force,
    Out,
    Seed,
    Settings,
    check_device,
    data_path,
)
from rankdet.errors import RankdetError
from rankdet.experiments.experiment import Experiment, Request
from rankdet.experiments.items import EXPERIMENTS as ITEMS
from rankdet.experiments.items import experiment as item_of

_NOT_IN_THE_PAPER = "not in the paper"

# Experiments without trainings of detectors: the name, and one line for `rankdet reproduce list`.
_OTHERS = {
    "theory": "steps, convergence, the three-sample problem, surrogate and regret bounds",
    "ranking": "AP-loss and other losses on a ranking problem, 1 positive to 10,000 negatives",
}
# What `rankdet reproduce` knows, by the command's name.
EXPERIMENTS = _OTHERS | {item.name: item.summary for item in ITEMS}

_WITH_THREE_SEEDS = ", ".join(item.name for item in ITEMS if item.usual_seeds == 3)
_WITHOUT_SEEDS = ", ".join(item.name for item in ITEMS if item.usual_seeds is None)
_ONE_BY_ONE = ", ".join(item.name for item in ITEMS if not item.has_trainings)

app = typer.Typer(
    help="Repeat a table or figure of the paper: `rankdet reproduce list` names them.",
    no_args_is_help=True,
)


class Scale(StrEnum):
    """How large an experiment is."""

    SMOKE = "smoke"
    TINY = "tiny"
    VOC320 = "voc320"
    PAPER = "paper"


ScaleOption = Annotated[
    Scale,
    typer.Option(
        help="smoke: seconds on a CPU, shows that it runs. tiny: minutes on a CPU. voc320: a GPU, "
        "--voc with the splits train and val. paper: the full setting, days on a GPU, --voc "
        "VOCdevkit (and --coco)."
    ),
]
VOC = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        show_default=False,
        help="PASCAL VOC. voc320: a folder with the splits train and val, as VOCdevkit/VOC2012. "
        "paper: VOCdevkit, with VOC2007 and VOC2012.",
    ),
]
COCO = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        show_default=False,
        help="COCO, with train2017, val2017 and annotations.",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        show_default=False,
        help="Weights for the backbone: a file, or a folder with files that begin with the "
        "backbones' names. Default: torchvision's, which are downloaded. A file for a ResNet is "
        "taken for one of the original ones, with the stride on the 1x1 convolution; for "
        "torchvision's, add --set detector.stride_on=3x3.",
    ),
]
OutFolder = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        show_default=False,
        help="Folder for records and trainings; experiments in the same one share trainings. "
        "Default: runs/reproduce-SCALE.",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        min=1,
        max=64,
        help=f"Trainings at the same time, each in a process; not used by {_ONE_BY_ONE}.",
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=100,
        show_default=False,
        help="How many seeds, from --seed on; the tables then have means and deviations. Default: "
        f"3 for {_WITH_THREE_SEEDS}, else 1. These have --seed alone: {_WITHOUT_SEEDS}.",
    ),
]
Rows = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WORDS",
        show_default=False,
        help="Run only rows with these words in their name, such as 'short:', or of just this "
        "name, with all its seeds; repeatable. The "
        "others wait: the same command without it goes on with them.",
    ),
]
DeleteRuns = Annotated[
    bool,
    typer.Option(
        "--delete-runs",
        help="Delete the folder of a training when its numbers are recorded, to save space; what "
        "was there before this command stays. An experiment that needs more of it than numbers "
        "trains it again.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Say which rows are recorded, which are to be run, and how many epochs their "
        "trainings take; run and write nothing. Each experiment is looked at by itself: learning "
        "rates that another one will choose, and trainings that it will share, are not known.",
    ),
]
ForceRecord = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Replace a record that was made with other settings, and files that are not ours.",
    ),
]


@app.command("list")
def list_experiments() -> None:
    """Name the experiments, with the paper's labels of what they answer."""
    width = max(map(len, EXPERIMENTS))
    for name, summary in EXPERIMENTS.items():
        typer.echo(f"{name:{width}}  {summary}")
        if name not in _OTHERS:
            labels = ", ".join(item_of(name).labels)
            typer.echo(f"{'':{width}}  {f'paper: {labels}' if labels else _NOT_IN_THE_PAPER}")


@app.command("table")
def remake_tables(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="ITEM.json...", exists=True, dir_okay=False, help="Records of experiments."
        ),
    ],
    force: Force = False,
) -> None:
    """Make the Markdown table and the figure of a record again, from its JSON file alone."""
    from rankdet.experiments.experiment import refuse_foreign_views, write_views
    from rankdet.experiments.record import read_named_record, shown_from

    for file in files:
        record = read_named_record(file)
        item = item_of(record["item"])
        refuse_foreign_views(item, file.parent, is_forced=force)
        with shown_from(file):
            views = write_views(item, record, file.parent)
        for view in views:
            typer.echo(f"Wrote {view}.")


@app.command("page")
def make_page(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            exists=True,
            file_okay=False,
            help="Folder with records of the scale voc320, ITEM.json, of any items; with files of "
            "`rankdet evaluate --out` in its folder evaluations; and with introduction.md, a title "
            "and what is to stand below it, if the page is to begin with words of yours.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            dir_okay=False,
            show_default=False,
            help="The page, as docs/results.md; its figures go into pictures/FOLDER beside it.",
        ),
    ],
    readme: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            show_default=False,
            help="A Markdown file that gets a short table, too, between the marks that it has for "
            "it.",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Make one Markdown page of a folder's records: tables, figures and commands of all items.

    Items without a record are listed at its end.
    """
    from rankdet.experiments.page_files import page_files
    from rankdet.output import write_whole

    for file, content in page_files(folder, out, readme, is_forced=force).items():
        write_whole(file, content)
        typer.echo(f"Wrote {file}.")


@app.command("theory", help=f"Print and plot {_OTHERS['theory']}.")
def reproduce_theory(out: Out = Path("runs/theory"), seed: Seed = 0) -> None:
    from rankdet.experiments import theory

    theory.run(out, seed=seed)


@app.command("ranking", help=f"Train and plot {_OTHERS['ranking']}.")
def reproduce_ranking(
    out: Out = Path("runs/ranking"),
    seed: Seed = 0,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each loss.")] = 300,
) -> None:
    from rankdet.experiments import ranking

    ranking.run(out, seed=seed, steps=steps)


def _command(items: Sequence[Experiment]) -> Callable[..., None]:
    """The function of a command that runs these experiments; its options are those of all."""

    def reproduce_items(
        scale: ScaleOption = Scale.SMOKE,
        voc: VOC = None,
        coco: COCO = None,
        weights: Weights = None,
        out: OutFolder = None,
        device: Device = None,
        seed: Seed = 0,
        seeds: Seeds = None,
        rows: Rows = None,
        jobs: Jobs = 1,
        delete_runs: DeleteRuns = False,
        dry_run: DryRun = False,
        settings: Settings = None,
        force: ForceRecord = False,
    ) -> None:
        request = Request(
            scale.value,
            out or Path(f"runs/reproduce-{scale.value}"),
            voc=_absolute(voc),
            coco=_absolute(coco),
            weights=_absolute(weights),
            device=device,
            seed=seed,
            jobs=jobs,
            changes=tuple(settings or ()),
            seeds=seeds,
            deletes_runs=delete_runs,
            rows=tuple(rows or ()),
        )
        if seeds is not None and not any(item.usual_seeds for item in items):
            typer.echo(f"--seeds {seeds} is not used: this experiment has --seed alone.", err=True)
        (_preview if dry_run else _run)(items, request, force)

    return reproduce_items


def _help(item: Experiment) -> str:
    going_on = (
        "Ctrl-C saves the training that runs, and the same command goes on with it. Finished rows "
        "are kept; what a row does after its training begins again."
        if item.has_trainings
        else "After Ctrl-C, the same command goes on: finished rows are kept, and the row that ran "
        "begins again."
    )
    labels = ", ".join(item.labels)
    where = f"In the paper: {labels}." if labels else f"{_NOT_IN_THE_PAPER.capitalize()}."
    return (
        f"{item.summary[0].upper()}{item.summary[1:]}. {where}\n\n"
        "OUT gets a JSON file with all numbers and where they come from, a Markdown table with the "
        f"paper's beside ours, and a figure. {going_on}"
    )


app.command(
    "all",
    help="Run every experiment that has a scale, one after the other (not theory and ranking)."
    "\n\nOne that fails does not end the others; the exit status is then 1.",
)(_command(ITEMS))
for _item in ITEMS:
    app.command(_item.name, help=_help(_item), short_help=_item.summary)(_command([_item]))


def _absolute(path: Path | None) -> str | None:
    return None if path is None else data_path(str(path))


def _preview(items: Sequence[Experiment], request: Request, is_forced: bool) -> None:
    """Say what `_run` would do. An item that cannot be planned does not end the others."""
    from rankdet.experiments.preview import preview

    check_device(request.device)
    failed = []
    for item in items:
        try:
            typer.echo(preview(item, request, is_forced=is_forced))
        except RankdetError as error:
            if len(items) == 1:
                raise
            failed.append(item.name)
            typer.echo(f"error: {item.name}: {error}", err=True)
    _refuse_failed(failed, items)


def _run(items: Sequence[Experiment], request: Request, is_forced: bool) -> None:
    """Run the experiments. What the user can mend is told before torch is loaded."""
    for item in items if len(items) == 1 else ():
        item.plan(request)
    check_device(request.device)

    from rankdet.experiments.experiment import Stopped, reproduce

    failed = []
    for item in items:
        try:
            reproduce(item, request, is_forced=is_forced)
        except (Stopped, KeyboardInterrupt) as stop:
            again = shlex.join(["rankdet", *sys.argv[1:]])
            typer.echo(f"{item.name} is not finished. Go on with it: {again}", err=True)
            raise typer.Exit(getattr(stop, "status", INTERRUPTED)) from stop
        except RankdetError as error:
            if len(items) == 1:
                raise
            failed.append(item.name)
            typer.echo(f"error: {item.name}: {error}", err=True)
            continue
        typer.echo((request.out / f"{item.name}.md").read_text(encoding="utf-8"))
        typer.echo(f"Wrote {request.out / item.name}.json, .md and .png.")
    _refuse_failed(failed, items)


def _refuse_failed(failed: Sequence[str], items: Sequence[Experiment]) -> None:
    if failed:
        raise RankdetError(f"{len(failed)} of {len(items)} failed: {', '.join(failed)}.")
