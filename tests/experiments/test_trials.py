"""One setting changed at a time: that it is one, on which images it is judged, and its table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankdet.experiments import rates, trials
from rankdet.experiments.comparison import LOSSES
from rankdet.experiments.experiment import Request, reproduce
from rankdet.experiments.record import SCALES, read_record
from rankdet.experiments.trials import (
    EXPERIMENT,
    LONG_EXPERIMENT,
    LONG_TRIALS,
    SHORT_TRIALS,
    USUAL,
    Trials,
)

TRIALS, markdown = SHORT_TRIALS.trials, SHORT_TRIALS.markdown
both_schedules = pytest.mark.parametrize("tried", [SHORT_TRIALS, LONG_TRIALS])


@pytest.fixture
def voc320(tmp_path: Path) -> Request:
    return Request("voc320", tmp_path, voc="VOC2012")


def flat(settings: dict[str, Any], name: str = "") -> dict[str, Any]:
    """
    >>> flat({"a": {"b": 1}})
    {'a.b': 1}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        inner = f"{name}.{key}" if name else key
        found |= flat(value, inner) if isinstance(value, dict) and value else {inner: value}
    return found


def record_of(results: dict[str, float], request: Request) -> dict[str, Any]:
    """A record in which these trials are finished; AP50 and AP75 are 30 and 1 above AP."""
    settings = {row.key: json.loads(json.dumps(row.settings)) for row in EXPERIMENT.plan(request)}
    return {
        "item": "trials",
        "labels": [],
        "request": request.settings(),
        "plan": list(settings),
        "rows": {
            key: {
                "settings": settings[key],
                "result": {"metrics": {"AP": ap, "AP50": ap + 30, "AP75": ap + 1}},
            }
            for key, ap in results.items()
        },
    }


@both_schedules
@pytest.mark.parametrize("scale", SCALES)
def test_every_loss_is_tried_as_usual_first(scale: str, tried: Trials) -> None:
    rows = tried.plan(Request(scale, Path("out"), voc="VOCdevkit"))
    assert len({row.key for row in rows}) == len(rows) == len(tried.trials)
    seen = set()
    for trial in tried.trials:
        assert trial.change == USUAL or trial.loss in seen
        seen.add(trial.loss)
    assert seen <= set(LOSSES)


def test_all_losses_are_tried_in_the_short_schedule() -> None:
    assert {trial.loss for trial in TRIALS} == set(LOSSES)


@both_schedules
def test_a_trial_differs_from_the_usual_in_as_many_settings_as_it_names(
    voc320: Request, tried: Trials
) -> None:
    settings = {row.key: flat(dict(row.settings["config"])) for row in tried.plan(voc320)}
    for trial in tried.trials:
        usual, changed = settings[f"{trial.loss}: {USUAL}"], settings[trial.key]
        names = {*usual, *changed} - {"loss.settings"}  # which is there when it is empty alone
        different = {name for name in names if usual.get(name) != changed.get(name)}
        num_named = 0 if trial.change == USUAL else 1 + trial.change.count(", ")
        assert len(different) == num_named, trial.key


@both_schedules
def test_the_usual_training_is_that_of_the_learning_rates(voc320: Request, tried: Trials) -> None:
    tuned = [row.trainings[0] for row in tried.rates.plan(voc320)]
    usual = [row.trainings[0] for row in tried.plan(voc320) if row.key.endswith(USUAL)]
    assert len(usual) == len({trial.loss for trial in tried.trials})
    assert all(config in tuned for config in usual)


