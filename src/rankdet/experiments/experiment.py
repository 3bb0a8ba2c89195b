"""What an experiment of `rankdet reproduce` is, and how its record is kept.

An experiment is a list of rows. A row is a piece of work that may take hours (mostly a training);
its result is JSON. The record of an experiment is three files:

    OUT/ITEM.json   how it was asked for, and of each finished row: settings, result, provenance
    OUT/ITEM.md     a table with the paper's numbers beside ours, made from the JSON alone
    OUT/ITEM.png    the figure, made from the JSON alone

The JSON is written again after each row, the other two at the end. Called again, `reproduce` goes
on: a row that is finished, and whose settings are the same, is not run again. Nothing that differs
is replaced unasked.

Modules of experiments import torch inside functions only: `rankdet reproduce list` needs none.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankdet.config import Config
from rankdet.config.text import completed
from rankdet.errors import ConfigError, RankdetError, TrainingError, counted, listed, shorten
from rankdet.experiments.figures import FIGURE_MARK
from rankdet.experiments.record import KEY, VERSION, Record, read_record, request_differences
from rankdet.experiments.seeds import has_seed, without_seed
from rankdet.output import refuse_foreign, write_whole
from rankdet.progress import say

_MARK = f'"{KEY}"'  # at the start of each of our JSON files
_MOST_NAMES = 8  # rows that a message names
_MARKDOWN_MARK = "<!-- rankdet reproduce"  # at the start of each of our Markdown files


@dataclass(frozen=True)
class Request:
    """How the user wants an experiment to be run.

    scale: one of SCALES. out: the folder of the records; trainings are in out/runs, where
    experiments that share one find it. voc, coco: folders of the data, where the scale needs them.
    weights: a file for the backbones, in place of the scale's choice. jobs: trainings at the same
    time. changes: `section.key=value`, for every training, after everything else. seeds: how many
    trainings differ in the seed alone, where an experiment can have several; None: as many as is
    usual there. deletes_runs: the folder of a training is deleted when its rows are recorded, if it
    was not finished before. rows: run only those with one of these as their name, or else in it;
    the others wait, or stay as they are.
    Empty: all are run.
    """

    scale: str
    out: Path
    voc: str | None = None
    coco: str | None = None
    weights: str | None = None
    device: str | None = None
    seed: int = 0
    jobs: int = 1
    changes: tuple[str, ...] = ()
    seeds: int | None = None
    deletes_runs: bool = False
    rows: tuple[str, ...] = ()

    def all_seeds(self, usual: int) -> range:
        """As many seeds as the user asks for, or as is usual, from the first one on."""
        return range(self.seed, self.seed + (self.seeds or usual))

    def settings(self) -> dict[str, Any]:
        """What the results depend on, ready for JSON; not where and how fast they are made.

        Nor how many seeds there are: more of them are more rows, and those of before still hold.
        """
        return {
            "scale": self.scale,
            "voc": self.voc,
            "coco": self.coco,
            "weights": self.weights,
            "seed": self.seed,
            "changes": list(self.changes),
        }


@dataclass(frozen=True)
class Row:
    """A piece of an experiment.

    key: its name, unique in the experiment. settings: all that its result depends on, ready for
    JSON. run: does the work and gives the result, ready for JSON. trainings: those that the work
    needs, so that `jobs` of them can be run at the same time beforehand; a row that says nothing
    runs alone, as measurements of time must. is_outcome: the result is what is kept of finished
    trainings (`arms.outcome`), whose folders may be gone; otherwise the work needs the runs.
    A "provenance" in the result is that of a training, and becomes the row's.
    """

    key: str
    settings: Mapping[str, Any]
    run: Callable[[], Mapping[str, Any]]
    trainings: tuple[Config, ...] = ()
    is_outcome: bool = False


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper as a command: `rankdet reproduce NAME`.

    summary: one line. labels: of the paper's tables and figures that it answers. plan: the rows for
    a request. markdown and figure: what is shown of a record, in which rows may be missing yet.
    has_trainings: whether the rows name their trainings. Those are saved on Ctrl-C, and `jobs` of
    them run at the same time; otherwise a row that is ended begins again, and rows run alone.
    usual_seeds: of how many seeds the rows are, if the user does not say; None: all have that of
    the request, whatever the user says.
    """

    name: str
    summary: str
    labels: tuple[str, ...]
    plan: Callable[[Request], Sequence[Row]]
    markdown: Callable[[Record], str]
    figure: Callable[[Record, Path], None]
    has_trainings: bool = True
    usual_seeds: int | None = None


class Stopped(Exception):
    """A signal ended a training, which has saved itself; status: what the command exits with."""

    def __init__(self, status: int) -> None:
        super().__init__(f"stopped with status {status}")
        self.status = status


