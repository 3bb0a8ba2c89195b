"""Goals of the experiments at voc320: what is met, what is missed, and what was not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rankdet.experiments import rois
from rankdet.experiments.goals import goals_part

Record = Callable[..., dict[str, Any]]
OURS, OHEM = "AP-Loss", "CE-Loss + OHEM"


def evidence(hand_made: Record, **values: list[float]) -> dict[str, Any]:
    """A record of the long schedule with AP of the seeds by loss; AP50 is 30 above."""
    names = {"ours": OURS, "ohem": OHEM}
    results = {
        f"long: {names[loss]}: seed {seed}": {"metrics": {"AP": value, "AP50": value + 30}}
        for loss, of_seeds in values.items()
        for seed, value in enumerate(of_seeds)
    }
    return hand_made("evidence-retinanet", list(results), results)


def evaluated(ap50: float, *, scales: list[int], **detector: str) -> dict[str, Any]:
    settings = {"scales": scales, "flip": bool(scales)}
    whose = {"name": "retinanet", "backbone": "resnet50", **detector}
    config = {"detector": whose, "evaluation": settings}
    return {"metrics": {"AP50": ap50}, "config": config}


def lines(records: dict[str, Any], evaluations: dict[str, Any] | None = None) -> dict[str, str]:
    """What the table says, by the beginning of the goal: the rest of its row."""
    rows = goals_part(records, evaluations or {}).splitlines()[4:]
    cells = [row.strip("| ").split(" | ", 1) for row in rows]
    return {goal: rest.strip() for goal, rest in cells}


def line(found: dict[str, str], words: str) -> str:
    (rest,) = (rest for goal, rest in found.items() if words in goal)
    return rest


def test_without_records_nothing_was_run() -> None:
    found = lines({})
    assert len(found) == 10
    assert {rest.rpartition("| ")[2] for rest in found.values()} == {"not run"}


@pytest.mark.parametrize(("spread", "state"), [(0.01, "met"), (1.0, "missed")])
def test_a_difference_is_known_well_enough_whatever_its_sign(
    hand_made: Record, spread: float, state: str
) -> None:
    ours = [30.0 - spread, 30.0, 30.0 + spread]
    record = evidence(hand_made, ours=ours, ohem=[value + 2 for value in ours])
    found = line(lines({"evidence-retinanet": record}), "RetinaNet, long schedule")
    assert found.startswith("-2.00 ± ")
    assert found.endswith(f"({OHEM}) | {state}")


def test_a_record_of_another_network_reaches_no_goal(hand_made: Record) -> None:
    records = {"evidence-retinanet": evidence(hand_made, ours=[45.0], ohem=[44.0])}
    records["evidence-retinanet"]["request"]["changes"] = ["data.size=128"]
    assert goals_part(records, {}) == ""
    found = lines(records, {"one": evaluated(69.5, scales=[])})
    assert line(found, "RetinaNet, long schedule").endswith("not run")
    assert line(found, "AP50") == "69.50 tested at one size | missed"


def test_single_seeds_know_no_interval(hand_made: Record) -> None:
    record = evidence(hand_made, ours=[30.0], ohem=[31.0])
    found = line(lines({"evidence-retinanet": record}), "RetinaNet, long schedule")
    assert found.endswith("too few seeds")


def test_a_training_that_diverged_is_no_number(hand_made: Record) -> None:
    record = evidence(hand_made, ours=[30.0])
    record["rows"][f"long: {OURS}: seed 0"]["result"]["metrics"] = None
    found = lines({"evidence-retinanet": record})
    assert line(found, "RetinaNet, long schedule").endswith("not run")
    assert line(found, "AP50").endswith("not run")


def test_the_best_detector_is_that_of_a_training_or_of_another_test_of_it(
    hand_made: Record,
) -> None:
    records = {"evidence-retinanet": evidence(hand_made, ours=[39.0, 38.0])}
    assert line(lines(records), "AP50") == "69.00 tested at one size | missed"
    again = {
        "one": evaluated(69.5, scales=[]),
        "several": evaluated(70.25, scales=[256, 320]),
        "other": evaluated(90.0, scales=[], name="ssd"),
        "larger": evaluated(90.0, scales=[], backbone="resnet101"),
    }
    expected = "69.50 tested at one size, 70.25 at several | missed, met"
    assert line(lines(records, again), "AP50") == expected
    high = {"evidence-retinanet": evidence(hand_made, ours=[40.0])}
    assert line(lines(high, again), "AP50") == ("70.00 tested at one size, 70.25 at several | met")


@pytest.mark.parametrize(
    ("ap_loss", "cross_entropy", "expected"),
    [
        (0.5, -0.6, "AP-loss +0.50, cross-entropy -0.60 | met"),
        (-0.75, -0.6, "AP-loss -0.75, cross-entropy -0.60 | missed"),
        (0.0, 0.0, "AP-loss +0.00, cross-entropy +0.00 | missed"),
    ],
)
def test_more_regions_are_to_leave_ap_loss_as_it_is_and_to_harm_cross_entropy(
    hand_made: Record, ap_loss: float, cross_entropy: float, expected: str
) -> None:
    changes = {"ap": ap_loss, "ce": cross_entropy}
    results = {
        f"{group}: {count}": {"metrics": {"AP": 30.0 + (count > 512) * changes[loss]}}
        for group, loss in rois.GROUPS.items()
        for count in (512, 4096)
    }
    assert set(results) <= {variant.key for variant in rois.COMPARISON.variants}
    record = hand_made("rois", list(results), results)
    assert line(lines({"rois": record}), "Faster R-CNN") == expected
    del record["rows"]["Faster: 4096"]
    assert line(lines({"rois": record}), "Faster R-CNN").endswith("not run")


@pytest.mark.parametrize(("seconds", "expected"), [(0.02, "1,600 | met"), (0.04, "800 | missed")])
def test_a_training_alone_is_to_be_fast(hand_made: Record, seconds: float, expected: str) -> None:
    result = {"step_images": 32, "step_seconds": seconds}
    record = hand_made("time-share", [OURS], {OURS: result})
    assert line(lines({"time-share": record}), "second") == expected
