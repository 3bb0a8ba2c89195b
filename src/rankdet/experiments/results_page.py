"""The page about what was measured on PASCAL VOC2012 at 320 pixels, made from records alone.

    FOLDER/ITEM.json, ... ─► read_records ─► results_page ─► docs/results.md
                                        └──► readme_part ─► with_part ─► README.md
    FOLDER/evaluations/NAME.json, ... ─► read_evaluations ─► results_page
    FOLDER/introduction.md ─► read_introduction ─► results_page

`rankdet reproduce page` writes both; a test compares them with the records that are committed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePath
from statistics import fmean
from typing import Any

from rankdet.errors import ConfigError, RankdetError, shorten
from rankdet.experiments import course, evidence, rates, time_share
from rankdet.experiments.comparison import LOSSES, METRICS
from rankdet.experiments.evaluations import Evaluations, evaluations_part
from rankdet.experiments.goals import goals_part
from rankdet.experiments.items import EXPERIMENTS, experiment
from rankdet.experiments.record import Record, read_named_record, results_of
from rankdet.experiments.seeds import number_of_seeds
from rankdet.experiments.tables import NO_NUMBER, markdown_table

SCALE = "voc320"
# What the page shows first, in this order; the other items come after these.
ITEMS = (
    *("rates-retinanet", "rates-retinanet-long", "evidence-retinanet", "longest-retinanet"),
    *("rates-retinanet-flips", "rates-retinanet-flips-long", "evidence-retinanet-flips"),
    *("predictions", "trials", "trials-long", "gradient-size"),
    *("rates-ssd", "rates-ssd-long", "evidence-ssd", "rates-faster-rcnn", "rois"),
    *("ranked-together", "batch-size", "delta", "sigmoid", "interpolation", "sampling"),
    *("rates-ghm-dr", "ghm-dr"),
    *(
        "robustness",
        "convergence",
        "imbalance",
        "time-share",
        "time-losses",
        "time-curve",
        "memory",
        "pictures",
    ),
)
PAGE_MARK = "<!-- rankdet reproduce page"  # at the start of the page
PART_BEGIN = "<!-- results: made by rankdet reproduce page -->"
PART_END = "<!-- end of results -->"

INTRODUCTION_FILE = "introduction.md"  # beside the records: what stands above them

_INTRODUCTION = (
    f"# Results at the scale {SCALE}\n\n"
    f"Trained on train and evaluated on val, at the scale `{SCALE}`: small images, few epochs. The "
    "paper's numbers stand beside ours; its images are larger, its data more and its trainings "
    "longer. So what can be compared is which loss is ahead and by how much, not the height of the "
    "numbers."
)
_MADE = (
    "Every table below, rows that lose included, is made by `rankdet reproduce page` from the "
    "records of the experiments; nobody types a number there."
)
_NOTHING = f"Nothing was run at the scale `{SCALE}` yet."
_PART_NOTES = (
    "In percent, on val; bold is the best of its column, ± the standard deviation over the seeds, "
    "and of a difference half of its 95 % interval (Welch's t). A difference of single seeds has "
    "no interval."
)


def read_records(folder: Path) -> dict[str, Record]:
    """The records of a folder by their items; none where there is no folder.

    ConfigError if one is of another scale or of an item that is not known; RankdetError if one is
    damaged or has not the item's name.
    """
    records: dict[str, Record] = {}
    for file in sorted(folder.glob("*.json")):
        record = read_named_record(file)
        name = experiment(record["item"]).name
        if (scale := record["request"].get("scale")) != SCALE:
            raise ConfigError(
                f"{file}: it is of the scale {scale}, and the page is about {SCALE}. "
                "Move it to another folder."
            )
        records[name] = record
    return records


def read_introduction(folder: Path) -> str:
    """The page's title and what is to be said first: of a file in the folder, or words for any."""
    file = folder / INTRODUCTION_FILE
    if not file.exists() and not file.is_symlink():
        return _INTRODUCTION
    if file.is_dir():
        raise ConfigError(f"{file}: this is a folder: expected a Markdown file. Move it away.")
    text = "\n".join(read_text(file).removeprefix("\ufeff").splitlines()).strip()
    if not text.startswith("# "):
        raise ConfigError(
            f"{file}: it begins with {shorten(text[:40])}: expected the title of the page, such as "
            "`# Results`. Begin it with one, or move it away."
        )
    return text