def reproduce(
    experiment: Experiment, request: Request, *, is_forced: bool = False
) -> dict[str, Any]:
    """Run what is not finished yet, and write the record; gives what ITEM.json holds.

    Stopped if a signal came. A training whose numbers are not finite is a row with an error; the
    others go on, and TrainingError comes at the end. is_forced: rows of other settings, and files
    that are not ours, are replaced.
    """
    rows = experiment.plan(request)
    assert len({row.key for row in rows}) == len(rows), "each row has its own name"
    chosen = chosen_keys(experiment, rows, request.rows)
    with _alone_with(request.out, experiment.name):
        record = begun_record(experiment, request, rows, chosen, is_forced)
        waiting = [row for row in rows if "result" not in record["rows"].get(row.key, {})]
        if len(waiting) < len(rows):
            done = counted(len(rows) - len(waiting), "row")
            say(f"{experiment.name}: {done} of {len(rows)} finished before, and kept.")
        waiting = [row for row in waiting if row.key in chosen]
        if request.jobs > 1 and not experiment.has_trainings:
            say(
                f"{experiment.name}: --jobs {request.jobs} is not used: its rows are trained or "
                "measured in this process, one after the other."
            )
        with closing(_in_order(experiment, waiting, request)) as order:
            for number, row in enumerate(order, start=1):
                say(f"{experiment.name}: row {number} of {len(waiting)}: {row.key}")
                record["rows"][row.key] = _finished(row, request)
                write_whole(_file(experiment, request.out), _json_bytes(record))
        write_whole(_file(experiment, request.out), _json_bytes(record))
        write_views(experiment, record, request.out)
    _refuse_failures(experiment, record)
    return record


def write_views(experiment: Experiment, record: Record, out: Path) -> list[Path]:
    """Write the table and the figure of a record, of which rows may be missing; gives the files."""
    table = _file(experiment, out).with_suffix(".md")
    text = f"{_MARKDOWN_MARK} {experiment.name} -->\n\n{experiment.markdown(record)}"
    write_whole(table, f"{text.rstrip()}\n".encode())
    figure = table.with_suffix(".png")
    write_whole(figure, figure_bytes(experiment, record))
    return [table, figure]


def figure_bytes(experiment: Experiment, record: Record) -> bytes:
    """The PNG file of a record's figure."""
    with tempfile.TemporaryDirectory() as folder:  # so that no half of a picture is seen
        drawn = Path(folder) / "figure.png"
        experiment.figure(record, drawn)
        return drawn.read_bytes()


def refuse_foreign_views(experiment: Experiment, out: Path, *, is_forced: bool = False) -> None:
    """RankdetError if the table or the figure would replace a file that is not ours."""
    file = _file(experiment, out)
    refuse_foreign(file.with_suffix(".md"), _MARKDOWN_MARK, is_forced)
    refuse_foreign(file.with_suffix(".png"), FIGURE_MARK, is_forced)


def begun_record(
    experiment: Experiment,
    request: Request,
    rows: Sequence[Row],
    chosen: Collection[str],
    is_forced: bool,
) -> dict[str, Any]:
    """The record to go on with; RankdetError if what is there is not the same experiment.

    chosen: the rows that are to be run. Others are not left out by force: nobody would make them
    again.
    """
    file = _file(experiment, request.out)
    refuse_foreign(file, _MARK, is_forced)
    refuse_foreign_views(experiment, request.out, is_forced=is_forced)
    record: dict[str, Any] = {
        KEY: VERSION,
        "item": experiment.name,
        "labels": list(experiment.labels),
        "request": request.settings(),
        "plan": [row.key for row in rows],
        "rows": {},
    }
    if not file.exists():
        return record
    try:
        stored = read_record(file)
    except RankdetError:
        if is_forced:
            return record
        raise
    settings = {row.key: _as_json(row.settings) for row in rows}
    before = {key: _completed(row.get("settings")) for key, row in stored["rows"].items()}
    other = request_differences(stored["request"], record["request"])
    if experiment.usual_seeds and not other:
        # Rows of more seeds than are asked for now stay as they are.
        more = {key for key in before if key not in settings and has_seed(key)}
        settings |= {key: before[key] for key in before if key in more}
        record["plan"] = list(settings)
    same = {key: row for key, row in stored["rows"].items() if before[key] == settings.get(key)}
    if not is_forced:
        if other:
            raise RankdetError(
                f"{file}: the record there has {other[0]}. Give another folder with --out, or "
                "--force to replace it."
            )
        for key in stored["rows"]:
            if key not in same:
                raise _other_settings(file, key, before[key], settings.get(key))
    elif lost := [key for key in stored["rows"] if key not in same]:
        if waiting := [key for key in lost if key in settings and key not in chosen]:
            raise RankdetError(
                f"{file}: rows there have other settings than now, and --force would drop them, "
                f"though --rows leaves them to another time: {listed(waiting, _MOST_NAMES)}. "
                "Leave out --rows, or give another folder with --out."
            )
        say(
            f"{experiment.name}: {counted(len(lost), 'row')} of the record of other settings are "
            "left out (--force)."
        )
    record["rows"] = {key: same[key] for key in record["plan"] if key in same}
    return record


