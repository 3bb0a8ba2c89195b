"""The learning rate of each loss, chosen on a tenth of the training images.

Each loss is trained in the short schedule at several learning rates, without a tenth of the
training split, and judged on that tenth; the four of the paper's tables then at their two best
ones, and perhaps others, in the long schedule, whose best rate may be another. So the validation
split chooses nothing: `evidence`, `rois` and `ghm-dr` train at the rates that were best here. The
figure shows how sensitive each loss is to its rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rankdet.config import Config, from_dict, merge, to_dict
from rankdet.config.effects import training_name, validation_name
from rankdet.config.text import completed
from rankdet.errors import ConfigError, TrainingError, counted
from rankdet.experiments.arms import outcome
from rankdet.experiments.comparison import COLOURS, LOSSES, METRICS
from rankdet.experiments.experiment import Experiment, Request, Row, differences
from rankdet.experiments.figures import label_axes, new_figure, save_figure
from rankdet.experiments.losses import loss_changes
from rankdet.experiments.record import Record, read_record, results_of, shown_from
from rankdet.experiments.scales import Training, base_config, with_changes
from rankdet.experiments.schedules import LONG, SHORT, schedules, with_schedule
from rankdet.experiments.tables import NO_NUMBER, markdown_table, missing_text, number, page

# At voc320, for the images of a step.
RATES = {
    "retinanet": (0.0025, 0.005, 0.01, 0.02),
    "ssd": (0.0005, 0.001, 0.002, 0.004),
    "faster_rcnn": (0.0025, 0.005, 0.01, 0.02),
}
# Further ones, by experiment and loss: where the best was at the edge of those above.
MORE_RATES: dict[tuple[str, str], tuple[float, ...]] = {
    ("rates-retinanet", "focal"): (0.04, 0.08),
    # In the long schedule besides the two best of the short one.
    ("rates-retinanet-long", "ohem"): (0.0025,),
    ("rates-retinanet-long", "focal"): (0.01, 0.08),
    ("rates-retinanet-long", "ap"): (0.02,),
}
# Flips in place of SSD's augmentation, and first weights of pyramid and heads that make their maps
# little smaller: settings with which AP-loss and OHEM learnt sooner (trials; results/light-cpu).
FLIPS_AND_STARTS: Mapping[str, Any] = {
    "data": {"augmentation": "flip"},
    "detector": {"pyramid_start": "torchvision", "head_start": "kaiming"},
}
FLIPS_AND_STARTS_TEXT = "with flips alone, torchvision's pyramid and Kaiming's heads"
# At the other scales, times the scale's own rate.
FACTORS = (0.5, 1.0, 2.0, 4.0)
# The share of the training images; smoke has so few that none would be held out of a tenth.
HELD_OUT = {"smoke": 0.3, "tiny": 0.1, "voc320": 0.1, "paper": 0.1}
# How many of the short schedule's rates are tried in the long one.
NUM_KEPT = 2
_CHOSEN_BY = "AP"


@dataclass(frozen=True)
class Rates:
    """The learning rates of some losses with one detector, in one schedule.

    training: the detector and its backbone. losses: our names by those in the tables. first: the
    rates of the short schedule, of which the best two of each loss are tried here; None: all are
    tried. changes: other settings than the scale's, of every training.
    """

    name: str
    title: str
    training: Training
    losses: Mapping[str, str] = field(default_factory=lambda: LOSSES)
    schedule: str = SHORT
    first: Rates | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, request: Request) -> list[Row]:
        """A row for each loss and rate."""
        rows = []
        for name, loss in self.losses.items():
            for rate in self._tried(loss, request):
                config = self.held_out_config(loss, rate, request)
                rows.append(
                    Row(
                        key=f"{name}: {rate:g}",
                        settings={"config": to_dict(config)},
                        run=partial(outcome_or_divergence, config, request),
                        trainings=(config,),
                        is_outcome=True,
                    )
                )
        return rows

    def _tried(self, loss: str, request: Request) -> Sequence[float]:
        if self.first is not None and (record := _finished_record(self.first, request)):
            best = _by_value(record, loss)[:NUM_KEPT]
            if request.scale == "voc320":
                best += MORE_RATES.get((self.name, loss), ())
            return sorted(set(best))
        return (self.first or self).all_rates(loss, request)

    def all_rates(self, loss: str, request: Request) -> Sequence[float]:
        """The learning rates that are tried in the short schedule, in ascending order."""
        if request.scale == "voc320":
            return sorted({*RATES[self.training.detector], *MORE_RATES.get((self.name, loss), ())})
        return [usual_rate(self.training, loss, request) * factor for factor in FACTORS]

    def tuned_config(self, loss: str, rate: float, schedule: str, request: Request) -> Config:
        """The settings of a training with this loss and rate in a schedule, without the --set.

        rate: for the images of a step, as it is used.
        """
        base = base_config(request, self.training)
        config = with_schedule(base, schedules(request.scale, base.training.epochs)[schedule])
        training = {"learning_rate": rate, "reference_batch_size": base.training.batch_size}
        changes = {**loss_changes(loss, self.training.detector), "training": training}
        return merge(merge(config, {**changes, "evaluation": {"pictures": False}}), self.changes)

    def held_out_config(self, loss: str, rate: float, request: Request) -> Config:
        """The same, judged at its end on images held out of the training split; with the --set."""
        data = {"hold_out": HELD_OUT[request.scale], "val_split": None}
        config = self.tuned_config(loss, rate, self.schedule, request)
        return with_changes(request, merge(config, {"data": data, "evaluation": {"every": 0}}))

    def markdown(self, record: Record) -> str:
        record = self._with_newer_rates(record)
        chosen = chosen_rates(record)
        rows = []
        for name, loss in self.losses.items():
            for rate, key in sorted(tried_rates(record, loss).items()):
                mark = _mark(record, name, loss, rate) if chosen.get(loss) == rate else ""
                rows.append([name, f"{rate:g}", *_texts(record, key), mark])
        heading = ["training loss", "learning rate", *METRICS, "choice by AP"]
        notes = _notes(record)
        if self.first is not None:
            notes.append(
                f"Tried in this schedule: of each loss the two best rates of `{self.first.name}`, "
                "and of some their neighbours. Others may be better here."
            )
        return page(record, self.title, [markdown_table(heading, rows)], notes)

    def _with_newer_rates(self, record: Record) -> Record:
        """The record with rates in its plan that are to be tried since it was made."""
        if record["request"]["scale"] != "voc320":
            return record
        keys = [
            f"{name}: {rate:g}"
            for name, loss in self.losses.items()
            for rate in MORE_RATES.get((self.name, loss), ())
        ]
        return {**record, "plan": list(dict.fromkeys([*record["plan"], *keys]))}

    def figure(self, record: Record, path: Path) -> None:
        """AP against the learning rate, a line for each loss."""
        results, chosen = results_of(record), chosen_rates(record)
        drawn = new_figure(5.5, 3.8)
        axes = drawn.subplots()
        for name, loss in self.losses.items():
            points = {
                rate: value
                for rate, key in sorted(tried_rates(record, loss).items())
                if (value := _value(results.get(key), _CHOSEN_BY)) is not None
            }
            axes.plot([*points], [*points.values()], color=COLOURS[loss], marker=".", label=name)
            if (best := chosen.get(loss)) is not None:
                axes.plot([best], [points[best]], color=COLOURS[loss], marker="o", markersize=9)
        axes.set_xscale("log")
        tried = sorted(
            {rate for loss in self.losses.values() for rate in tried_rates(record, loss)}
        )
        axes.set_xticks(tried, [f"{rate:g}" for rate in tried])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        title = f"{self.training.detector}, {self.schedule} schedule"
        label_axes(axes, title, "learning rate", f"{_CHOSEN_BY} in percent")
        axes.legend(frameon=False, fontsize=8)
        save_figure(drawn, path)


def _mark(record: Record, name: str, loss: str, rate: float) -> str:
    """What a table says about the best of the rates that were tried."""
    planned = [key for key in record["plan"] if key.startswith(f"{name}: ")]
    if any("result" not in record["rows"].get(key, {}) for key in planned):
        return "best so far"
    shown = _shown(record, loss)
    level = [
        f"{other:g}" for other in sorted(shown) if other != rate and shown[other] == shown[rate]
    ]
    words = f"chosen, level with {', '.join(level)}" if level else "chosen"
    return f"{words}, **at the edge of what was tried**" if is_edge(record, loss, rate) else words


def is_edge(record: Record, loss: str, rate: float) -> bool:
    """Whether a rate of a loss is the lowest or highest that was tried, and not all are alike."""
    shown = _shown(record, loss)
    return len(set(shown.values())) > 1 and rate in (min(shown), max(shown))


def _shown(record: Record, loss: str) -> dict[float, str]:
    """The number by which a rate of a loss is chosen, as tables have it, by rate."""
    results = results_of(record)
    tried = tried_rates(record, loss)
    return {rate: number(_value(results.get(key), _CHOSEN_BY)) for rate, key in tried.items()}


def usual_rate(training: Training, loss: str, request: Request) -> float:
    """The scale's own learning rate for the images of a step."""
    usual = base_config(request, training, loss).training
    return usual.learning_rate * usual.batch_size / usual.reference_batch_size


