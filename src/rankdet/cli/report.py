"""`rankdet report`: one HTML page about finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankdet.cli.options import Force


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            exists=True,
            show_default=False,
            help="Folders of runs, or results files of `rankdet evaluate --out`. Differences are "
            "to the first.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            show_default=False,
            help="The HTML file. Default for one run: RUN/report/index.html.",
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option(show_default=False, help="Default: the runs and their data.")
    ] = None,
    force: Force = False,
) -> None:
    """Write one HTML page about a run, or about several side by side; it opens without a network.

    It shows the metrics, detections in pictures, the classes, errors and training curves, from
    results.json and metrics.jsonl alone.

    Examples:

    rankdet report runs/photos

    rankdet report runs/ap runs/focal --out compared.html
    """
    if out is None and len(runs) > 1:
        raise typer.BadParameter("expected a file for several runs", param_hint="--out")

    from rankdet.report import page, reading

    out = out or default_page(reading.results_file(runs[0]))
    for run in page.write_report(runs, out, title=title, is_forced=force):
        typer.echo(f"{run.label}: {page.headline(run)}")
    typer.echo(f"Wrote {out}: {out.stat().st_size / 1e6:.1f} MB.")


def default_page(results: Path) -> Path:
    """Where the page about one results file goes: into its folder, under a name of its own.

    >>> default_page(Path("run/results.json")).as_posix()
    'run/report/index.html'
    >>> default_page(Path("run/results-2007_test.json")).as_posix()
    'run/report/2007_test.html'
    """
    name = results.stem.removeprefix("results").removeprefix("-") or "index"
    return results.parent / "report" / f"{name}.html"
