"""What the experiments at voc320 were to reach, and whether their records reach it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rankdet.experiments import evidence, rois, time_share
from rankdet.experiments.evaluations import Evaluations
from rankdet.experiments.record import Record, changed_settings, results_of
from rankdet.experiments.seed_statistics import welch_interval
from rankdet.experiments.tables import NOT_RUN, markdown_table, number

HALF_WIDTH = 0.4  # of the 95 % interval of a difference in AP
AP50 = 70.0  # of RetinaNet with ResNet-50
FLAT = 0.5  # AP between the fewest and the most regions of Faster R-CNN: no more than this
IMAGES_PER_SECOND = 1000.0

# The goals are about these as the scale has them; who changes one by --set trains something else.
_SAID_BY_THE_GOALS = {"data.size", "detector.backbone", "detector.pyramid_channels"}

Line = tuple[str, str, str]  # the goal, what was seen, and whether that is enough


def goals_part(records: Mapping[str, Record], evaluations: Evaluations) -> str:
    """The part of the page: a table of all goals; "" if no record is of what they are about."""
    counted = {name: record for name, record in records.items() if not _is_another(record)}
    if records and not counted and not evaluations:
        return ""
    lines = [
        *_differences(counted),
        _accuracy(counted, evaluations),
        _regions(counted.get(rois.EXPERIMENT.name)),
        _speed(counted.get(time_share.EXPERIMENT.name)),
    ]
    return "\n\n".join(["## Goals", markdown_table(["goal", "seen", "state"], lines)])


def _is_another(record: Record) -> bool:
    return not _SAID_BY_THE_GOALS.isdisjoint(
        changed_settings(record["request"].get("changes") or ())
    )


def _differences(records: Mapping[str, Record]) -> Iterator[Line]:
    """How well it is known by how much AP-loss is ahead, or behind: a line for each schedule."""
    for one in evidence.ALL:
        for schedule in one.tunings:
            goal = (
                f"AP of {evidence.OURS} less the best other's, {one.subject}, {schedule} "
                f"schedule: known to ± {HALF_WIDTH:g} (95 %)"
            )
            yield goal, *_difference(records.get(one.name), schedule)


def _difference(record: Record | None, schedule: str) -> tuple[str, str]:
    """What was seen in a schedule, and whether that is enough."""
    other = None if record is None else evidence.best_other(record, schedule, "AP")
    if record is None or other is None:
        return "", NOT_RUN
    ours, theirs = (
        evidence.values_of(record, schedule, name, "AP") for name in (evidence.OURS, other)
    )
    interval = welch_interval(ours, theirs)
    if interval is None:
        return "", "too few seeds" if ours else NOT_RUN
    return f"{interval[0]:+.2f} ± {interval[1]:.2f} ({other})", _state(interval[1] <= HALF_WIDTH)


def _accuracy(records: Mapping[str, Record], evaluations: Evaluations) -> Line:
    """The best RetinaNet with ResNet-50, tested at one size and at several."""
    of_trainings = [
        value
        for one in (evidence.RETINANET, evidence.RETINANET_FLIPS, evidence.RETINANET_LONGEST)
        if (record := records.get(one.name)) is not None
        for result in results_of(record).values()
        if (value := (result["metrics"] or {}).get("AP50")) is not None
    ]
    again: dict[bool, list[float]] = {True: [], False: []}
    for tested in evaluations.values():
        detector = tested["config"]["detector"]
        if (detector["name"], detector["backbone"]) == ("retinanet", "resnet50"):
            again[_is_multi_scale(tested)].append(tested["metrics"]["AP50"])
    at_one, at_several = of_trainings + again[False], again[True]
    seen = {"tested at one size": at_one, "at several": at_several}
    texts = [f"{number(max(values), 2)} {name}" for name, values in seen.items() if values]
    goal = f"AP50 of the best RetinaNet with ResNet-50: at least {AP50:g}"
    if not texts:
        return goal, "", NOT_RUN
    states = [_state(max(values) >= AP50) for values in seen.values() if values]
    return goal, ", ".join(texts), ", ".join(dict.fromkeys(states))


def _is_multi_scale(tested: Mapping[str, Any]) -> bool:
    settings = tested["config"]["evaluation"]
    return bool(settings["scales"] or settings["flip"])


def _regions(record: Record | None) -> Line:
    """Whether more regions leave AP-loss as it is and make cross-entropy worse."""
    goal = (
        f"Faster R-CNN from {rois.NUM_ROIS[0]} to {rois.NUM_ROIS[-1]:,} regions: AP of AP-loss "
        f"changes by no more than {FLAT:g}, that of cross-entropy falls by more"
    )
    results = {} if record is None else results_of(record)
    changes = {}
    for group in rois.GROUPS:
        first, last = (
            (results.get(f"{group}: {count}", {}).get("metrics") or {}).get("AP")
            for count in (rois.NUM_ROIS[0], rois.NUM_ROIS[-1])
        )
        if first is None or last is None:
            return goal, "", NOT_RUN
        changes[rois.GROUPS[group]] = last - first
    seen = f"AP-loss {changes['ap']:+.2f}, cross-entropy {changes['ce']:+.2f}"
    return goal, seen, _state(abs(changes["ap"]) <= FLAT and changes["ce"] < -FLAT)


def _speed(record: Record | None) -> Line:
    """Images of a training with AP-loss that has the machine to itself."""
    goal = f"Images per second in a training with AP-loss: at least {IMAGES_PER_SECOND:,.0f}"
    result = None if record is None else results_of(record).get(evidence.OURS)
    if result is None:
        return goal, "", NOT_RUN
    rate = result["step_images"] / result["step_seconds"]
    return goal, f"{rate:,.0f}", _state(rate >= IMAGES_PER_SECOND)


def _state(is_met: bool) -> str:
    return "met" if is_met else "missed"