def tried_rates(record: Record, loss: str) -> dict[float, str]:
    """The rows of a loss that a record has, by learning rate."""
    found = {}
    for key in record["plan"]:
        if key in record["rows"]:
            config = record["rows"][key]["settings"]["config"]
            if config["loss"]["name"] == loss:
                found[config["training"]["learning_rate"]] = key
    return found


def _losses_of(record: Record) -> list[str]:
    """The losses of the rows that a record has."""
    rows = record["rows"].values()
    return list(dict.fromkeys(row["settings"]["config"]["loss"]["name"] for row in rows))


def chosen_rates(record: Record) -> dict[str, float]:
    """The best of the rates of each loss that has one."""
    ordered = {loss: _by_value(record, loss) for loss in _losses_of(record)}
    return {loss: rates[0] for loss, rates in ordered.items() if rates}


def _by_value(record: Record, loss: str) -> list[float]:
    """The rates that a loss survives, best first by AP; the lower one of two equally good ones."""
    results = results_of(record)
    values = {
        rate: value
        for rate, key in sorted(tried_rates(record, loss).items())
        if (value := _value(results.get(key), _CHOSEN_BY)) is not None
    }
    return sorted(values, key=values.__getitem__, reverse=True)


def best_rates(rates: Rates, request: Request) -> tuple[dict[str, float], str]:
    """The learning rate of each loss, and in words who chose them.

    That is the record in the folder; without one of the long schedule, that of the short one; or
    else they are the scale's own. ConfigError if there is a record that cannot choose: see
    `_finished_record`.
    """
    if (record := _finished_record(rates, request)) is not None:
        words = f"chosen by `{rates.name}` on images held out of the training split"
        return chosen_rates(record), words
    if rates.first is not None:
        return best_rates(rates.first, request)
    losses = rates.losses.values()
    usual = {loss: usual_rate(rates.training, loss, request) for loss in losses}
    return usual, f"those of the scale, since the folder has no record of `{rates.name}`"


