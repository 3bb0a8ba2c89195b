"""A few settings changed: what holds a loss back, and what would help it.

Each trial is a training of RetinaNet with one change or a few, judged on images held out of the
training split: the validation split chooses nothing. In the short schedule there are many, at the
scale's own learning rate of the loss; in the long one those that matter most, at the rate that was
chosen for it. A change of the evaluation alone is tried on the training as it is.

The initial bias of the scores is none of the trials: AP-loss and AUC-loss see differences of scores
alone, so that it is to them what the score threshold is, but for the weight decay on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rankdet.config import Config, from_dict, merge, to_dict
from rankdet.config.effects import names_without_effect
from rankdet.experiments.arms import evaluated, outcome, trained
from rankdet.experiments.comparison import COLOURS, LOSSES, METRICS
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import label_axes, new_figure, save_figure
from rankdet.experiments.rates import (
    FLIPS_AND_STARTS,
    RETINANET,
    RETINANET_LONG,
    Rates,
    best_rates,
    outcome_or_divergence,
    usual_rate,
)
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.schedules import LONG
from rankdet.experiments.tables import NO_NUMBER, markdown_table, missing_text, number, page

USUAL = "as usual"
_JUDGED_BY = "AP"
_FLIPS = {"data": {"augmentation": "flip"}}
_PYRAMID = {"detector": {"pyramid_start": "torchvision"}}
_STARTS = {"detector": FLIPS_AND_STARTS["detector"]}
_WITH_FLIPS_AND_STARTS = "flips alone, pyramid as torchvision's, heads by Kaiming"
_CHANGES = (
    "Flips alone: in place of SSD's augmentation. Rate along a cosine: the learning rate falls "
    "from its value after the warm-up to 0, in place of two steps to a tenth. Pyramid as "
    "torchvision's: its first weights keep the size of the maps, in place of N(0, 0.01). Heads "
    "by Kaiming: with their first weights each layer makes its map about a third smaller, in place "
    "of some three times (six with 64 channels). Delta: in place of 1. Hardest negatives: 3 for "
    "each positive are ranked, in place of all. Nine anchors: three sizes of three shapes, as "
    "torchvision's, in place of two. A higher rate with a smaller box loss: the class part weighs "
    "so much more, and so does the weight decay; the limit of the gradient is as much looser."
)


@dataclass(frozen=True)
class Trial:
    """loss: its name in the tables. change: what is different, in words.

    settings: the same as settings; rate_factor: of the learning rate as usual.
    """

    loss: str
    change: str = USUAL
    settings: Mapping[str, Any] = field(default_factory=dict)
    rate_factor: float = 1.0

    @property
    def key(self) -> str:
        return f"{self.loss}: {self.change}"

    @property
    def is_of_evaluation(self) -> bool:
        """Whether the training is as usual."""
        return self.settings.keys() == {"evaluation"}


def _box_weight(loss: str, weight: float) -> Trial:
    return Trial(loss, f"box loss times {weight:g}", {"loss": {"box_weight": weight}})


def _class_weight(loss: str, weight: float) -> Trial:
    """Nearly a weight of the class part: the weight decay grows along, the limit loosens."""
    change = f"learning rate times {weight:g}, box loss times {1 / weight:.2g}"
    return Trial(loss, change, {"loss": {"box_weight": 1 / weight}}, rate_factor=weight)


def _flips(loss: str) -> Trial:
    return Trial(loss, "flips alone", _FLIPS)


def _cosine(loss: str) -> Trial:
    return Trial(loss, "rate along a cosine", {"training": {"schedule": "one_cycle"}})


def _pyramid(loss: str) -> Trial:
    return Trial(loss, "pyramid as torchvision's", _PYRAMID)


def _flips_and_pyramid(loss: str) -> Trial:
    return Trial(loss, "flips alone, pyramid as torchvision's", {**_FLIPS, **_PYRAMID})


def _flips_and_starts(loss: str) -> Trial:
    return Trial(loss, _WITH_FLIPS_AND_STARTS, FLIPS_AND_STARTS)


def _starts(loss: str) -> Trial:
    return Trial(loss, "pyramid as torchvision's, heads by Kaiming", _STARTS)


def _flips_and_loss(loss: str, change: str, settings: Mapping[str, Any]) -> Trial:
    """With flips and larger first weights, other settings of the class loss."""
    name = f"{_WITH_FLIPS_AND_STARTS}, {change}"
    return Trial(loss, name, {**FLIPS_AND_STARTS, "loss": {"settings": settings}})


def _nine_anchors(loss: str) -> Trial:
    return Trial(loss, "nine anchors at a place", {"detector": {"anchor_octaves": 3}})


def _threshold(loss: str, threshold: float) -> Trial:
    settings = {"evaluation": {"score_threshold": threshold}}
    return Trial(loss, f"score threshold {threshold:g}", settings)


_OHEM, _FOCAL, _AUC, _AP = LOSSES
_SHORT = (
    Trial(_AP),
    Trial(_AP, "seed 1", {"seed": 1}),
    Trial(_AP, "seed 2", {"seed": 2}),
    _box_weight(_AP, 0.25),
    _box_weight(_AP, 0.5),
    _box_weight(_AP, 2.0),
    _class_weight(_AP, 2.0),
    _class_weight(_AP, 4.0),
    _flips(_AP),
    _cosine(_AP),
    _pyramid(_AP),
    _flips_and_pyramid(_AP),
    _flips_and_starts(_AP),
    _flips_and_loss(_AP, "delta 0.25", {"delta": 0.25}),
    _flips_and_loss(_AP, "hardest negatives", {"negatives": "hardest"}),
    _nine_anchors(_AP),
    Trial(_AP, "gradients not clipped", {"training": {"clip_norm": None}}),
    Trial(_AP, "no warm-up", {"training": {"warmup_steps": 0}}),
    _threshold(_AP, 0.0),
    _threshold(_AP, 0.05),
    Trial(_OHEM),
    _box_weight(_OHEM, 0.5),
    _class_weight(_OHEM, 2.0),
    _flips(_OHEM),
    _cosine(_OHEM),
    _pyramid(_OHEM),
    _flips_and_pyramid(_OHEM),
    _flips_and_starts(_OHEM),
    _nine_anchors(_OHEM),
    Trial(_FOCAL),
    _box_weight(_FOCAL, 0.25),
    _class_weight(_FOCAL, 4.0),
    _flips(_FOCAL),
    _pyramid(_FOCAL),
    _flips_and_pyramid(_FOCAL),
    _flips_and_starts(_FOCAL),
    Trial(_AUC),
    _box_weight(_AUC, 0.1),
    _class_weight(_AUC, 10.0),
    _class_weight(_AUC, 50.0),
    Trial(_AUC, "twice the learning rate", rate_factor=2.0),
)


_LONG = (
    Trial(_AP),
    Trial(_AP, "seed 1", {"seed": 1}),
    _flips(_AP),
    _cosine(_AP),
    _pyramid(_AP),
    _flips_and_pyramid(_AP),
    _starts(_AP),
    Trial(_AP, "delta 0.25", {"loss": {"settings": {"delta": 0.25}}}),
    _class_weight(_AP, 2.0),
    Trial(_OHEM),
    _flips(_OHEM),
    _cosine(_OHEM),
    _pyramid(_OHEM),
    _flips_and_pyramid(_OHEM),
    _starts(_OHEM),
    Trial(_FOCAL),
    _flips(_FOCAL),
    _cosine(_FOCAL),
    _pyramid(_FOCAL),
    _flips_and_pyramid(_FOCAL),
)


@dataclass(frozen=True)
class Trials:
    """Trials in the schedule of `rates`, by which the learning rates as usual are known."""

    name: str
    title: str
    rates: Rates
    trials: Sequence[Trial]

    def plan(self, request: Request) -> list[Row]:
        """A row for each trial."""
        chosen = self._usual_rates(request)
        return [self._row(trial, chosen[LOSSES[trial.loss]], request) for trial in self.trials]

    def _usual_rates(self, request: Request) -> Mapping[str, float]:
        if self.rates.schedule == LONG:
            return best_rates(self.rates, request)[0]
        return {loss: usual_rate(self.rates.training, loss, request) for loss in LOSSES.values()}

    def _words_on_rates(self) -> str:
        if self.rates.schedule == LONG:
            return f"the choice of `{self.rates.name}`"
        return f"the scale's own, not always the choice of `{self.rates.name}`"

    def _row(self, trial: Trial, rate: float, request: Request) -> Row:
        loss, rate = LOSSES[trial.loss], trial.rate_factor * rate
        usual = self.rates.held_out_config(loss, rate, request)
        changed = merge(usual, trial.settings)
        config = usual if trial.is_of_evaluation else changed
        run: Callable[[], Mapping[str, Any]] = partial(outcome_or_divergence, config, request)
        if trial.is_of_evaluation:
            run = partial(_tested, trial, config, changed, request)
        return Row(
            key=trial.key,
            settings={"config": to_dict(changed)},
            run=run,
            trainings=(config,),
            is_outcome=not trial.is_of_evaluation,
        )

    def markdown(self, record: Record) -> str:
        """A row for each trial; those that are newer than the record were not run."""
        record = {**record, "plan": [trial.key for trial in self.trials]}
        rows = [_texts(trial, record) for trial in self.trials]
        heading = ["training loss", "change", "learning rate", *METRICS]
        notes = [
            f"Trained without a tenth of train and judged on it, in the {self.rates.schedule} "
            "schedule, each once. How much of a difference is chance, rows that differ in the seed "
            "alone say, where they were run; and a training as usual whose numbers here are not "
            f"those of `{self.rates.name}` was run twice, with the same settings and the same "
            "seed.",
            f"Learning rates as usual: {self._words_on_rates()}.",
            _CHANGES,
        ]
        return page(record, self.title, [markdown_table(heading, rows)], notes)

    def figure(self, record: Record, path: Path) -> None:
        """AP of each trial that was run as a bar, in the colour of its loss."""
        results = results_of(record)
        shown = [trial for trial in self.trials if trial.key in results]
        drawn = new_figure(7, 0.26 * max(len(shown), 1) + 1)
        axes = drawn.subplots()
        axes.barh(
            range(len(shown)),
            [(results[trial.key]["metrics"] or {}).get(_JUDGED_BY) or 0.0 for trial in shown],
            color=[COLOURS[LOSSES[trial.loss]] for trial in shown],
        )
        axes.set_yticks(range(len(shown)), [trial.key for trial in shown], fontsize=8)
        axes.invert_yaxis()
        title = f"what a few changes do: {self.rates.schedule} schedule"
        label_axes(axes, title, f"{_JUDGED_BY} in percent", "")
        save_figure(drawn, path)


def _tested(trial: Trial, config: Config, changed: Config, request: Request) -> dict[str, Any]:
    """The outcome of the usual training, with the numbers of another evaluation."""
    run = trained(config, request)
    results = evaluated(run, request, trial.change.replace(" ", "-"), changed)
    return {**outcome(config, request), "metrics": results["metrics"]}


def _texts(trial: Trial, record: Record) -> list[str]:
    """The cells of a trial: its numbers, or why there are none."""
    results = results_of(record)
    if trial.key not in results:
        text = missing_text(record, trial.key)
        return [trial.loss, trial.change, NO_NUMBER, text, *[NO_NUMBER] * 2]
    config = record["rows"][trial.key]["settings"]["config"]
    usual = record["rows"].get(Trial(trial.loss).key, {}).get("settings", {}).get("config")
    is_same = trial.change != USUAL and usual is not None and _seen(config) == _seen(usual)
    same = " (the usual here)" if is_same else ""
    metrics = results[trial.key]["metrics"]
    cells = ["diverged", *[NO_NUMBER] * 2]
    if metrics is not None:
        cells = [number(metrics[metric]) for metric in METRICS]
    rate = f"{config['training']['learning_rate']:g}"
    return [trial.loss, trial.change + same, rate, *cells]


def _seen(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a training without those that its detector does not look at."""
    config = from_dict(stored)
    settings = to_dict(config)
    for name in names_without_effect(config.detector):
        del settings["detector"][name]
    return settings


_TITLE = "a few settings changed, four losses, RetinaNet, judged on a tenth of train"
_LONG_TITLE = "a few settings changed, RetinaNet, long schedule, judged on a tenth of train"
SHORT_TRIALS = Trials("trials", _TITLE, RETINANET, _SHORT)
LONG_TRIALS = Trials("trials-long", _LONG_TITLE, RETINANET_LONG, _LONG)


def _experiment(trials: Trials) -> Experiment:
    return Experiment(trials.name, trials.title, (), trials.plan, trials.markdown, trials.figure)


EXPERIMENT, LONG_EXPERIMENT = map(_experiment, (SHORT_TRIALS, LONG_TRIALS))
