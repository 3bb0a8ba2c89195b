"""The four losses over seeds and schedules: what is trained, and what the tables make of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankdet.config import Config
from rankdet.errors import ConfigError, TrainingError
from rankdet.experiments import evidence, rates
from rankdet.experiments.arms import run_folder
from rankdet.experiments.comparison import LOSSES
from rankdet.experiments.evidence import (
    RETINANET,
    RETINANET_FLIPS,
    RETINANET_LONGEST,
    SSD,
    Evidence,
    lead_text,
    values_of,
)
from rankdet.experiments.experiment import Request, reproduce
from rankdet.experiments.items import experiment
from rankdet.experiments.record import read_record
from rankdet.experiments.schedules import schedules
from rankdet.experiments.seed_statistics import welch_interval

CHOSEN = {
    "short": {"ohem": 0.01, "focal": 0.02, "auc": 0.005, "ap": 0.0025},
    "long": {"ohem": 0.001, "focal": 0.002, "auc": 0.0005, "ap": 0.00025},
}


@pytest.fixture
def voc320(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    """At voc320, with a learning rate of its own for each schedule and loss."""
    monkeypatch.setattr(
        rates, "best_rates", lambda tuning, request: (CHOSEN[tuning.schedule], "chosen")
    )
    return Request("voc320", tmp_path, voc="VOC2012")


def result(ap: float, ap50: float = 50.0) -> dict[str, Any]:
    """An outcome whose AP and AP50 were 0, half and all of these after 1, 2 and 4 epochs."""
    return {
        "metrics": {"AP": ap, "AP50": ap50, "AP75": ap / 2},
        "curve": [
            {"step": 156 * epoch, "epoch": epoch, "AP": share * ap, "AP50": share * ap50}
            for epoch, share in ((1, 0.0), (2, 0.5), (4, 1.0))
        ],
    }


def record_of(
    results: Mapping[str, Any],
    request: Request,
    *,
    errors: tuple[str, ...] = (),
    item: Evidence = RETINANET,
) -> dict[str, Any]:
    """A record in which these rows are finished, or failed; the others were not run yet."""
    settings = {row.key: json.loads(json.dumps(row.settings)) for row in item.plan(request)}
    rows = {key: {"settings": settings[key], "result": value} for key, value in results.items()}
    rows |= {key: {"settings": settings[key], "error": "not finite"} for key in errors}
    return {
        "rankdet_reproduction": 1,
        "item": item.name,
        "labels": [evidence.LABEL],
        "request": request.settings(),
        "plan": list(settings),
        "rows": rows,
    }


def seeds_of(name: str, values: list[float], schedule: str = "short") -> dict[str, Any]:
    """The rows of the first seeds of a loss, with these AP."""
    return {f"{schedule}: {name}: seed {seed}": result(ap) for seed, ap in enumerate(values)}


# What is trained.


def test_what_is_finished_first_has_one_seed_of_each_loss(voc320: Request) -> None:
    keys = [row.key for row in RETINANET.plan(replace(voc320, seed=5, seeds=2))]
    losses = ["CE-Loss + OHEM", "Focal Loss", "AUC-Loss", "AP-Loss"]
    assert keys == [
        *[f"short: {loss}: seed 5" for loss in losses],
        *[f"short: {loss}: seed 6" for loss in losses],
        *[f"long: {loss}: seed 5" for loss in losses],
        *[f"long: {loss}: seed 6" for loss in losses],
    ]


@pytest.mark.parametrize("item", [RETINANET, RETINANET_FLIPS, SSD])
def test_a_row_is_trained_as_its_key_says(item: Evidence, voc320: Request) -> None:
    lengths = {"short": (6, (4.2, 5.4), 1), "long": (18, (12.6, 16.2), 2)}
    for row in item.plan(voc320):
        config = row.trainings[0]
        schedule, name, seed = row.key.split(": ")
        training, every = config.training, config.evaluation.every
        assert (training.epochs, training.milestones, every) == lengths[schedule]
        assert config.loss.name == LOSSES[name]
        assert training.learning_rate == CHOSEN[schedule][config.loss.name]
        assert training.batch_size == training.reference_batch_size == 32
        assert f"seed {config.seed}" == seed
        assert config.detector.name == ("ssd" if item is SSD else "retinanet")
        data = config.data
        assert (data.train_split, data.val_split, data.hold_out) == ("train", "val", None)
        assert row.settings["config"]["seed"] == config.seed
        assert row.is_outcome


@pytest.mark.parametrize("item", [RETINANET, RETINANET_FLIPS, SSD])
def test_losses_differ_in_nothing_but_their_settings_and_learning_rates(
    item: Evidence, voc320: Request
) -> None:
    groups: dict[tuple[int, int], list[Config]] = {}
    for row in item.plan(voc320):
        config = row.trainings[0]
        groups.setdefault((config.training.epochs, config.seed), []).append(config)
    assert [len(group) for group in groups.values()] == [4] * 6
    for first, *others in groups.values():
        for other in others:
            assert other.training.learning_rate != first.training.learning_rate
            training = replace(other.training, learning_rate=first.training.learning_rate)
            assert replace(other, loss=first.loss, training=training) == first


def test_flips_and_the_other_first_weights_are_all_that_differs_from_the_scale_s_settings(
    voc320: Request,
) -> None:
    for usual, row in zip(RETINANET.plan(voc320), RETINANET_FLIPS.plan(voc320), strict=True):
        expected, config = usual.trainings[0], row.trainings[0]
        assert (expected.data.augmentation, config.data.augmentation) == ("ssd", "flip")
        data = replace(expected.data, augmentation="flip")
        detector = replace(expected.detector, pyramid_start="torchvision", head_start="kaiming")
        assert config == replace(expected, data=data, detector=detector)


def test_the_focal_loss_of_ssd_has_the_paper_s_settings(voc320: Request) -> None:
    losses = [row.trainings[0].loss for row in SSD.plan(voc320)]
    focal = [dict(loss.settings) for loss in losses if loss.name == "focal"]
    assert focal == [{"gamma": 1.0, "alpha": 0.25}] * 6


def test_no_two_rows_share_a_training(voc320: Request) -> None:
    folders = {run_folder(row.trainings[0], voc320) for row in RETINANET.plan(voc320)}
    assert len(folders) == 24


def test_the_user_has_the_last_word(voc320: Request) -> None:
    changes = ("training.epochs=3", "training.learning_rate=0.5")
    for row in RETINANET.plan(replace(voc320, changes=changes)):
        training = row.trainings[0].training
        assert (training.epochs, training.learning_rate) == (3, 0.5)


def test_the_learning_rates_are_those_that_the_records_of_rates_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"ohem": 0.0005, "focal": 0.001, "auc": 0.002, "ap": 0.001}
    long = {"ohem": 0.001, "focal": 0.002, "auc": 0.001, "ap": 0.0005}  # second in the short one
    best, second = short, long

    def outcome(config: Config, request: Request) -> dict[str, Any]:
        rate, loss = config.training.learning_rate, config.loss.name
        return {"metrics": {"AP": 30.0 + 2 * (rate == best[loss]) + (rate == second[loss])}}

    def learning_rates() -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {"short": {}, "long": {}}
        for row in SSD.plan(request):
            config = row.trainings[0]
            found[row.key.partition(":")[0]][config.loss.name] = config.training.learning_rate
        return found

    monkeypatch.setattr(rates, "outcome", outcome)
    request = Request("voc320", tmp_path, voc="VOC2012", seeds=1)
    reproduce(experiment("rates-ssd"), request)
    assert learning_rates() == {"short": short, "long": short}
    best, second = long, short
    reproduce(experiment("rates-ssd-long"), request)
    assert learning_rates() == {"short": short, "long": long}
    with pytest.raises(ConfigError, match=r"rates-ssd\.json"):
        SSD.plan(replace(request, scale="smoke"))


def test_more_seeds_keep_the_rows_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def outcome(config: Config, request: Request) -> dict[str, Any]:
        calls.append(config.seed)
        return result(30.0 + len(calls))

    monkeypatch.setattr(evidence, "outcome", outcome)
    request = Request("smoke", tmp_path, seeds=1)
    before = reproduce(experiment(RETINANET.name), request)["rows"]
    assert calls == [0] * 8
    record = reproduce(experiment(RETINANET.name), replace(request, seeds=3))
    assert calls == [0] * 8 + [1] * 4 + [2] * 4 + [1] * 4 + [2] * 4
    assert len(record["rows"]) == 24
    assert {key: record["rows"][key] for key in before} == before
    assert record == read_record(tmp_path / "evidence-retinanet.json")


def test_a_training_that_diverges_is_a_failed_seed_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome(config: Config, request: Request) -> dict[str, Any]:
        if (config.loss.name, config.seed) == ("auc", 1):
            raise TrainingError("the loss is not finite")
        return result(30.0)

    monkeypatch.setattr(evidence, "outcome", outcome)
    with pytest.raises(TrainingError, match=r"2 rows of 16 failed.*AUC-Loss: seed 1"):
        reproduce(experiment(RETINANET.name), Request("smoke", tmp_path, seeds=2))
    text = (tmp_path / "evidence-retinanet.md").read_text(encoding="utf-8")
    assert "| 1 of 2, 1 failed | 30.00 |" in text


# The tables, by hand.


def test_values_are_those_of_the_last_evaluations_of_the_seeds(voc320: Request) -> None:
    results = seeds_of("AP-Loss", [30.0, 32.0]) | seeds_of("AP-Loss", [40.0], "long")
    results["short: AP-Loss: seed 2"] = {**result(1.0), "metrics": None}
    results |= seeds_of("Focal Loss", [20.0])
    record = record_of(results, voc320)
    assert values_of(record, "short", "AP-Loss", "AP") == [30.0, 32.0]
    assert values_of(record, "short", "AP-Loss", "AP75") == [15.0, 16.0]
    assert values_of(record, "long", "AP-Loss", "AP") == [40.0]
    assert values_of(record, "long", "Focal Loss", "AP") == []


def test_an_accuracy_is_the_mean_over_the_seeds_and_their_deviation(voc320: Request) -> None:
    results = seeds_of("AP-Loss", [30.0, 31.0, 32.0]) | seeds_of("Focal Loss", [27.0, 29.0, 31.0])
    lines = RETINANET.accuracy_table(record_of(results, voc320), "short").splitlines()
    heading = "| training loss | learning rate | seeds | AP | paper | AP50 | paper | AP75 | paper |"
    assert lines[0] == heading
    numbers = "**31.00** ± 1.00 | 53.1 | 50.00 ± 0.00 | 82.3 | **15.50** ± 0.50 | 58.1 |"
    assert lines[-1] == f"| AP-Loss | 0.0025 | 3 | {numbers}"
    numbers = "29.00 ± 2.00 | 51.3 | 50.00 ± 0.00 | 80.9 | 14.50 ± 1.00 | 55.3 |"
    assert lines[3] == f"| Focal Loss | 0.02 | 3 | {numbers}"


def test_the_accuracies_of_ssd_stand_beside_those_of_the_paper_s_ssd(voc320: Request) -> None:
    record = record_of(seeds_of("AP-Loss", [30.0]), voc320, item=SSD)
    line = SSD.accuracy_table(record, "short").splitlines()[-1]
    assert line == "| AP-Loss | 0.0025 | 1 of 3 | 30.00 | 45.2 | 50.00 | 77.3 | 15.00 | 47.3 |"


def test_seeds_that_are_not_run_yet_or_failed_are_told(voc320: Request) -> None:
    results = seeds_of("AP-Loss", [30.0]) | seeds_of("Focal Loss", [29.0, 30.0])
    errors = ("short: Focal Loss: seed 2", "short: AUC-Loss: seed 0")
    record = record_of(results, voc320, errors=errors)
    lines = RETINANET.accuracy_table(record, "short").splitlines()
    assert lines[2].startswith("| CE-Loss + OHEM | – | 0 of 3 | – | 49.1 |")
    assert lines[3].startswith("| Focal Loss | 0.02 | 2 of 3, 1 failed | 29.50 ± 0.71 |")
    assert lines[4].startswith("| AUC-Loss | 0.005 | 0 of 3, 1 failed | – | 49.3 |")
    assert lines[5].startswith("| AP-Loss | 0.0025 | 1 of 3 | **30.00** | 53.1 |")


def test_a_difference_has_welch_s_interval_and_the_paper_s_beside_it(voc320: Request) -> None:
    results = seeds_of("AP-Loss", [30.0, 31.0, 32.0]) | seeds_of("Focal Loss", [27.0, 28.0, 29.0])
    results |= seeds_of("AUC-Loss", [33.5])
    lines = RETINANET.difference_table(record_of(results, voc320), "short").splitlines()
    assert lines[0] == "| AP-Loss less | AP | paper | AP50 | paper | AP75 | paper |"
    # t of 4 degrees of freedom is 2.7764, times sqrt(1 / 3 + 1 / 3): 2.27.
    numbers = "+3.00 ± 2.27 | +1.8 | +0.00 ± 0.00 | +1.4 | +1.50 ± 1.13 | +2.8 |"
    assert lines[3] == f"| Focal Loss | {numbers}"
    assert lines[4] == "| AUC-Loss | -2.50 | +3.8 | +0.00 | +2.6 | -1.25 | +6.3 |"
    assert lines[2] == "| CE-Loss + OHEM | – | +4.0 | – | +0.8 | – | +6.6 |"
    assert len(lines) == 5


def test_means_that_look_the_same_are_bold_together(voc320: Request) -> None:
    results = seeds_of("AP-Loss", [0.251]) | seeds_of("Focal Loss", [0.252])
    results |= seeds_of("AUC-Loss", [0.1])
    texts = evidence.accuracy_texts(record_of(results, voc320), "short")
    assert [texts[name, "AP"] for name in ("Focal Loss", "AUC-Loss", "AP-Loss")] == [
        *("**0.25**", "0.10", "**0.25**")
    ]
    assert texts["AP-Loss", "AP50"] == "50.00"


def test_an_interval_is_promised_only_where_there_is_one(voc320: Request) -> None:
    results = seeds_of("AP-Loss", [30.0]) | seeds_of("Focal Loss", [29.0])
    text = RETINANET.markdown(record_of(results, voc320))
    assert "\nAP-Loss less each other loss:\n" in text
    results = seeds_of("AP-Loss", [30.0, 31.0]) | seeds_of("Focal Loss", [29.0, 31.0])
    text = RETINANET.markdown(record_of(results, voc320))
    assert "less each other loss, with the 95 % interval of the difference:\n" in text


def test_a_difference_is_that_of_its_own_schedule(voc320: Request) -> None:
    ours, theirs = [40.0, 42.5, 41.0], [39.0, 43.0]
    results = seeds_of("AP-Loss", [1.0, 2.0]) | seeds_of("Focal Loss", [7.0, 9.0])
    results |= seeds_of("AP-Loss", ours, "long") | seeds_of("Focal Loss", theirs, "long")
    record = record_of(results, voc320)
    found = welch_interval(ours, theirs)
    assert found is not None
    expected = f"+{found[0]:.2f} ± {found[1]:.2f}"
    assert lead_text(record, "long", "Focal Loss", "AP") == expected
    assert lead_text(record, "short", "Focal Loss", "AP").startswith("-6.50 ± ")


@pytest.mark.parametrize(
    ("item", "other", "metric", "expected"),
    [
        (RETINANET, "Focal Loss", "AP", 53.1 - 51.3),
        (RETINANET, "CE-Loss + OHEM", "AP50", 82.3 - 81.5),
        (SSD, "Focal Loss", "AP", 45.2 - 39.3),
        (SSD, "AUC-Loss", "AP75", 47.3 - 31.5),
    ],
)
def test_the_paper_s_differences_are_those_of_its_table(
    item: Evidence, other: str, metric: str, expected: float
) -> None:
    assert item.paper_difference(other, metric) == pytest.approx(expected)


# The longest schedule.


def test_the_longest_schedule_is_three_times_the_long_one_and_an_item_of_its_own(
    voc320: Request,
) -> None:
    rows = RETINANET_LONGEST.plan(replace(voc320, seeds=2))
    assert len(rows) == 2 * len(LOSSES)
    assert {row.key.partition(":")[0] for row in rows} == {"longest"}
    for row in rows:
        config = row.trainings[0]
        assert (config.training.epochs, config.training.milestones) == (54, (37.8, 48.6))
        assert config.evaluation.every == 6
        assert config.training.learning_rate == CHOSEN["long"][config.loss.name]


def test_a_page_has_the_schedules_of_its_item_alone(voc320: Request) -> None:
    record = record_of({"longest: AP-Loss: seed 0": result(30.0)}, voc320, item=RETINANET_LONGEST)
    text = RETINANET_LONGEST.markdown(record)
    assert "## Longest schedule: 54 epochs" in text
    assert "hort schedule" not in text


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("evidence-retinanet", {"short": 6, "long": 18}),
        ("longest-retinanet", {"longest": 54}),
    ],
)
def test_what_was_recorded_has_the_schedules_of_now(item: str, expected: dict[str, int]) -> None:
    file = Path(__file__).parents[2] / "results" / "voc320" / f"{item}.json"
    rows = read_record(file)["rows"].items()
    found = {
        (key.partition(":")[0], row["settings"]["config"]["training"]["epochs"])
        for key, row in rows
    }
    assert found == set(expected.items())
    lengths = schedules("voc320", 12)
    assert all(lengths[name].epochs == epochs for name, epochs in expected.items())


# On the way.


def test_the_page_tells_when_aims_are_reached_and_by_how_many_seeds(voc320: Request) -> None:
    results = {
        "short: AP-Loss: seed 0": result(30.0, 52.0),  # 50 after 4 epochs
        "short: AP-Loss: seed 1": result(40.0, 120.0),  # 60 after 2
        "short: Focal Loss: seed 0": result(30.0, 50.0),
        "short: AUC-Loss: seed 0": result(30.0, 49.0),
    }
    lines = RETINANET.markdown(record_of(results, voc320)).splitlines()
    assert "| training loss | epochs until AP50 50 | epochs until AP50 60 |" in lines
    assert "| AP-Loss | 3.0 | 2.0 (1 of 2) |" in lines
    assert "| Focal Loss | 4.0 | – |" in lines
    assert "| AUC-Loss | – | – |" in lines
    assert "| CE-Loss + OHEM | – | – |" in lines


def test_the_page_tells_who_is_ahead_on_the_way(voc320: Request) -> None:
    results = seeds_of("AP-Loss", [30.0, 32.0]) | seeds_of("Focal Loss", [20.0])
    text = RETINANET.markdown(record_of(results, voc320))
    title = (
        "AP-Loss less each other loss, on the way (the learning rate falls after 4.2 and 5.4 "
        "epochs):\n\n| epochs | Focal Loss: AP | Focal Loss: AP50 |\n| --- | ---: | ---: |\n"
    )
    assert f"{title}| 1 | +0.0 | +0.0 |\n| 2 | +5.5 | +0.0 |\n| 4 | +11.0 | +0.0 |" in text
    alone = RETINANET.markdown(record_of(seeds_of("AP-Loss", [30.0]), voc320))
    assert "on the way (" not in alone


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"schedule": "one_cycle"}, "on the way:"),
        ({"epochs": 5}, "on the way (the learning rate falls after 4.2 epochs):"),
    ],
)
def test_the_page_names_only_falls_of_the_learning_rate_that_there_are(
    voc320: Request, changed: dict[str, Any], words: str
) -> None:
    record = record_of(seeds_of("AP-Loss", [30.0]) | seeds_of("Focal Loss", [20.0]), voc320)
    for row in record["rows"].values():
        row["settings"]["config"]["training"].update(changed)
    assert words in RETINANET.markdown(record)


# The page and the figure.


def test_the_page_has_a_part_for_each_schedule_and_says_what_is_missing(voc320: Request) -> None:
    results = seeds_of("AP-Loss", [30.0]) | seeds_of("AP-Loss", [40.0], "long")
    record = record_of(results, voc320, errors=("long: AP-Loss: seed 1",))
    text = RETINANET.markdown(record)
    short, long = text.index("## Short schedule: 6 epochs"), text.index("## Long schedule: 18 ep")
    assert short < text.index("| AP-Loss | 0.0025 | 1 of 3 | 30.00 |") < long
    assert long < text.index("| AP-Loss | 0.00025 | 1 of 3, 1 failed | 40.00 |")
    assert "Not run yet: short: CE-Loss + OHEM: seed 0, " in text
    assert "Failed: long: AP-Loss: seed 1." in text
    told = "- Learning rates of the {} schedule: chosen by `{}`, or those of the scale"
    assert told.format("short", "rates-retinanet") in text
    assert told.format("long", "rates-retinanet-long") in text
    assert "Paper: Comparison through different training losses." in text


def test_the_page_says_who_chose_the_learning_rates_of_a_schedule(voc320: Request) -> None:
    results = seeds_of("AP-Loss", [30.0, 31.0])
    for entry, words in zip(results.values(), ("chosen by x", "those of the scale"), strict=True):
        entry["learning_rate_from"] = words
    text = RETINANET.markdown(record_of(results, voc320))
    assert "- Learning rates of the short schedule: chosen by x; those of the scale." in text
    assert "of the long schedule" not in text


def test_the_figure_is_drawn_of_what_there_is(
    voc320: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(evidence, "save_figure", lambda figure, path: kept.append(figure))
    results = {
        "short: AP-Loss: seed 0": result(30.0, 60.0),
        "short: AP-Loss: seed 1": result(40.0, 64.0),
        "long: AUC-Loss: seed 0": result(20.0, 40.0),
    }
    RETINANET.figure(record_of(results, voc320), Path("unused.png"))
    panels = {axes.get_title(): axes for axes in kept[0].axes}
    assert list(panels) == [
        *("AP50, short schedule", "AP, short schedule"),
        *("AP50, long schedule", "AP, long schedule"),
    ]
    lines = {
        (title, line.get_label()): line.get_xydata().tolist()
        for title, axes in panels.items()
        for line in axes.lines
        if len(line.get_xdata())
    }
    assert lines == {
        ("AP50, short schedule", "AP-Loss"): [[1, 0], [2, 31], [4, 62]],
        ("AP, short schedule", "AP-Loss"): [[1, 0], [2, 17.5], [4, 35]],
        ("AP50, long schedule", "AUC-Loss"): [[1, 0], [2, 20], [4, 40]],
        ("AP, long schedule", "AUC-Loss"): [[1, 0], [2, 10], [4, 20]],
    }
    band = panels["AP, short schedule"].collections[-1].get_paths()[0].vertices.tolist()
    assert {(2.0, 15.0), (2.0, 20.0), (4.0, 30.0), (4.0, 40.0)} <= {(x, y) for x, y in band}


def test_a_record_without_any_row_has_a_page_and_a_figure(voc320: Request) -> None:
    empty = record_of({}, voc320)
    text = RETINANET.markdown(empty)
    assert "## Short schedule\n\nNot run yet.\n\n## Long schedule\n\nNot run yet." in text
    assert "| --- |" not in text
    RETINANET.figure(empty, voc320.out / "empty.png")
    assert (voc320.out / "empty.png").read_bytes().startswith(b"\x89PNG")