def chosen_changes(rates: Rates, loss: str, request: Request) -> dict[str, Any]:
    """The settings of the learning rate that the record in the folder has chosen; none without.

    The scale's own rate then stays as it is written, so that other tables share the training.
    """
    if (record := _finished_record(rates, request)) is None:
        return {}
    batch_size = base_config(request, rates.training).training.batch_size
    rate = chosen_rates(record)[loss]
    return {"training": {"learning_rate": rate, "reference_batch_size": batch_size}}


def _finished_record(rates: Rates, request: Request) -> Record | None:
    """The record in the folder of the request; None if there is none.

    ConfigError if it cannot choose: of another scale, of trainings with other settings, not
    finished, or without a rate that a loss survives.
    """
    file = request.out / f"{rates.name}.json"
    if not file.exists():
        return None
    record = read_record(file)
    with shown_from(file):
        lost = [name for name, loss in rates.losses.items() if not _by_value(record, loss)]
    if record["request"].get("scale") != request.scale:
        raise ConfigError(
            f"{file}: it is of the scale {record['request'].get('scale')}, and the learning rates "
            f"of {request.scale} are wanted. Give another folder with --out."
        )
    _refuse_other_settings(file, record, rates, request)
    left = [key for key in record["plan"] if "result" not in record["rows"].get(key, {})]
    if left:
        raise ConfigError(
            f"{file}: it is not finished, and the learning rates are chosen by it; missing: "
            f"{', '.join(left)}. Go on with it first: rankdet reproduce {rates.name} --scale "
            f"{request.scale} --out {request.out}, with the same --voc and --weights."
        )
    if lost:
        raise ConfigError(
            f"{file}: no learning rate has an AP of {', '.join(lost)}: all that were tried "
            "diverged. Give another folder with --out, in which the scale's own rates are taken."
        )
    return record


