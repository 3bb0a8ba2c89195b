"""The learning rate of each loss: what is tried, which one is chosen, and who takes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankdet.config import Config
from rankdet.errors import ConfigError, RankdetError, TrainingError
from rankdet.experiments import rates, scales
from rankdet.experiments.comparison import LOSSES
from rankdet.experiments.experiment import Request, reproduce
from rankdet.experiments.items import experiment
from rankdet.experiments.rates import (
    FASTER_RCNN,
    GHM_DR,
    RETINANET,
    RETINANET_FLIPS,
    RETINANET_LONG,
    SSD,
    SSD_LONG,
    Rates,
)
from rankdet.experiments.record import read_record

AP_OF_RATES = {0.0025: 10.0, 0.005: 30.0, 0.01: 20.0, 0.02: 5.0}


@pytest.fixture
def voc320(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    """At voc320, before any rate was added at the edge."""
    monkeypatch.setattr(rates, "MORE_RATES", {})
    return Request("voc320", tmp_path, voc="VOC2012")


def result(ap: float | None) -> dict[str, Any]:
    return {"metrics": {"AP": ap, "AP50": 50.0, "AP75": 25.0}, "curve": []}


DIVERGED: dict[str, Any] = {"metrics": None, "diverged": "the loss is not finite"}


def record_of(
    results: Mapping[str, Any], request: Request, tuning: Rates = RETINANET
) -> dict[str, Any]:
    """A record in which these rows of the plan are finished."""
    rows = {row.key: row.settings for row in tuning.plan(request)}
    assert results.keys() <= rows.keys()
    return {
        "rankdet_reproduction": 1,
        "item": tuning.name,
        "labels": [],
        "request": request.settings(),
        "plan": list(rows),
        "rows": {
            key: {"settings": json.loads(json.dumps(rows[key])), "result": results[key]}
            for key in rows
            if key in results
        },
    }


def finished(request: Request, **others: dict[float, Any]) -> dict[str, Any]:
    """A record in which all rates of a loss have the results given, or AP_OF_RATES."""
    usual = {rate: result(ap) for rate, ap in AP_OF_RATES.items()}
    results = {
        f"{name}: {rate:g}": value
        for name, loss in LOSSES.items()
        for rate, value in others.get(loss, usual).items()
    }
    return record_of(results, request)


def write(record: Mapping[str, Any], request: Request, tuning: Rates = RETINANET) -> Path:
    file = request.out / f"{tuning.name}.json"
    file.write_text(json.dumps(record))
    return file


# What is tried.


@pytest.mark.parametrize(
    ("tuning", "tried"),
    [
        (RETINANET, (0.0025, 0.005, 0.01, 0.02)),
        (RETINANET_FLIPS, (0.0025, 0.005, 0.01, 0.02)),
        (SSD, (0.0005, 0.001, 0.002, 0.004)),
    ],
)
def test_every_loss_is_trained_at_the_same_four_rates(
    tuning: Rates, tried: tuple[float, ...], voc320: Request
) -> None:
    rows = tuning.plan(voc320)
    assert [row.key for row in rows] == [f"{name}: {rate:g}" for name in LOSSES for rate in tried]
    configs = [row.trainings[0] for row in rows]
    names = ["ohem"] * 4 + ["focal"] * 4 + ["auc"] * 4 + ["ap"] * 4
    assert [config.loss.name for config in configs] == names
    assert [config.training.learning_rate for config in configs] == [*tried] * 4
    assert {config.detector.name for config in configs} == {tuning.training.detector}


@pytest.mark.parametrize(
    ("tuning", "losses"), [(FASTER_RCNN, ["ce", "ap"]), (GHM_DR, ["ghm", "dr", "ap"])]
)
def test_other_comparisons_try_their_own_losses_with_their_own_detector(
    tuning: Rates, losses: list[str], voc320: Request
) -> None:
    tried = (0.0025, 0.005, 0.01, 0.02)
    rows = tuning.plan(voc320)
    assert [row.key for row in rows] == [
        f"{name}: {rate:g}" for name in tuning.losses for rate in tried
    ]
    configs = [row.trainings[0] for row in rows]
    assert [config.loss.name for config in configs] == [loss for loss in losses for _ in tried]
    assert {config.detector.name for config in configs} == {tuning.training.detector}
    assert {config.detector.backbone for config in configs} == {tuning.training.backbone}
    assert {config.training.epochs for config in configs} == {6}


def test_a_rate_is_the_one_of_the_step_as_it_is(voc320: Request) -> None:
    trainings = [row.trainings[0].training for row in RETINANET.plan(voc320)]
    assert {(one.batch_size, one.reference_batch_size) for one in trainings} == {(32, 32)}


@pytest.mark.parametrize("tuning", rates.ALL)
def test_the_validation_split_chooses_nothing(tuning: Rates, voc320: Request) -> None:
    for row in tuning.plan(voc320):
        data = row.trainings[0].data
        assert (data.train_split, data.hold_out, data.val_split) == ("train", 0.1, None)
        assert row.settings["config"]["data"]["hold_out"] == 0.1


@pytest.mark.parametrize(
    ("tuning", "epochs", "milestones"),
    [(RETINANET, 6, (4.2, 5.4)), (SSD, 6, (4.2, 5.4)), (SSD_LONG, 18, (12.6, 16.2))],
)
def test_a_training_has_its_schedule_and_is_judged_at_its_end_alone(
    tuning: Rates, epochs: int, milestones: tuple[float, ...], voc320: Request
) -> None:
    for row in tuning.plan(voc320):
        config = row.trainings[0]
        assert (config.training.epochs, config.training.milestones) == (epochs, milestones)
        assert (config.evaluation.every, config.evaluation.pictures) == (0, False)
        assert row.is_outcome


def test_trainings_differ_in_loss_and_rate_alone(voc320: Request) -> None:
    first, *others = (row.trainings[0] for row in RETINANET.plan(voc320))
    for other in others:
        training = replace(other.training, learning_rate=first.training.learning_rate)
        assert replace(other, loss=first.loss, training=training) == first


def test_the_focal_loss_of_ssd_alone_has_the_paper_s_settings(voc320: Request) -> None:
    def settings(tuning: Rates) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for row in tuning.plan(voc320):
            loss = row.trainings[0].loss
            found.setdefault(loss.name, []).append(dict(loss.settings))
        return found

    usual = {"ohem": [{}] * 4, "auc": [{}] * 4, "ap": [{}] * 4}
    assert settings(SSD) == {**usual, "focal": [{"gamma": 1.0, "alpha": 0.25}] * 4}
    assert settings(RETINANET) == {**usual, "focal": [{}] * 4}


def test_further_rates_of_one_loss_come_in_order(
    voc320: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "MORE_RATES", {("rates-ssd", "auc"): (0.008, 0.00025)})
    assert SSD.all_rates("auc", voc320) == [0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008]
    assert len(SSD.plan(voc320)) == 4 * 4 + 2
    assert len(RETINANET.plan(voc320)) == 4 * 4


def test_elsewhere_the_rates_are_around_the_scale_s_own(tmp_path: Path) -> None:
    # The demo has 0.003 for 16 images; a step of smoke has 8.
    tried = RETINANET.all_rates("ap", Request("smoke", tmp_path))
    assert tried == pytest.approx([0.00075, 0.0015, 0.003, 0.006])
    training = RETINANET.plan(Request("smoke", tmp_path))[1].trainings[0].training
    assert training.learning_rate == pytest.approx(0.0015)
    assert training.reference_batch_size == training.batch_size == 8


def test_the_user_has_the_last_word(tmp_path: Path) -> None:
    request = Request("smoke", tmp_path, changes=("data.hold_out=0.5", "training.epochs=5"))
    for row in RETINANET.plan(request):
        assert row.trainings[0].data.hold_out == 0.5
        assert row.trainings[0].training.epochs == 5


def test_the_long_schedule_tries_the_two_best_rates_of_the_short_one(voc320: Request) -> None:
    ap = {0.0025: result(30.0), 0.005: result(20.0), 0.01: result(40.0), 0.02: DIVERGED}
    equal = dict.fromkeys(AP_OF_RATES, result(10.0))
    alone = {**dict.fromkeys(AP_OF_RATES, DIVERGED), 0.005: result(1.0)}
    write(finished(voc320, ap=ap, auc=equal, focal=alone), voc320)
    assert [row.key for row in RETINANET_LONG.plan(voc320)] == [
        *("CE-Loss + OHEM: 0.005", "CE-Loss + OHEM: 0.01"),
        "Focal Loss: 0.005",
        *("AUC-Loss: 0.0025", "AUC-Loss: 0.005"),  # the lower ones of equals
        *("AP-Loss: 0.0025", "AP-Loss: 0.01"),
    ]
    assert len(SSD_LONG.plan(voc320)) == 16  # all, without a record of its short schedule


def test_further_rates_of_the_long_schedule_come_besides_the_two_best(
    voc320: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {("rates-retinanet-long", "focal"): (0.0025, 0.005)}
    monkeypatch.setattr(rates, "MORE_RATES", more)
    write(finished(voc320), voc320)
    keys = [row.key for row in RETINANET_LONG.plan(voc320)]
    assert [key for key in keys if key.startswith("Focal")] == [
        f"Focal Loss: {rate}" for rate in (0.0025, 0.005, 0.01)
    ]
    assert len(keys) == 4 * 2 + 1


def test_the_long_schedule_waits_for_the_short_one_to_be_finished(voc320: Request) -> None:
    write(finished(voc320, ap={0.01: result(30.0)}), voc320)
    with pytest.raises(ConfigError, match=r"rankdet reproduce rates-retinanet --scale"):
        RETINANET_LONG.plan(voc320)


def test_a_record_whose_settings_were_changed_is_named(voc320: Request) -> None:
    record = finished(voc320)
    record["rows"]["AP-Loss: 0.01"]["settings"] = [1]
    file = write(record, voc320)
    with pytest.raises(RankdetError, match=rf"{file}: a row .* is not as it was written"):
        RETINANET_LONG.plan(voc320)


# Which one is chosen.


def test_the_best_rate_of_each_loss_is_chosen_by_ap(voc320: Request) -> None:
    ap = {rate: result(rate) for rate in AP_OF_RATES}
    record = finished(voc320, ap=ap)
    assert rates.chosen_rates(record) == {"ohem": 0.005, "focal": 0.005, "auc": 0.005, "ap": 0.02}


def test_of_equally_good_rates_the_lower_one_is_chosen(voc320: Request) -> None:
    equal = {0.02: result(30.0), 0.01: result(30.0), 0.005: result(30.0), 0.0025: result(29.9)}
    record = finished(voc320, focal=equal)
    record["plan"].reverse()  # whatever the order
    assert rates.chosen_rates(record)["focal"] == 0.005


def test_rates_that_diverged_have_no_ap_or_were_not_run_are_passed_over(voc320: Request) -> None:
    auc = {0.0025: result(1.0), 0.005: result(None), 0.01: DIVERGED}
    ohem = dict.fromkeys(AP_OF_RATES, DIVERGED)
    chosen = rates.chosen_rates(finished(voc320, auc=auc, ohem=ohem, focal={}))
    assert chosen == {"auc": 0.0025, "ap": 0.005}


def test_a_rate_whose_row_failed_is_passed_over(voc320: Request) -> None:
    record = finished(voc320)
    del record["rows"]["AP-Loss: 0.005"]["result"]
    record["rows"]["AP-Loss: 0.005"]["error"] = "not finite"
    assert rates.chosen_rates(record)["ap"] == 0.01


# Who takes it.


def test_without_a_record_the_rates_are_the_scale_s_own(
    voc320: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"ap": 0.004, "focal": 0.003}  # others have that of AP-loss
    monkeypatch.setitem(scales.LEARNING_RATES, "ssd", own)
    expected = {"ohem": 0.004, "focal": 0.003, "auc": 0.004, "ap": 0.004}
    assert rates.best_rates(SSD, voc320)[0] == expected
    smoke, chosen_by = rates.best_rates(RETINANET, replace(voc320, scale="smoke"))
    assert chosen_by.startswith("those of the scale, since the folder has no record of")
    assert smoke == pytest.approx(dict.fromkeys(LOSSES.values(), 0.0015))


def test_with_a_finished_record_the_rates_are_those_it_chose(voc320: Request) -> None:
    write(finished(voc320, ap={**dict.fromkeys(AP_OF_RATES, DIVERGED), 0.01: result(2.0)}), voc320)
    expected = {"ohem": 0.005, "focal": 0.005, "auc": 0.005, "ap": 0.01}
    chosen, chosen_by = rates.best_rates(RETINANET, voc320)
    assert chosen == expected
    assert chosen_by == "chosen by `rates-retinanet` on images held out of the training split"
    assert rates.best_rates(SSD, voc320)[0] != expected  # it has a record of its own


def test_the_long_schedule_takes_its_own_choice_or_else_that_of_the_short_one(
    voc320: Request,
) -> None:
    write(finished(voc320), voc320)
    short = dict.fromkeys(LOSSES.values(), 0.005)
    assert rates.best_rates(RETINANET_LONG, voc320)[0] == short
    results = {row.key: result(10.0) for row in RETINANET_LONG.plan(voc320)}
    results["AP-Loss: 0.01"] = result(11.0)
    write(record_of(results, voc320, RETINANET_LONG), voc320, RETINANET_LONG)
    assert rates.best_rates(RETINANET_LONG, voc320)[0] == {**short, "ap": 0.01}
    assert rates.best_rates(RETINANET, voc320)[0] == short


def test_a_record_of_another_scale_is_refused(voc320: Request) -> None:
    file = write(finished(voc320), voc320)
    with pytest.raises(ConfigError) as caught:
        rates.best_rates(RETINANET, replace(voc320, scale="smoke"))
    for words in (str(file), "scale voc320", "of smoke", "--out"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ("detector.backbone=resnet18", "detector.backbone was 'resnet50', now 'resnet18'"),
        ("training.epochs=9", "training.epochs was 6, now 9"),
        ("loss.box_weight=2", "loss.box_weight was 1.0, now 2.0"),
        ("data.augmentation=flip", "data.augmentation was 'ssd', now 'flip'"),
    ],
)
def test_rates_that_were_tried_with_other_settings_choose_nothing(
    change: str, difference: str, voc320: Request
) -> None:
    write(finished(voc320), voc320)
    other = replace(voc320, changes=(change,))
    for tuning in (RETINANET, RETINANET_LONG):  # the second takes the choice of the first
        with pytest.raises(ConfigError) as caught:
            rates.best_rates(tuning, other)
        assert "its learning rates were tried with other settings: " in str(caught.value)
        assert difference in str(caught.value)


@pytest.mark.parametrize("change", ["evaluation.nms_iou=0.6", "evaluation.every=2"])
def test_how_it_is_evaluated_makes_no_other_rate_the_best(change: str, voc320: Request) -> None:
    write(finished(voc320), voc320)
    assert rates.best_rates(RETINANET, replace(voc320, changes=(change,)))[0]["ap"] == 0.005


@pytest.mark.parametrize(
    ("item", "tuning", "loss", "row"),
    [
        ("rois", FASTER_RCNN, "ce", "Faster: 512"),
        ("rois", FASTER_RCNN, "ap", "Faster+AP-Loss: 4096"),
        ("ghm-dr", GHM_DR, "dr", "VOC2012: RetinaNet500+DR-loss_fixed"),
    ],
)
def test_a_comparison_takes_the_rates_that_were_chosen_for_it(
    item: str, tuning: Rates, loss: str, row: str, voc320: Request
) -> None:
    def planned() -> Config:
        return {one.key: one.trainings[0] for one in experiment(item).plan(voc320)}[row]

    usual = planned()
    best = {"ce": 0.0025, "ap": 0.02, "ghm": 0.01, "dr": 0.005}
    results = {
        key: result(30.0 if f": {best[one]:g}" in key else 10.0)
        for name, one in tuning.losses.items()
        for key in (f"{name}: {rate:g}" for rate in AP_OF_RATES)
    }
    write(record_of(results, voc320, tuning), voc320, tuning)
    tuned = planned()
    assert tuned.training.learning_rate == best[loss]
    assert tuned.training.reference_batch_size == tuned.training.batch_size == 32
    assert replace(tuned, training=usual.training) == usual
    results.popitem()
    write(record_of(results, voc320, tuning), voc320, tuning)
    with pytest.raises(ConfigError, match=f"Go on with it first: rankdet reproduce {tuning.name}"):
        planned()


def test_a_record_that_is_not_finished_is_refused_with_the_command_to_go_on(
    voc320: Request,
) -> None:
    record = finished(voc320, auc={0.0025: result(1.0)})
    row = record["rows"]["AP-Loss: 0.02"]
    record["rows"]["AP-Loss: 0.02"] = {"settings": row["settings"], "error": "not finite"}
    file = write(record, voc320)
    with pytest.raises(ConfigError) as caught:
        rates.best_rates(RETINANET, voc320)
    missing = "AUC-Loss: 0.005, AUC-Loss: 0.01, AUC-Loss: 0.02, AP-Loss: 0.02."
    command = f"rankdet reproduce rates-retinanet --scale voc320 --out {voc320.out}"
    for words in (f"{file}: it is not finished", f"missing: {missing}", command, "--voc"):
        assert words in str(caught.value)


def test_a_loss_that_diverged_at_every_rate_is_told_and_not_called_unfinished(
    voc320: Request,
) -> None:
    file = write(finished(voc320, auc=dict.fromkeys(AP_OF_RATES, DIVERGED)), voc320)
    with pytest.raises(ConfigError) as caught:
        rates.best_rates(RETINANET, voc320)
    for words in (str(file), "of AUC-Loss: ", "diverged", "--out"):
        assert words in str(caught.value)
    assert "not finished" not in str(caught.value)  # to go on with it would change nothing


# What is shown.


def test_the_table_has_every_rate_and_marks_the_one_that_is_chosen(voc320: Request) -> None:
    lines = RETINANET.markdown(finished(voc320)).splitlines()
    assert "| training loss | learning rate | AP | AP50 | AP75 | choice by AP |" in lines
    assert "| AP-Loss | 0.0025 | 10.0 | 50.0 | 25.0 |  |" in lines
    assert "| AP-Loss | 0.005 | 30.0 | 50.0 | 25.0 | chosen |" in lines
    assert sum("chosen" in line for line in lines) == 4
    assert not any("edge" in line for line in lines)


@pytest.mark.parametrize("rate", [0.0025, 0.02])
def test_the_table_says_that_a_choice_lies_at_the_edge(rate: float, voc320: Request) -> None:
    focal = {one: result(40.0 if one == rate else 1.0) for one in AP_OF_RATES}
    lines = RETINANET.markdown(finished(voc320, focal=focal)).splitlines()
    mark = "chosen, **at the edge of what was tried**"
    assert f"| Focal Loss | {rate:g} | 40.0 | 50.0 | 25.0 | {mark} |" in lines
    assert sum("at the edge" in line for line in lines) == 1


def test_rates_that_are_all_alike_have_no_edge(voc320: Request) -> None:
    focal = {one: result(1.0) for one in AP_OF_RATES}
    lines = RETINANET.markdown(finished(voc320, focal=focal)).splitlines()
    mark = "chosen, level with 0.005, 0.01, 0.02"
    assert f"| Focal Loss | 0.0025 | 1.0 | 50.0 | 25.0 | {mark} |" in lines


def test_the_table_says_which_rates_are_level_with_the_one_that_is_chosen(voc320: Request) -> None:
    """By the numbers that it shows: the rest of their digits chose."""
    focal = {0.0025: 1.0, 0.005: 29.96, 0.01: 30.04, 0.02: 29.9}
    focal_results = {rate: result(ap) for rate, ap in focal.items()}
    lines = RETINANET.markdown(finished(voc320, focal=focal_results)).splitlines()
    assert "| Focal Loss | 0.01 | 30.0 | 50.0 | 25.0 | chosen, level with 0.005 |" in lines
    assert "| Focal Loss | 0.005 | 30.0 | 50.0 | 25.0 |  |" in lines


def test_nothing_is_chosen_while_a_rate_of_the_loss_waits(voc320: Request) -> None:
    results = {"AP-Loss: 0.005": result(2.0), "AP-Loss: 0.01": result(3.0)}
    lines = RETINANET.markdown(record_of(results, voc320)).splitlines()
    assert "| AP-Loss | 0.01 | 3.0 | 50.0 | 25.0 | best so far |" in lines
    assert not any("chosen" in line for line in lines)


def test_a_rate_that_diverged_is_beyond_the_edge(voc320: Request) -> None:
    ap = {0.0025: result(1.0), 0.005: result(2.0), 0.01: result(3.0), 0.02: DIVERGED}
    lines = RETINANET.markdown(finished(voc320, ap=ap)).splitlines()
    assert "| AP-Loss | 0.01 | 3.0 | 50.0 | 25.0 | chosen |" in lines
    assert "| AP-Loss | 0.02 | diverged | – | – |  |" in lines


def test_each_of_two_rates_is_at_the_edge_of_what_was_tried(voc320: Request) -> None:
    write(finished(voc320), voc320)
    rows = RETINANET_LONG.plan(voc320)
    results = {row.key: result(10.0 + number) for number, row in enumerate(rows)}
    lines = RETINANET_LONG.markdown(record_of(results, voc320, RETINANET_LONG)).splitlines()
    (chosen,) = (line for line in lines if line.startswith("| AUC-Loss") and "chosen" in line)
    assert chosen.endswith("chosen, **at the edge of what was tried** |")


def test_the_page_says_how_long_and_on_what_was_trained(voc320: Request, tmp_path: Path) -> None:
    text = RETINANET.markdown(finished(voc320))
    assert "Trained on train (without held-out 10 %), judged on train (held-out 10 %)." in text
    assert "6 epochs, 32 images in a step" in text
    smoke = Request("smoke", tmp_path)
    key = SSD.plan(smoke)[0].key
    text = SSD.markdown(record_of({key: result(1.0)}, smoke, SSD))
    assert "judged on train:16 (held-out 30 %)." in text
    assert "1 epoch, 8 images in a step" in text


def drawn_by(record: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The axes of the figure of a record."""
    kept: list[Any] = []
    monkeypatch.setattr(rates, "save_figure", lambda figure, path: kept.append(figure))
    RETINANET.figure(record, Path("unused.png"))
    (axes,) = kept[0].axes
    return axes