def read_text(file: Path) -> str:
    """The text with its line ends as they are; RankdetError if it is none."""
    try:
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise RankdetError(
            f"{file}: byte {error.start} is not UTF-8. Save the file as UTF-8 first."
        ) from error


def results_page(
    records: Mapping[str, Record],
    evaluations: Evaluations | None = None,
    pictures: str = f"pictures/{SCALE}",
    introduction: str = _INTRODUCTION,
) -> str:
    """The Markdown page of records by their items, and of evaluations by their files' names.

    pictures: where ITEM.png are, from the page. introduction: Markdown that begins with the title.
    """
    names = [*ITEMS, *(item.name for item in EXPERIMENTS if item.name not in ITEMS)]
    parts = [f"{PAGE_MARK}: made from records, not by hand -->", introduction, _MADE]
    parts.append(_origin(records) if records else _NOTHING)
    if counts := {one["data"]["num_images"] for one in (evaluations or {}).values()}:
        parts.append(f"Images of val in the folder: {', '.join(f'{n:,}' for n in sorted(counts))}.")
    if goals := goals_part(records, evaluations or {}):
        parts.append(goals)
    for name in names:
        if name in records:
            parts += [_section(records[name], pictures), *_seconds(name, records)]
    if evaluations:
        parts.append(evaluations_part(evaluations))
    if missing := [name for name in names if name not in records]:
        lines = [f"- `{name}`: {experiment(name).summary}" for name in missing]
        parts += ["## Not run", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def readme_part(records: Mapping[str, Record]) -> str:
    """The accuracy of every loss in `evidence`, and how far AP-loss is ahead of the best other."""
    shown = {one.name: records[one.name] for one in evidence.ALL if one.name in records}
    parts = []
    for one in evidence.ALL:
        for schedule in one.tunings:
            if one.name in shown and _has_numbers(shown[one.name], schedule):
                parts += _accuracy(one, shown[one.name], schedule)
                parts += _edges(one, schedule, records)
    return "\n\n".join([*parts, _PART_NOTES, _origin(shown)]) if parts else _NOTHING


def with_part(text: str, part: str, file: str = "README.md") -> str:
    """The text with this part between its two marks; ConfigError if they are not there.

    >>> text = f"before\\n{PART_BEGIN}\\nold\\n{PART_END}\\nafter\\n"
    >>> print(with_part(text, "new"), end="")
    before
    <!-- results: made by rankdet reproduce page -->
    new
    <!-- end of results -->
    after
    """
    begin, end = text.find(PART_BEGIN), text.find(PART_END)
    if not 0 <= begin < end or text.count(PART_BEGIN) > 1 or text.count(PART_END) > 1:
        raise ConfigError(
            f"{file}: the lines {PART_BEGIN} and {PART_END} are not there, each once and in this "
            "order. Put both where the results are to stand."
        )
    line_end = "\r\n" if text[begin + len(PART_BEGIN) :].startswith("\r\n") else "\n"
    part = f"{PART_BEGIN}\n{part}\n".replace("\n", line_end)
    return f"{text[:begin]}{part}{text[end:]}"


def command_of(record: Record) -> str:
    """The command that a record's settings amount to; of paths, the last names.

    >>> request = {"scale": "voc320", "seed": 0, "voc": "all/VOC2012", "changes": ["loss.delta=2"]}
    >>> command_of({"item": "delta", "request": request, "plan": ["1"]})
    'rankdet reproduce delta --scale voc320 --voc VOC2012 --seed 0 --set loss.delta=2'
    """
    request = record["request"]
    words = ["rankdet", "reproduce", record["item"], "--scale", request["scale"]]
    for name in ("voc", "coco", "weights"):
        if request.get(name):
            words += [f"--{name}", PurePath(request[name]).name]
    words += ["--seed", str(request["seed"])]
    if experiment(record["item"]).usual_seeds not in (None, number_of_seeds(record)):
        words += ["--seeds", str(number_of_seeds(record))]
    for change in request.get("changes", ()):
        words += ["--set", change]
    return shlex.join(words)


def _section(record: Record, pictures: str) -> str:
    """The item's own page with lower headings, then its figure and its commands."""
    item = experiment(record["item"])
    text = re.sub(r"^#", "##", item.markdown(record), flags=re.MULTILINE)
    figure = f"]({pictures}/{item.name}.png)"
    text = text.replace(f"]({item.name}.png)", figure)  # some show it themselves
    parts = [text] if figure in text else [text, f"![{item.summary}{figure}"]
    title = "The settings of the record as a command (each row has its own, and its commit):"
    return "\n\n".join([*parts, title, f"```text\n{command_of(record)}\n```"])


def _seconds(name: str, records: Mapping[str, Record]) -> list[str]:
    """What epochs of an item of `evidence` take alone on the machine, where that was measured."""
    items = {one.name: one for one in (evidence.RETINANET, evidence.RETINANET_LONGEST)}
    if name not in items or (timed := records.get(time_share.EXPERIMENT.name)) is None:
        return []
    times = {loss: time_share.epoch_seconds(one) for loss, one in results_of(timed).items()}
    rows = []
    for schedule in items[name].tunings:
        for loss, seconds in times.items():
            results = evidence.results_of_loss(records[name], schedule, loss)
            epochs = [course.epochs_until(results, aim) for aim in course.AIMS]
            if any(epochs):
                cells = [f"{fmean(one) * seconds:,.0f}" if one else NO_NUMBER for one in epochs]
                rows.append([f"{schedule}: {loss}", f"{seconds:.2f}", *cells])
    heading = ["schedule and loss", "seconds of an epoch"]
    heading += [f"seconds until AP50 {aim}" for aim in course.AIMS]
    text = (
        f"Alone on the machine, by the steps of `{time_share.EXPERIMENT.name}` and the epochs "
        "above (the mean over the seeds that reach it; without evaluations):"
    )
    return [text, markdown_table(heading, rows)] if rows else []


def _origin(records: Mapping[str, Record]) -> str:
    """One line: data, machines and commits of all rows."""
    entries = [entry for record in records.values() for entry in _provenances(record)]
    found = {
        "Data": {PurePath(record["request"].get("voc") or "").name for record in records.values()},
        "Machine": {str(entry.get("machine") or "") for entry in entries},
        "Commit": {str(entry.get("commit") or "") for entry in entries},
    }
    texts = {title: "; ".join(sorted(names - {""})) for title, names in found.items()}
    sentences = [f"{title}: {text or 'unknown'}." for title, text in texts.items()]
    changes = {
        change for record in records.values() for change in record["request"].get("changes", ())
    }
    if changes:
        sentences.append(f"Not as the scale has it in some records: {', '.join(sorted(changes))}.")
    return " ".join(sentences)


def _provenances(record: Record) -> list[Mapping[str, Any]]:
    return [row["provenance"] for row in record["rows"].values() if row.get("provenance")]


def _has_numbers(record: Record, schedule: str) -> bool:
    return any(evidence.values_of(record, schedule, name, METRICS[0]) for name in LOSSES)


def _edges(one: evidence.Evidence, schedule: str, records: Mapping[str, Record]) -> list[str]:
    """A sentence on losses whose best learning rate may not be among those that were tried."""
    words = evidence.chosen_by(records[one.name], schedule, one.tunings[schedule])
    tuning: rates.Rates | None = one.tunings[schedule]
    while tuning is not None and not any(f"`{tuning.name}`" in text for text in words):
        tuning = tuning.first
    record = records.get(tuning.name) if tuning is not None else None
    if record is None:
        return []
    chosen = rates.chosen_rates(record)
    names = [
        name
        for name, loss in LOSSES.items()
        if evidence.has_training(records[one.name], schedule, name)
        and loss in chosen
        and rates.is_edge(record, loss, chosen[loss])
    ]
    if not names:
        return []
    return [f"At the edge of the learning rates that were tried: {', '.join(names)}."]


def _accuracy(one: evidence.Evidence, record: Record, schedule: str) -> list[str]:
    """Title, table and, where there are two to compare, the difference, of one schedule."""
    texts = evidence.accuracy_texts(record, schedule)
    rows = [
        [
            name,
            evidence.number_of_seeds(record, schedule, name),
            *(texts[name, metric] for metric in METRICS),
        ]
        for name in LOSSES
    ]
    parts = [
        f"**{one.subject}, {evidence.schedule_title(record, schedule)}**",
        markdown_table(["training loss", "seeds", *METRICS], rows),
    ]
    differences = [
        f"{metric} {evidence.lead_text(record, schedule, other, metric)} ({other})"
        for metric in METRICS
        if (other := evidence.best_other(record, schedule, metric))
        and evidence.values_of(record, schedule, evidence.OURS, metric)
    ]
    if differences:
        parts.append(f"{evidence.OURS} less the best other loss: {', '.join(differences)}.")
    return parts