def _refuse_other_settings(file: Path, record: Record, rates: Rates, request: Request) -> None:
    """A rate that is best for one network, size or length may be a bad one for another."""
    for loss in rates.losses.values():
        for rate, key in tried_rates(record, loss).items():
            with shown_from(file):
                before = _of_training(record["rows"][key]["settings"]["config"])
            now = _of_training(to_dict(rates.held_out_config(loss, rate, request)))
            if found := differences(before, now):
                raise ConfigError(
                    f"{file}: its learning rates were tried with other settings: "
                    f"{'; '.join(found[:3])}. Give another folder with --out: there the scale's "
                    f"own rates are taken, or what rankdet reproduce {rates.name} has chosen there "
                    "before, with the same --set."
                )


def _of_training(config: Mapping[str, Any]) -> dict[str, Any]:
    """The stored settings by which weights come about, whatever they are evaluated by."""
    whole = completed(config)
    return {section: whole[section] for section in ("data", "detector", "loss", "training")}


def outcome_or_divergence(config: Config, request: Request) -> Mapping[str, Any]:
    """The outcome; that a training does not survive its rate is one, too, and not tried again."""
    try:
        return outcome(config, request)
    except TrainingError as error:
        return {"metrics": None, "diverged": str(error)}


def _value(result: Mapping[str, Any] | None, metric: str) -> float | None:
    metrics = (result or {}).get("metrics") or {}
    value: float | None = metrics.get(metric)
    return value


def _texts(record: Record, key: str) -> Sequence[str]:
    """The cells of a row: the metrics, or why there are none."""
    result = results_of(record).get(key)
    if result is not None and "diverged" in result:
        return ["diverged", *[NO_NUMBER] * (len(METRICS) - 1)]
    if text := missing_text(record, key):
        return [text, *[NO_NUMBER] * (len(METRICS) - 1)]
    return [number(_value(result, metric)) for metric in METRICS]


def _notes(record: Record) -> list[str]:
    for row in record["rows"].values():
        config = from_dict(row["settings"]["config"])
        return [
            f"Trained on {training_name(config.data)}, judged on {validation_name(config.data)}.",
            f"{counted(config.training.epochs, 'epoch')}, {config.training.batch_size} images in a "
            f"step; the learning rates are for {config.training.reference_batch_size}.",
        ]
    return []


def _experiment(rates: Rates) -> Experiment:
    return Experiment(rates.name, rates.title, (), rates.plan, rates.markdown, rates.figure)


_TITLE = "four losses at several learning rates, {}, judged on a tenth of train"
_LONG_TITLE = "four losses at the best rates of the short schedule, {}, long schedule, on a tenth"

RETINANET = Rates("rates-retinanet", _TITLE.format("RetinaNet"), Training())
_FLIPS_TEXT = f"RetinaNet {FLIPS_AND_STARTS_TEXT}"
RETINANET_FLIPS = Rates(
    "rates-retinanet-flips",
    _TITLE.format(_FLIPS_TEXT),
    Training(),
    changes=FLIPS_AND_STARTS,
)
SSD = Rates("rates-ssd", _TITLE.format("SSD"), Training(detector="ssd"))
FASTER_RCNN = Rates(
    "rates-faster-rcnn",
    "cross-entropy and AP-loss at several learning rates, Faster R-CNN, judged on a tenth of train",
    Training(detector="faster_rcnn"),
    {"CE-Loss": "ce", "AP-Loss": "ap"},
)
GHM_DR = Rates(
    "rates-ghm-dr",
    "GHM-C, DR loss and AP-loss at several learning rates, RetinaNet, judged on a tenth of train",
    Training(backbone="resnet101", side=500),
    {"GHM-C": "ghm", "DR loss": "dr", "AP-Loss": "ap"},
)
RETINANET_LONG, RETINANET_FLIPS_LONG, SSD_LONG = (
    replace(
        first,
        name=f"{first.name}-long",
        title=_LONG_TITLE.format(text),
        schedule=LONG,
        first=first,
    )
    for first, text in ((RETINANET, "RetinaNet"), (RETINANET_FLIPS, _FLIPS_TEXT), (SSD, "SSD"))
)
ALL = (
    *(RETINANET, RETINANET_LONG, RETINANET_FLIPS, RETINANET_FLIPS_LONG),
    *(SSD, SSD_LONG, FASTER_RCNN, GHM_DR),
)
EXPERIMENTS = tuple(map(_experiment, ALL))
