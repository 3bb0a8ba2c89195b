"""Comparisons with several seeds: what is trained, and what the tables make of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankdet.config import Config
from rankdet.errors import RankdetError
from rankdet.experiments import comparison
from rankdet.experiments.experiment import Request, reproduce
from rankdet.experiments.items import experiment

INTERPOLATION = experiment("interpolation")


def result(value: float) -> dict[str, Any]:
    return {
        "run": "a-run",
        "metrics": {"AP": value, "AP50": value + 30, "AP75": value},
        "curve": [],
        "training": {"counts": {}},
    }


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The settings of all trainings, which end with AP 10, 11, ..."""
    configs: list[Config] = []

    def outcome(config: Config, request: Request) -> dict[str, Any]:
        configs.append(config)
        return result(9.0 + len(configs))

    monkeypatch.setattr(comparison, "outcome", outcome)
    return configs


def test_there_is_one_seed_unless_the_user_wants_more(tmp_path: Path) -> None:
    request = Request("smoke", tmp_path, seed=4)
    assert [row.key for row in INTERPOLATION.plan(request)] == ["No", "Yes"]
    rows = INTERPOLATION.plan(replace(request, seeds=2))
    assert [row.key for row in rows] == ["No", "Yes", "No: seed 5", "Yes: seed 5"]
    assert [row.trainings[0].seed for row in rows] == [4, 4, 5, 5]
    assert [row.settings["config"]["seed"] for row in rows] == [4, 4, 5, 5]


def test_rows_of_another_seed_differ_in_the_seed_alone(tmp_path: Path) -> None:
    for name in ("interpolation", "rois", "ghm-dr"):
        request = Request("smoke", tmp_path, seeds=2)
        rows = {row.key: row.trainings[0] for row in experiment(name).plan(request)}
        for key, config in rows.items():
            if not key.endswith(": seed 1"):
                assert replace(config, seed=1) == rows[f"{key}: seed 1"]


def test_curves_have_the_request_s_own_seed_alone(tmp_path: Path) -> None:
    rows = experiment("curves-retinanet").plan(Request("smoke", tmp_path, seeds=3))
    assert len(rows) == 4


def test_numbers_are_means_over_the_seeds_with_their_differences(
    tmp_path: Path, trained: list[Config]
) -> None:
    reproduce(INTERPOLATION, Request("smoke", tmp_path, seeds=3))
    assert [config.seed for config in trained] == [0, 0, 1, 1, 2, 2]
    lines = (tmp_path / "interpolation.md").read_text(encoding="utf-8").splitlines()
    # No has 10, 12, 14 and Yes 11, 13, 15.
    assert any(line.startswith("| No | 12.00 ± 2.00 | 52.60 | 42.00 ± 2.00 |") for line in lines)
    assert any(line.startswith("| Yes | **13.00** ± 2.00 | **53.10** |") for line in lines)
    assert "Less the row with interpolated Yes:" in lines
    # Welch: t(4, 97.5 %) sqrt(4 / 3 + 4 / 3) = 2.776 * 1.633
    assert "| No | -1.00 ± 4.53 | -1.00 ± 4.53 | -1.00 ± 4.53 |" in lines
    assert any(line.startswith("- ±: the standard deviation over the seeds") for line in lines)


def test_one_seed_has_neither_a_deviation_nor_a_table_of_differences(
    tmp_path: Path, trained: list[Config]
) -> None:
    reproduce(INTERPOLATION, Request("smoke", tmp_path))
    text = (tmp_path / "interpolation.md").read_text(encoding="utf-8")
    assert "| No | 10.0 | 52.6 |" in text
    assert "±" not in text
    assert "Less the row" not in text


def test_a_table_without_a_row_to_compare_with_has_means_alone(
    tmp_path: Path, trained: list[Config]
) -> None:
    reproduce(experiment("sigmoid"), Request("smoke", tmp_path, seeds=2))
    text = (tmp_path / "sigmoid.md").read_text(encoding="utf-8")
    assert "| 0.25 | 12.00 ± 2.83 |" in text
    assert "Less the row" not in text


def test_more_seeds_keep_the_rows_of_before_and_fewer_drop_none(
    tmp_path: Path, trained: list[Config]
) -> None:
    request = Request("smoke", tmp_path)
    before = reproduce(INTERPOLATION, request)["rows"]
    more = reproduce(INTERPOLATION, replace(request, seeds=2))["rows"]
    assert {key: more[key] for key in before} == before
    assert reproduce(INTERPOLATION, request)["rows"] == more
    assert len(trained) == 4


def test_a_row_that_is_none_any_more_is_no_other_seed(
    tmp_path: Path, trained: list[Config]
) -> None:
    request = Request("smoke", tmp_path)
    reproduce(INTERPOLATION, request)
    fewer = replace(INTERPOLATION, plan=lambda asked: INTERPOLATION.plan(asked)[:1])
    with pytest.raises(RankdetError, match="the row Yes is no row of the experiment now"):
        reproduce(fewer, request)


def test_regions_are_counted_for_each_seed(tmp_path: Path, trained: list[Config]) -> None:
    request = Request("smoke", tmp_path, seeds=2, rows=("Faster: 512",))
    reproduce(experiment("rois"), request)
    lines = (tmp_path / "rois.md").read_text(encoding="utf-8").splitlines()
    counted = [line.split(" |")[0] for line in lines if line.endswith("n/a | n/a |")]
    assert counted == ["| Faster: 512", "| Faster: 512: seed 1"]