def test_the_figure_has_a_line_for_each_loss_without_what_diverged(
    voc320: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    ap = {0.01: result(3.0), 0.0025: result(1.0), 0.005: result(2.0), 0.02: DIVERGED}
    axes = drawn_by(finished(voc320, ap=ap), monkeypatch)
    lines = {line.get_label(): line for line in axes.lines if line.get_label() in LOSSES}
    assert list(lines) == list(LOSSES)
    assert lines["AP-Loss"].get_xydata().tolist() == [[0.0025, 1.0], [0.005, 2.0], [0.01, 3.0]]
    assert [len(line.get_xdata()) for line in lines.values()] == [4, 4, 4, 3]
    assert axes.lines[-1].get_xydata().tolist() == [[0.01, 3.0]]  # the one that is chosen
    assert axes.get_xscale() == "log"


def test_the_figure_and_the_page_of_what_has_begun(
    voc320: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = record_of({"Focal Loss: 0.01": result(7.0)}, voc320)
    axes = drawn_by(begun, monkeypatch)
    assert [line.get_xydata().tolist() for line in axes.lines if len(line.get_xdata())] == [
        [[0.01, 7.0]],
        [[0.01, 7.0]],
    ]
    assert "Not run yet: CE-Loss + OHEM: 0.0025, " in RETINANET.markdown(begun)
    empty = record_of({}, voc320)
    assert not any(len(line.get_xdata()) for line in drawn_by(empty, monkeypatch).lines)
    assert "Not run yet: CE-Loss + OHEM: 0.0025, " in RETINANET.markdown(empty)


# A training that does not survive its rate.


def test_a_training_that_diverges_is_a_row_that_says_so_and_is_not_tried_again(
    voc320: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, float]] = []

    def outcome(config: Config, request: Request) -> dict[str, Any]:
        calls.append((config.loss.name, config.training.learning_rate))
        if calls[-1] == ("ap", 0.02):
            raise TrainingError("step 7: the loss is not finite")
        return result(20.0 + 100 * config.training.learning_rate)

    monkeypatch.setattr(rates, "outcome", outcome)
    reproduce(experiment(RETINANET.name), voc320)  # and no error at the end
    assert len(calls) == 16
    record = read_record(voc320.out / "rates-retinanet.json")
    row = record["rows"]["AP-Loss: 0.02"]
    assert row["result"] == {"metrics": None, "diverged": "step 7: the loss is not finite"}
    assert "error" not in row
    text = (voc320.out / "rates-retinanet.md").read_text(encoding="utf-8")
    assert "| AP-Loss | 0.02 | diverged | – | – |  |" in text
    assert "Failed" not in text
    reproduce(experiment(RETINANET.name), voc320)
    assert len(calls) == 16
    expected = {"ohem": 0.02, "focal": 0.02, "auc": 0.02, "ap": 0.01}
    assert rates.best_rates(RETINANET, voc320)[0] == expected