def test_the_long_schedule_has_the_rates_that_were_chosen_for_it(
    voc320: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def chosen(tuning: rates.Rates, _: Request) -> tuple[dict[str, float], str]:
        asked.append(tuning)
        return {"ap": 0.03, "ohem": 0.002, "focal": 0.05, "auc": 0.1}, "by a test"

    monkeypatch.setattr(trials, "best_rates", chosen)
    found = {row.key: row.trainings[0].training for row in LONG_EXPERIMENT.plan(voc320)}
    assert asked == [rates.RETINANET_LONG]
    assert {training.epochs for training in found.values()} == {18}
    assert found["AP-Loss: as usual"].learning_rate == 0.03
    assert found["CE-Loss + OHEM: flips alone"].learning_rate == 0.002
    class_weight = found["AP-Loss: learning rate times 2, box loss times 0.5"]
    assert class_weight.learning_rate == 0.06


@both_schedules
def test_the_validation_split_chooses_nothing(voc320: Request, tried: Trials) -> None:
    for row in tried.plan(voc320):
        data = row.trainings[0].data
        assert (data.train_split, data.hold_out, data.val_split) == ("train", 0.1, None)


def test_another_threshold_is_tried_on_the_training_as_it_is(voc320: Request) -> None:
    rows = {row.key: row for row in EXPERIMENT.plan(voc320)}
    usual, other = rows["AP-Loss: as usual"], rows["AP-Loss: score threshold 0"]
    assert other.trainings == usual.trainings
    assert other.settings["config"]["evaluation"]["score_threshold"] == 0.0
    assert (usual.is_outcome, other.is_outcome) == (True, False)


def test_the_threshold_is_that_of_the_evaluation(tmp_path: Path) -> None:
    request = Request("smoke", tmp_path, device="cpu", rows=("AP-Loss: score threshold",))
    reproduce(EXPERIMENT, request)
    record = read_record(tmp_path / "trials.json")
    assert len(record["rows"]) == 2
    (run,) = {row["result"]["run"] for row in record["rows"].values()}
    for name, threshold in (("0", 0.0), ("0.05", 0.05)):
        file = tmp_path / "runs" / run / f"results-score-threshold-{name}.json"
        results = json.loads(file.read_text(encoding="utf-8"))
        assert results["config"]["evaluation"]["score_threshold"] == threshold
        recorded = record["rows"][f"AP-Loss: score threshold {name}"]["result"]["metrics"]
        assert recorded == results["metrics"]


def test_the_table_has_rate_and_numbers_of_every_trial(voc320: Request) -> None:
    results = {"AP-Loss: as usual": 20.0, "AUC-Loss: twice the learning rate": 22.5}
    record = record_of(results, voc320)
    diverged = {"metrics": None, "diverged": "the loss is not finite"}
    same_settings = {**record["rows"]["AP-Loss: as usual"], "result": diverged}
    record["rows"]["AP-Loss: no warm-up"] = same_settings
    lines = markdown(record).splitlines()
    assert "| training loss | change | learning rate | AP | AP50 | AP75 |" in lines
    assert "| AP-Loss | as usual | 0.01 | 20.0 | 50.0 | 21.0 |" in lines
    assert "| AUC-Loss | twice the learning rate | 0.04 | 22.5 | 52.5 | 23.5 |" in lines
    assert "| AP-Loss | no warm-up (the usual here) | 0.01 | diverged | – | – |" in lines
    assert "| Focal Loss | flips alone | – | not run | – | – |" in lines


def test_each_page_is_about_its_schedule(voc320: Request) -> None:
    for tried, words in ((SHORT_TRIALS, "the short schedule"), (LONG_TRIALS, "the long schedule")):
        text = tried.markdown(record_of({"AP-Loss: as usual": 20.0}, voc320))
        assert words in text
        assert f"`{tried.rates.name}`" in text


def test_a_trial_that_is_newer_than_the_record_was_not_run(voc320: Request) -> None:
    record = record_of({"AP-Loss: as usual": 20.0}, voc320)
    record["plan"] = ["AP-Loss: as usual"]
    text = markdown(record)
    assert "| AP-Loss | no warm-up | – | not run | – | – |" in text.splitlines()
    assert f" 1 of {len(TRIALS)} rows." in text
    rows = {trial.key: f"| {trial.loss} | {trial.change} | – | not run |" for trial in TRIALS}
    assert [key for key, row in rows.items() if row not in text] == ["AP-Loss: as usual"]
    assert f" and {len(TRIALS) - 1 - 8} more." in text.partition("Not run yet: ")[2]


def test_a_change_that_the_detector_does_not_look_at_is_the_usual_training(
    voc320: Request, tmp_path: Path
) -> None:
    """The small network of the other scales has a start of its own."""
    change = "AP-Loss: pyramid as torchvision's"
    results = {"AP-Loss: as usual": 20.0, change: 20.0}
    for request, is_same in ((Request("smoke", tmp_path), True), (voc320, False)):
        text = markdown(record_of(results, request))
        assert ("| pyramid as torchvision's (the usual here) |" in text) == is_same


def test_the_figure_has_a_bar_for_each_trial_that_was_run(
    voc320: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(trials, "save_figure", lambda drawn, path: kept.append(drawn))
    record = record_of({"AP-Loss: as usual": 20.0, "Focal Loss: flips alone": 9.0}, voc320)
    record["rows"]["Focal Loss: flips alone"]["result"]["metrics"] = None  # diverged
    EXPERIMENT.figure(record, Path("figure.png"))
    (axes,) = kept[0].axes
    assert [bar.get_width() for bar in axes.patches] == [20.0, 0.0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["AP-Loss: as usual", "Focal Loss: flips alone"]


def test_a_trial_has_the_last_word_before_the_user_s_settings(voc320: Request) -> None:
    changed = replace(voc320, changes=("loss.box_weight=3", "training.epochs=2"))
    configs = {row.key: row.trainings[0] for row in EXPERIMENT.plan(changed)}
    assert configs["AP-Loss: as usual"].loss.box_weight == 3
    assert configs["AP-Loss: box loss times 2"].loss.box_weight == 2
    assert {config.training.epochs for config in configs.values()} == {2}
