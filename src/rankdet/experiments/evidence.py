"""The four losses at their own best learning rates, several seeds and schedules: RetinaNet, SSD.

What the paper claims, with the same care for every loss: the learning rate of each is the one that
`rates` has chosen on images held out of the training split, all else is the same, and the spread
over seeds says what a difference is worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rankdet.config import Config, to_dict
from rankdet.errors import counted
from rankdet.experiments import rates
from rankdet.experiments.arms import outcome
from rankdet.experiments.comparison import COLOURS, LOSSES, METRICS
from rankdet.experiments.course import epochs_table, lead_table, values_by_epoch
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import begin_at_zero, label_axes, new_figure, save_figure
from rankdet.experiments.paper import paper_value
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.scales import with_changes
from rankdet.experiments.schedules import LONG, LONGEST, SHORT
from rankdet.experiments.seed_statistics import Spread, spread
from rankdet.experiments.seeds import seed_key, values_of_row
from rankdet.experiments.tables import (
    NO_NUMBER,
    best_shown,
    caption,
    difference_text,
    markdown_table,
    number,
    page,
)

LABEL = "base-loss"
OURS = "AP-Loss"
USUAL_SEEDS = 3
_SHOWN = ("AP50", "AP")


@dataclass(frozen=True)
class Evidence:
    """The four losses with one detector, at the learning rates that were chosen for each schedule.

    tunings: by schedule, which rates they are. group: the heading of its columns in the paper's
    table. setting: what is not as the scale has it, in words.
    """

    name: str
    title: str
    tunings: Mapping[str, rates.Rates]
    group: str
    setting: str = ""

    @property
    def subject(self) -> str:
        """The detector as the paper writes it, and what is not as the scale has it."""
        return f"{self.group.partition(' + ')[0]} {self.setting}".rstrip()

    def plan(self, request: Request) -> list[Row]:
        """A row for each schedule, loss and seed."""
        chosen = {
            schedule: rates.best_rates(tuning, request) for schedule, tuning in self.tunings.items()
        }
        return [
            self._row(schedule, name, chosen[schedule][0][loss], chosen[schedule][1], seed, request)
            for schedule in self.tunings
            # Before the losses: what is finished first has one of each.
            for seed in request.all_seeds(USUAL_SEEDS)
            for name, loss in LOSSES.items()
        ]

    def _row(
        self, schedule: str, name: str, rate: float, chosen_by: str, seed: int, request: Request
    ) -> Row:
        config = self._config(schedule, name, rate, seed, request)
        return Row(
            key=seed_key(f"{schedule}: {name}", seed),
            settings={"config": to_dict(config)},
            run=partial(_result, config, chosen_by, request),
            trainings=(config,),
            is_outcome=True,
        )

    def _config(self, schedule: str, name: str, rate: float, seed: int, request: Request) -> Config:
        config = self.tunings[schedule].tuned_config(LOSSES[name], rate, schedule, request)
        return with_changes(request, replace(config, seed=seed))

    def first_configs(self, schedule: str, request: Request) -> dict[str, Config]:
        """The trainings of a schedule with the request's own seed, by the losses' names."""
        chosen, _ = rates.best_rates(self.tunings[schedule], request)
        return {
            name: self._config(schedule, name, chosen[loss], request.seed, request)
            for name, loss in LOSSES.items()
        }

    def markdown(self, record: Record) -> str:
        body = []
        for schedule in self.tunings:
            body.append(f"## {schedule_title(record, schedule).capitalize()}")
            if not _trainings(record, schedule):
                body.append("Not run yet.")
                continue
            differences = self.difference_table(record, schedule)
            interval = ", with the 95 % interval of the difference" if "±" in differences else ""
            body += [
                self.accuracy_table(record, schedule),
                f"{OURS} less each other loss{interval}:",
                differences,
                *self._course(record, schedule),
            ]
        return page(record, self.title, body, [*_notes(record, self.tunings), caption(LABEL)])

    def accuracy_table(self, record: Record, schedule: str) -> str:
        """Mean and standard deviation over the seeds, and the paper's number beside them."""
        texts = accuracy_texts(record, schedule)
        rows = []
        for name in LOSSES:
            cells = [name, _rate(record, schedule, name), number_of_seeds(record, schedule, name)]
            for metric in METRICS:
                cells += [texts[name, metric], self._paper(name, metric)]
            rows.append(cells)
        columns = [text for metric in METRICS for text in (metric, "paper")]
        return markdown_table(["training loss", "learning rate", "seeds", *columns], rows)

    def difference_table(self, record: Record, schedule: str) -> str:
        rows = []
        for name in LOSSES:
            if name != OURS:
                cells = [name]
                for metric in METRICS:
                    cells += [
                        lead_text(record, schedule, name, metric),
                        f"{self.paper_difference(name, metric):+.1f}",
                    ]
                rows.append(cells)
        columns = [text for metric in METRICS for text in (metric, "paper")]
        return markdown_table([f"{OURS} less", *columns], rows)

    def paper_difference(self, other: str, metric: str) -> float:
        """By how much AP-loss is above another loss in the paper's table."""
        column = f"{self.group} / {metric}"
        ours, theirs = (paper_value(LABEL, name, column) for name in (OURS, other))
        assert ours is not None
        assert theirs is not None
        return ours - theirs

    def _course(self, record: Record, schedule: str) -> list[str]:
        """When aims are reached, and who is ahead on the way."""
        results = {name: results_of_loss(record, schedule, name) for name in LOSSES}
        parts = ["On the way:", epochs_table(results)]
        if leads := lead_table(results, OURS):
            falls = " and ".join(map(str, _falls(_trainings(record, schedule)[0])))
            after = f" (the learning rate falls after {falls} epochs)" if falls else ""
            parts += [f"{OURS} less each other loss, on the way{after}:", leads]
        return parts

    def _paper(self, name: str, metric: str) -> str:
        return number(paper_value(LABEL, name, f"{self.group} / {metric}"))

    def figure(self, record: Record, path: Path) -> None:
        """AP50 and AP against the epoch: the mean, and from the lowest to the highest seed."""
        schedules = [one for one in self.tunings if _trainings(record, one)]
        drawn = new_figure(9, 3.5 * max(len(schedules), 1))
        panels = drawn.subplots(max(len(schedules), 1), len(_SHOWN), squeeze=False)
        for schedule, row in zip(schedules, panels, strict=False):
            for metric, axes in zip(_SHOWN, row, strict=True):
                for name, loss in LOSSES.items():
                    curve = values_by_epoch(results_of_loss(record, schedule, name), metric)
                    if not curve:
                        continue  # nor has it a line in the legend
                    epochs = list(curve)
                    lows, means, highs = (
                        [part(values) for values in curve.values()] for part in (min, fmean, max)
                    )
                    axes.fill_between(epochs, lows, highs, color=COLOURS[loss], alpha=0.2, lw=0)
                    axes.plot(epochs, means, color=COLOURS[loss], marker=".", label=name)
                begin_at_zero(axes)
                label_axes(axes, f"{metric}, {schedule} schedule", "epoch", "percent")
        drawn_lines = {
            label: line
            for axes in reversed(panels.ravel())
            for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        if drawn_lines:
            lines = [drawn_lines[name] for name in LOSSES if name in drawn_lines]
            panels[0][0].legend(handles=lines, frameon=False, fontsize=8)
        save_figure(drawn, path)


def _result(config: Config, chosen_by: str, request: Request) -> dict[str, Any]:
    """The outcome, and who has chosen its learning rate."""
    return {**outcome(config, request), "learning_rate_from": chosen_by}


def values_of(record: Record, schedule: str, name: str, metric: str) -> list[float]:
    """The last evaluation of each seed of a loss that is finished."""
    return values_of_row(record, f"{schedule}: {name}", metric)


def accuracy_texts(record: Record, schedule: str) -> dict[tuple[str, str], str]:
    """Mean ± standard deviation over the seeds, by loss and metric; the best shown is bold."""
    texts: dict[tuple[str, str], str] = {}
    for metric in METRICS:
        spreads = {name: spread(values_of(record, schedule, name, metric)) for name in LOSSES}
        best = best_shown((found.mean for found in spreads.values() if found), 2)
        texts |= {(name, metric): _spread_text(spreads[name], best) for name in LOSSES}
    return texts


def best_other(record: Record, schedule: str, metric: str) -> str | None:
    """The loss with the highest mean but AP-loss; None if no other one has a number."""
    found = {name: values_of(record, schedule, name, metric) for name in LOSSES if name != OURS}
    means = {name: fmean(values) for name, values in found.items() if values}
    return max(means, key=means.__getitem__) if means else None


def lead_text(record: Record, schedule: str, other: str, metric: str) -> str:
    """AP-loss less another loss, with the interval if there are several seeds."""
    ours, theirs = (values_of(record, schedule, name, metric) for name in (OURS, other))
    return difference_text(ours, theirs, 2)


def _keys(record: Record, schedule: str, name: str) -> list[str]:
    return [key for key in record["plan"] if key.startswith(f"{schedule}: {name}: ")]


def results_of_loss(record: Record, schedule: str, name: str) -> list[Any]:
    """The results of the seeds of a loss that are finished."""
    results = results_of(record)
    return [results[key] for key in _keys(record, schedule, name) if key in results]


def _trainings(record: Record, schedule: str, name: str = "") -> list[Any]:
    """The settings of the trainings that were run, finished or failed."""
    return [
        record["rows"][key]["settings"]["config"]["training"]
        for key in record["plan"]
        if key.startswith(f"{schedule}: {name}") and key in record["rows"]
    ]


def _falls(training: Mapping[str, Any]) -> list[float]:
    """After how many epochs of a training its learning rate falls, where it does so in steps."""
    if training.get("schedule", "steps") != "steps":
        return []
    return [epoch for epoch in training["milestones"] if epoch < training["epochs"]]


def _rate(record: Record, schedule: str, name: str) -> str:
    trainings = _trainings(record, schedule, f"{name}: ")
    return f"{trainings[0]['learning_rate']:g}" if trainings else NO_NUMBER


def schedule_title(record: Record, schedule: str) -> str:
    """The name of a schedule, with its length if a row of it was run."""
    trainings = _trainings(record, schedule)
    length = f": {counted(trainings[0]['epochs'], 'epoch')}" if trainings else ""
    return f"{schedule} schedule{length}"


def number_of_seeds(record: Record, schedule: str, name: str) -> str:
    """How many seeds of a loss are finished; of how many, if some are not."""
    keys, done = _keys(record, schedule, name), len(results_of_loss(record, schedule, name))
    num_failed = sum("error" in record["rows"].get(key, {}) for key in keys)
    failed = f", {num_failed} failed" if num_failed else ""
    return str(done) if done == len(keys) else f"{done} of {len(keys)}{failed}"


def _spread_text(found: Spread | None, best: str | None) -> str:
    if found is None:
        return NO_NUMBER
    text = number(found.mean, 2)
    if text == best:
        text = f"**{text}**"
    return text if found.deviation is None else f"{text} ± {found.deviation:.2f}"


def has_training(record: Record, schedule: str, name: str) -> bool:
    """Whether a loss was trained in a schedule."""
    return bool(results_of_loss(record, schedule, name))


def chosen_by(record: Record, schedule: str, tuning: rates.Rates) -> set[str]:
    """Who has chosen the learning rates of the trainings of a schedule, in words."""
    usual = f"chosen by `{tuning.name}`, or those of the scale without its record in the folder"
    results = [result for name in LOSSES for result in results_of_loss(record, schedule, name)]
    return {result.get("learning_rate_from", usual) for result in results}


def _rate_notes(record: Record, tunings: Mapping[str, rates.Rates]) -> list[str]:
    return [
        f"Learning rates of the {schedule} schedule: {'; '.join(sorted(words))}."
        for schedule, tuning in tunings.items()
        if (words := chosen_by(record, schedule, tuning))
    ]


def _notes(record: Record, tunings: Mapping[str, rates.Rates]) -> list[str]:
    return [
        *_rate_notes(record, tunings),
        "±: the standard deviation over the seeds; of a difference, half of its 95 % interval "
        "(Welch's t).",
        "Figure: the mean over the seeds, and around it from the lowest to the highest.",
        "Epochs until AP50 is reached: by the evaluations on the way, the mean over the seeds that "
        f"reach it. {_spacing(record, tunings)}".rstrip(),
    ]


def _spacing(record: Record, tunings: Mapping[str, rates.Rates]) -> str:
    """How often the trainings of each schedule were evaluated; empty if none has a curve."""
    firsts = {
        schedule: [
            result["curve"][0]["epoch"]
            for name in LOSSES
            for result in results_of_loss(record, schedule, name)
            if result["curve"]
        ]
        for schedule in tunings
    }
    texts = [f"{min(found):g} in the {name} schedule" for name, found in firsts.items() if found]
    return f"Epochs between these: {', '.join(texts)}." if texts else ""


_TITLE = "four losses at their best learning rates, seeds and schedules, {}"

RETINANET = Evidence(
    "evidence-retinanet",
    _TITLE.format("RetinaNet"),
    {SHORT: rates.RETINANET, LONG: rates.RETINANET_LONG},
    "RetinaNet + PASCAL VOC",
)
RETINANET_FLIPS = Evidence(
    "evidence-retinanet-flips",
    _TITLE.format(f"RetinaNet {rates.FLIPS_AND_STARTS_TEXT}"),
    {SHORT: rates.RETINANET_FLIPS, LONG: rates.RETINANET_FLIPS_LONG},
    "RetinaNet + PASCAL VOC",
    rates.FLIPS_AND_STARTS_TEXT,
)
RETINANET_LONGEST = Evidence(
    "longest-retinanet",
    "four losses at their best learning rates, trained three times as long, RetinaNet",
    {LONGEST: rates.RETINANET_LONG},
    "RetinaNet + PASCAL VOC",
)
SSD = Evidence(
    "evidence-ssd",
    _TITLE.format("SSD"),
    {SHORT: rates.SSD, LONG: rates.SSD_LONG},
    "SSD + PASCAL VOC",
)
ALL = (RETINANET, RETINANET_FLIPS, RETINANET_LONGEST, SSD)


def _experiment(evidence: Evidence) -> Experiment:
    return Experiment(
        name=evidence.name,
        summary=evidence.title,
        labels=(LABEL,),
        plan=evidence.plan,
        markdown=evidence.markdown,
        figure=evidence.figure,
        usual_seeds=USUAL_SEEDS,
    )


EXPERIMENTS = tuple(map(_experiment, ALL))