def chosen_keys(experiment: Experiment, rows: Sequence[Row], wanted: Sequence[str]) -> set[str]:
    """The names of the rows that --rows asks for. Without --rows all of them.

    Words that are just the name of a row mean it, with all its seeds; others all rows with them.
    """
    keys = [row.key for row in rows]
    chosen = set() if wanted else set(keys)
    for words in wanted:
        found = {key for key in keys if without_seed(key) == words and words in keys}
        found = found or {key for key in keys if words in key}
        if not found or not words:
            raise ConfigError(
                f"--rows {shorten(words)}: expected words in the name of a row of "
                f"{experiment.name}. The rows: {', '.join(keys)}."
            )
        chosen |= found
    return chosen


def _file(experiment: Experiment, out: Path) -> Path:
    return out / f"{experiment.name}.json"


def _other_settings(file: Path, key: str, stored: Any, wanted: Any) -> RankdetError:
    if wanted is None:
        what = "is no row of the experiment now"
    else:
        found = "; ".join(differences(stored, wanted)[:3])
        what = f"has other settings than now: {found}"
    return RankdetError(
        f"{file}: the row {key} {what}. Another version of rankdet made it, a record by which "
        "learning rates are chosen was made or changed since, or this one was. Give another folder "
        "with --out, or --force to replace all rows of other settings."
    )


def _completed(settings: Any) -> Any:
    """The stored settings of a row; those of its training with all that there are now."""
    if isinstance(settings, dict) and "config" in settings:
        return {**settings, "config": completed(settings["config"])}
    return settings


def differences(stored: Any, wanted: Any, name: str = "") -> list[str]:
    """Where two JSON values differ.

    >>> differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2})
    ['a.b was 1, now 3']
    """
    if isinstance(stored, dict) and isinstance(wanted, dict):
        found = []
        for key in sorted(stored.keys() | wanted.keys()):
            inner = f"{name}.{key}" if name else str(key)
            found += differences(stored.get(key), wanted.get(key), inner)
        return found
    return [] if stored == wanted else [f"{name} was {shorten(stored)}, now {shorten(wanted)}"]


def _finished(row: Row, request: Request) -> dict[str, Any]:
    """The entry of a row in the record, after its work."""
    from rankdet.provenance import provenance

    start = time.monotonic()
    entry: dict[str, Any] = {"settings": _as_json(row.settings)}
    try:
        entry["result"] = _as_json(row.run())
    except TrainingError as error:  # of numbers that are not finite: that is a result, too
        say(f"{row.key} failed: {error}")
        entry["error"] = str(error)
    result = entry.get("result", {})
    # A training may have been run before: by another item, in a process of its own, elsewhere.
    before = result.get("training", {}).get("seconds") or 0.0
    entry["seconds"] = max(before, time.monotonic() - start)
    entry["provenance"] = result.pop("provenance", None) or provenance(seed=request.seed)
    return entry


def _refuse_failures(experiment: Experiment, record: Record) -> None:
    failed = {key: row["error"] for key, row in record["rows"].items() if "error" in row}
    if failed:
        reasons = " ".join(f"{key}: {error}" for key, error in failed.items())
        raise TrainingError(
            f"{experiment.name}: {counted(len(failed), 'row')} of {len(record['plan'])} failed, "
            f"and the table says so. {reasons}"
        )


def _in_order(
    experiment: Experiment, rows: Sequence[Row], request: Request
) -> Generator[Row, None, None]:
    """The rows in the order in which they can be run; deletes what the request says after each."""
    from rankdet.experiments.arms import delete_runs, folders_of
    from rankdet.experiments.jobs import rows_as_trained

    left = {row.key: row for row in rows}
    kept = {folder for row in rows for folder in folders_of(row, request) if folder.exists()}
    is_together = request.jobs > 1 and experiment.has_trainings
    for row in rows_as_trained(rows, request) if is_together else rows:
        yield row
        del left[row.key]
        if request.deletes_runs:
            needed = {
                folder
                for other in left.values()
                if not other.is_outcome
                for folder in folders_of(other, request)
            }
            delete_runs(row, request, kept | needed)


@contextmanager
def _alone_with(out: Path, name: str) -> Iterator[None]:
    """Nobody else may work on this experiment in this folder meanwhile."""
    from rankdet.engine.sealed_folder import TakenError, alone_in

    with ExitStack() as stack:
        try:
            stack.enter_context(alone_in(out / "runs" / f".{name}"))
        except TakenError as error:
            raise RankdetError(
                f"{out}: another command makes the record of {name} there at this moment. Wait "
                "until it has ended, or give another folder with --out."
            ) from error
        yield


def _as_json(value: Any) -> Any:
    """The value as it comes back from JSON; ValueError for numbers that are not finite."""
    return json.loads(json.dumps(value, allow_nan=False))


def _json_bytes(record: Record) -> bytes:
    """The record as a file, its rows in the order of the plan, whichever was finished first."""
    rows = {key: record["rows"][key] for key in record["plan"] if key in record["rows"]}
    return (json.dumps({**record, "rows": rows}, indent=2, allow_nan=False) + "\n").encode()
