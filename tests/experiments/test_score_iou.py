"""IoU and score of anchors: numbers from counts by hand, and against independent judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rankdet.experiments import score_iou
from rankdet.experiments.comparison import LOSSES


def spread_out(cells: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """The bins of IoU and score of each anchor."""
    table = np.array(cells)
    return np.repeat(table[:, 0], table[:, 2]), np.repeat(table[:, 1], table[:, 2])


def some_cells(seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    places = random.choice(100 * 100, size=60, replace=False)
    return [[int(p) // 100, int(p) % 100, int(random.integers(1, 9))] for p in places]


@pytest.mark.parametrize("seed", range(3))
def test_correlations_are_those_of_scipy(seed: int) -> None:
    cells = [[50 + iou // 2, score, count] for iou, score, count in some_cells(seed)]
    numbers = score_iou.numbers_of(cells, 100)
    iou, score = spread_out(cells)
    assert numbers["correlation"] == pytest.approx(stats.pearsonr(iou, score).statistic)
    assert numbers["rank_correlation"] == pytest.approx(stats.spearmanr(iou, score).statistic)


def test_numbers_by_hand() -> None:
    cells = [
        [0, 10, 90],  # touch nothing
        [0, 60, 10],
        [29, 80, 100],  # negatives all the same
        [30, 90, 1000],  # neither
        [50, 70, 1],  # positives
        [90, 90, 1],
    ]
    numbers = score_iou.numbers_of(cells, 100)
    assert numbers["num_positives"] == 2
    assert numbers["num_negatives"] == 200
    assert numbers["correlation"] == pytest.approx(1.0)
    assert numbers["negatives_above_fixed"] == pytest.approx(110 / 200)
    assert numbers["touching_nothing_above_fixed"] == pytest.approx(0.1)
    assert numbers["score_that_keeps_half"] == pytest.approx(0.90)
    assert numbers["negatives_above_own"] == 0


def test_a_score_inside_a_bin_counts_a_part_of_it() -> None:
    cells = [[80, 40, 4], [0, 40, 10]]
    numbers = score_iou.numbers_of(cells, 100)
    assert numbers["score_that_keeps_half"] == pytest.approx(0.405)
    assert numbers["negatives_above_own"] == pytest.approx(0.5)


def test_without_anchors_there_are_no_numbers() -> None:
    numbers = score_iou.numbers_of([], 100)
    assert {name for name, value in numbers.items() if value is not None} == {
        "num_positives",
        "num_negatives",
    }


def test_false_positives_do_not_depend_on_the_scale_of_the_scores() -> None:
    cells = [[iou, score // 2, count] for iou, score, count in some_cells(1)]
    higher = [[iou, score + 50, count] for iou, score, count in cells]
    ours, theirs = (score_iou.numbers_of(one, 100) for one in (cells, higher))
    for name in ("negatives_above_own", "touching_nothing_above_own", "rank_correlation"):
        assert ours[name] == pytest.approx(theirs[name])


def by_hand(names: list[str]) -> dict[str, Any]:
    anchors = {"num_images": 1, "num_anchors": 6, "bins": 100, "cells": [[0, 60, 4], [70, 90, 2]]}
    result = {"anchors": anchors, **score_iou.numbers_of(anchors["cells"], 100)}
    return {
        "item": "score-iou",
        "labels": ["dist"],
        "request": {"scale": "tiny", "seed": 0},
        "plan": list(LOSSES),
        "rows": {name: {"result": result} for name in names},
    }


def test_table_and_figure_from_a_record(tmp_path: Path) -> None:
    text = score_iou.markdown(by_hand(["AP-Loss"]))
    # Neither IoU nor score varies among the positives; all that touch nothing stand above 0.5.
    assert "| AP-Loss | n/a | n/a | 100.0 | 100.0 | 0.0 | 0.0 |" in text
    assert "| Focal Loss | not run |" in text
    score_iou.figure(by_hand(list(LOSSES)), tmp_path / "all.png")
    score_iou.figure(by_hand([]), tmp_path / "none.png")
    assert (tmp_path / "all.png").stat().st_size > 10_000
