"""The files of the page of results: the page, its figures, and a README with its part of it.

All of them are made before the first is written, so that a mistake leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from rankdet.errors import ConfigError, RankdetError
from rankdet.experiments.evaluations import read_evaluations
from rankdet.experiments.experiment import figure_bytes
from rankdet.experiments.figures import FIGURE_MARK, with_few_colours
from rankdet.experiments.items import experiment
from rankdet.experiments.record import shown_from
from rankdet.experiments.results_page import (
    PAGE_MARK,
    read_introduction,
    read_records,
    read_text,
    readme_part,
    results_page,
    with_part,
)
from rankdet.output import refuse_foreign


def page_files(
    folder: Path, out: Path, readme: Path | None, *, is_forced: bool = False
) -> dict[Path, bytes]:
    """What is to be written, by file: the README first, then the page, then its figures.

    folder: of the records, and of introduction.md for the top of the page. out: the page; its
    figures are in pictures/FOLDER beside it. readme: gets a short table between its marks.
    RankdetError if a record is damaged, or if something stands in the way; is_forced: files that
    are not ours do not.
    """
    records, evaluations = read_records(folder), read_evaluations(folder)
    introduction = read_introduction(folder)
    if not records:
        raise ConfigError(
            f"{folder}: there is no record in it. Give the folder of ITEM.json files that "
            "`rankdet reproduce ITEM --scale voc320 --out FOLDER` wrote."
        )
    if readme is not None and readme.resolve() == out.resolve():
        raise ConfigError(
            f"--out {out}, --readme {readme}: this is one file, and the page would replace the "
            "README. Give the page a file of its own."
        )
    pictures = Path("pictures") / folder.resolve().name
    figures = {name: out.parent / pictures / f"{name}.png" for name in records}
    _refuse_what_is_in_the_way(out, figures.values(), is_forced)
    drawn = {}
    for name, record in records.items():  # by itself, so that its file is named
        with shown_from(folder / f"{name}.json"):
            experiment(name).markdown(record)
            drawn[figures[name]] = with_few_colours(figure_bytes(experiment(name), record))
    files: dict[Path, bytes] = {}
    if readme is not None:
        text = read_text(readme)
        with shown_from(folder):
            part = readme_part(records)
        files[readme] = with_part(text, part, str(readme)).encode()
    with shown_from(folder):
        page = results_page(records, evaluations, quote(pictures.as_posix()), introduction)
    return {**files, out: page.encode(), **drawn}


def _refuse_what_is_in_the_way(out: Path, figures: Iterable[Path], is_forced: bool) -> None:
    refuse_foreign(out, PAGE_MARK, is_forced)
    for figure in figures:
        for parent in figure.parents:
            if parent.exists() and not parent.is_dir():
                raise RankdetError(
                    f"{parent}: this is no folder, and the figures of the page are to be in it. "
                    "Move it away, or give the page another folder with --out."
                )
        refuse_foreign(figure, FIGURE_MARK, is_forced)
