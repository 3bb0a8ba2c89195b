"""paper.json holds the paper's numbers: rows typed by hand from its tables, and sums over them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankdet.experiments import items
from rankdet.experiments.paper import paper, paper_table, paper_value

METRICS = ("AP", "AP50", "AP75")
# (label, row, group, numbers in the order of the columns; None is a dash)
ROWS = [
    ("voc-minibatch-training", "1", None, [52.4, 80.2, 56.7]),
    ("voc-minibatch-training", "4", None, [52.8, 82.2, 58.0]),
    ("voc-minibatch-training", "8", None, [53.1, 82.3, 58.1]),
    ("voc-smoothing", "0.25", None, [50.2, 80.7, 53.6]),
    ("voc-smoothing", "0.5", None, [51.3, 81.6, 55.4]),
    ("voc-smoothing", "2", None, [52.8, 82.6, 57.2]),
    ("voc-smoothing", "4", None, [50.5, 80.2, 54.7]),
    ("voc-interpolated-ap", "No", None, [52.6, 82.2, 57.1]),
    ("voc-interpolated-ap", "Yes", None, [53.1, 82.3, 58.1]),
    ("base-loss", "CE-Loss + OHEM", None, [49.1, 81.5, 51.5, 30.8, 50.9, 32.6, 43.6, 76.0, 44.7]),
    ("base-loss", "Focal Loss", None, [51.3, 80.9, 55.3, 33.9, 55.0, 35.7, 39.3, 69.9, 38.0]),
    ("base-loss", "AUC-Loss", None, [49.3, 79.7, 51.8, 25.5, 44.9, 26.0, 33.8, 63.7, 31.5]),
    ("base-loss", "AP-Loss", None, [53.1, 82.3, 58.1, 35.0, 57.2, 36.6, 45.2, 77.3, 47.3]),
    ("base-loss-robustness", "CE-Loss+OHEM", None, [81.5, 63.1, 62.8, 77.0, 67.8, 65.5, 14.7]),
    ("base-loss-robustness", "AUC-Loss", None, [79.7, 61.9, 61.6, 75.9, 66.8, 63.7, 15.6]),
    ("base-loss-robustness", "AP-Loss", None, [82.3, 65.2, 65.2, 78.5, 68.9, 68.8, 16.4]),
    ("state-of-the-art-voc07", "YOLOv2", "One-Stage", [78.6] + [None] * 20),
    (
        *("state-of-the-art-voc07", "Faster", "Two-Stage"),
        [
            *[76.4, 79.8, 80.7, 76.2, 68.3, 55.9, 85.1, 85.3, 89.8, 56.7, 87.8],
            *[69.4, 88.3, 88.9, 80.9, 78.4, 41.7, 78.6, 79.8, 85.3, 72.0],
        ],
    ),
    (
        *("state-of-the-art-voc07", "AP-loss500", "One-Stage"),
        [
            *[83.9, 87.2, 88.3, 85.9, 80.5, 73.6, 87.9, 89.5, 89.8, 71.6, 88.8],
            *[77.4, 88.8, 89.8, 89.3, 87.0, 63.3, 86.6, 81.5, 87.8, 83.1],
        ],
    ),
    (
        *("state-of-the-art-voc07", "AP-loss500+", None),
        [
            *[84.9, 88.9, 89.6, 87.8, 81.7, 76.2, 89.0, 89.5, 89.8, 74.8, 87.9],
            *[79.3, 88.6, 89.8, 88.7, 87.7, 66.5, 86.7, 84.2, 88.4, 85.4],
        ],
    ),
    (
        *("state-of-the-art-voc12", "R-FCN", "Two-Stage"),
        [
            *[77.6, 86.9, 83.4, 81.5, 63.8, 62.4, 81.6, 81.1, 93.1, 58.0, 83.8],
            *[60.8, 92.7, 86.0, 84.6, 84.4, 59.0, 80.8, 68.6, 86.1, 72.9],
        ],
    ),
    (
        *("state-of-the-art-voc12", "AP-loss500", "One-Stage"),
        [
            *[83.1, 90.4, 88.6, 84.6, 73.4, 69.3, 86.2, 85.8, 94.8, 69.2, 88.9],
            *[68.2, 94.2, 90.6, 90.1, 89.9, 64.3, 88.3, 76.8, 90.1, 77.5],
        ],
    ),
    (
        *("state-of-the-art-voc12", "AP-loss500+", None),
        [
            *[84.5, 91.8, 90.2, 87.2, 75.0, 73.7, 87.9, 88.5, 95.4, 72.0, 88.2],
            *[68.8, 94.3, 91.3, 90.3, 91.5, 67.0, 89.6, 77.8, 90.2, 80.3],
        ],
    ),
    (
        *("state-of-the-art-coco", "TridentNet", "Two-Stage"),
        [46.8, 67.6, 51.5, 28.0, 51.2, 60.5] + [None] * 6,
    ),
    (
        *("state-of-the-art-coco", "RetinaNet500", "One-Stage"),
        [34.4, 53.1, 36.8, 14.7, 38.5, 49.1] + [None] * 6,
    ),
    (
        *("state-of-the-art-coco", "AP-loss500", None),
        [37.4, 58.6, 40.5, 17.3, 40.8, 51.9, 31.3, 50.9, 54.1, 29.8, 59.5, 73.6],
    ),
    (
        *("state-of-the-art-coco", "AP-loss800", None),
        [40.8, 63.7, 43.7, 25.4, 43.9, 50.6, 33.2, 53.3, 56.9, 39.5, 60.3, 69.9],
    ),
    (
        *("state-of-the-art-coco", "AP-loss500+", None),
        [42.1, 63.5, 46.4, 25.6, 45.0, 53.9, 34.1, 55.9, 60.5, 39.7, 64.5, 77.6],
    ),
    ("state-of-the-art-coco-to-voc", "SSD512", None, [83.2, 82.2]),
    ("state-of-the-art-coco-to-voc", "Ours", "Single-Scale", [86.2, 87.2]),
    ("state-of-the-art-coco-to-voc", "Ours", "Multi-Scale", [87.0, 88.6]),
    ("OHEM_Randomsampling", "OHEM + AP-loss", None, [53.0, 81.1, 57.4]),
    ("OHEM_Randomsampling", "Random Sampling + AP-loss", None, [39.8, 68.5, 40.5]),
    ("OHEM_Randomsampling", "Original AP-Loss", None, [53.1, 82.3, 58.1]),
    ("focal-batch-size", "1", None, [50.6, 79.8, 54.5, 52.4, 80.2, 56.7]),
    ("focal-batch-size", "2", None, [51.1, 80.5, 55.0, 53.0, 81.7, 57.8]),
    ("focal-batch-size", "8", None, [51.3, 80.9, 55.3, 53.1, 82.3, 58.1]),
    ("sigmoid", "0.25", None, [52.5, 81.4, 57.0]),
    ("sigmoid", "0.5", None, [53.5, 81.9, 58.4]),
    ("sigmoid", "2", None, [42.7, 72.1, 43.9]),
    ("Resnet-101", "CE-Loss+OHEM", None, [82.8, 81.5, 36.4, 58.0, 38.8]),
    ("Resnet-101", "AUC-Loss", None, [81.9, 81.8, 33.1, 54.7, 34.8]),
    ("Resnet-101", "AP-Loss", None, [83.9, 83.1, 37.4, 58.6, 40.5]),
    ("resnext", "CE-Loss + OHEM", None, [55.9, 83.8, 62.3, 38.1, 60.3, 40.7]),
    ("resnext", "Focal Loss", None, [56.8, 83.6, 62.2, 38.5, 60.5, 41.4]),
    ("resnext", "AP-Loss", None, [57.5, 84.5, 63.5, 39.2, 62.5, 41.6]),
    ("GHM-DRLOSS", "RetinaNet500+GHM-C", None, [54.6, 81.7, 60.1, 80.9]),
    ("GHM-DRLOSS", "RetinaNet500+DR-loss_fixed", None, [56.1, 82.0, 61.6, 80.6]),
    ("GHM-DRLOSS", "RetinaNet500+AP-loss", None, [58.0, 83.9, 64.2, 83.1]),
    ("two-stage", "512", None, [54.09, 81.94, 59.86, 54.62, 82.04, 59.85]),
    ("two-stage", "2048", None, [52.21, 79.53, 57.12, 54.88, 82.39, 60.70]),
    ("two-stage", "4096", None, [48.36, 75.69, 52.15, 54.83, 82.23, 60.23]),
]
NUM_ROWS = {
    "voc-minibatch-training": 4,
    "voc-smoothing": 5,
    "voc-interpolated-ap": 2,
    "base-loss": 4,
    "base-loss-robustness": 4,
    "state-of-the-art-voc07": 19,
    "state-of-the-art-voc12": 18,
    "state-of-the-art-coco": 28,
    "state-of-the-art-coco-to-voc": 8,
    "OHEM_Randomsampling": 3,
    "focal-batch-size": 4,
    "sigmoid": 4,
    "Resnet-101": 4,
    "resnext": 4,
    "GHM-DRLOSS": 3,
    "two-stage": 6,
}


# Rows whose classes give 79.5, 81.4 and 85.0 where the paper has 79.8, 81.5 and 84.9.
NOT_ADDING_UP = {("07", "SSD512*"), ("07", "DSSD513"), ("07", "AP-loss500+")}


@pytest.mark.parametrize(("label", "row", "group", "numbers"), ROWS)
def test_a_row_is_as_in_the_paper(
    label: str, row: str, group: str | None, numbers: list[float | None]
) -> None:
    columns = paper_table(label)["columns"]
    assert [paper_value(label, row, column, group=group) for column in columns] == numbers


def test_every_table_of_the_paper_is_there_with_all_its_rows() -> None:
    assert {label: len(table["rows"]) for label, table in paper()["tables"].items()} == NUM_ROWS


def test_at_least_three_rows_of_each_table_were_typed_by_hand() -> None:
    for label, number in NUM_ROWS.items():
        assert sum(row[0] == label for row in ROWS) >= min(3, number), label


@pytest.mark.parametrize("label", ["state-of-the-art-voc07", "state-of-the-art-voc12"])
def test_the_mean_of_the_classes_is_the_map_of_its_row(label: str) -> None:
    for row in paper_table(label)["rows"]:
        mean, *classes = row["values"].values()
        if None not in classes:
            tolerance = 0.35 if (label[-2:], row["name"]) in NOT_ADDING_UP else 0.06
            assert sum(classes) / 20 == pytest.approx(mean, abs=tolerance), row["name"]


def test_what_is_bold_is_the_best_of_its_column() -> None:
    """Within a group of the benchmark tables; in the others, of the whole column."""
    for label, table in paper()["tables"].items():
        if label.startswith("state-of-the-art"):
            continue
        for column in table["columns"]:
            best = max(row["values"][column] for row in table["rows"])
            bold = [row["values"][column] for row in table["rows"] if column in row["best"]]
            assert bold == [best], (label, column)


def test_equal_trainings_have_equal_numbers_in_all_tables() -> None:
    main = [paper_value("base-loss", "AP-Loss", f"RetinaNet + PASCAL VOC / {m}") for m in METRICS]
    for label, row in (
        ("voc-minibatch-training", "8"),
        ("voc-smoothing", "1"),
        ("voc-interpolated-ap", "Yes"),
        ("OHEM_Randomsampling", "Original AP-Loss"),
    ):
        assert [paper_value(label, row, metric) for metric in METRICS] == main


def test_a_row_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="no row 'table 9'"):
        paper_value("sigmoid", "table 9", "AP")


def test_every_label_of_an_experiment_is_a_table_or_a_figure_of_the_paper() -> None:
    figures = {
        "fig-performance_curve",
        "fig-ssd_performance_curve",
        "fig-two-stage",
        "fig-result",
        "fig-result2",
        "dist",
        "fig-convergence_curve",
        "fig-performance_imbalance",
        "fig_memory_cost",
        "fig_time_cost_curve",
        "fig_time_cost",
    }
    labels = {label for item in items.EXPERIMENTS for label in item.labels}
    assert labels <= NUM_ROWS.keys() | figures
    assert NUM_ROWS.keys() <= labels  # and no table is forgotten


def test_the_file_is_json_with_one_row_on_a_line() -> None:
    file = Path(items.__file__).with_name("paper.json")
    text = file.read_text(encoding="utf-8")
    assert json.loads(text) == paper()
    assert max(map(len, text.splitlines())) < 700
