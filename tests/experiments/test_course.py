"""Who reaches what when, and who is ahead meanwhile: cases worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from rankdet.experiments.course import (
    epochs_table,
    epochs_until,
    lead_table,
    reached,
    values_by_epoch,
)


def result(*points: tuple[float, float | None, float | None]) -> dict[str, Any]:
    """An outcome with evaluations (epoch, AP, AP50)."""
    return {"curve": [{"epoch": epoch, "AP": ap, "AP50": ap50} for epoch, ap, ap50 in points]}


# When an aim is reached.


@pytest.mark.parametrize(("aim", "epoch"), [(20, 2), (30, 2), (30.1, 4), (60, 4), (60.1, None)])
def test_an_aim_is_reached_in_the_first_evaluation_that_is_not_below(
    aim: float, epoch: float | None
) -> None:
    assert reached(result((1, 0.0, 0.0), (2, 15.0, 30.0), (4, 30.0, 60.0)), aim) == epoch


def test_an_aim_may_be_reached_and_lost_again() -> None:
    assert reached(result((1, 9.0, 55.0), (2, 9.0, 45.0)), 50) == 1


def test_evaluations_without_a_number_are_passed() -> None:
    outcome = result((1, None, None), (5, 9.0, 70.0))
    outcome["curve"].insert(1, {"epoch": 3})
    assert reached(outcome, 50) == 5
    assert values_by_epoch([outcome], "AP") == {5: [9.0]}


def test_seeds_that_do_not_reach_an_aim_are_counted_and_not_in_the_mean() -> None:
    results = [result((1, 9.0, 52.0)), result((1, 9.0, 40.0), (3, 9.0, 50.0)), result((3, 9.0, 1))]
    assert epochs_until(results, 50) == [1, 3]
    lines = epochs_table({"AP-Loss": results, "AUC-Loss": []}).splitlines()
    assert lines[2:] == ["| AP-Loss | 2.0 (2 of 3) | – |", "| AUC-Loss | – | – |"]


# Who is ahead.


def test_a_lead_is_that_of_the_means_after_the_same_epochs() -> None:
    ours = [result((2, 10.0, 20.0), (4, 30.0, 50.0))]
    other = [result((2, 12.5, 26.0), (4, 28.0, 51.0))]
    table = lead_table({"OHEM": other, "AP-Loss": ours, "AUC-Loss": []}, "AP-Loss")
    assert table is not None
    assert table.splitlines() == [
        "| epochs | OHEM: AP | OHEM: AP50 |",
        "| --- | ---: | ---: |",
        "| 2 | -2.5 | -6.0 |",
        "| 4 | +2.0 | -1.0 |",
    ]


def test_a_lead_over_several_seeds_has_welch_s_interval() -> None:
    ours = [result((1, ap, 50.0), (2, ap, 50.0)) for ap in (1.0, 2.0, 3.0)]
    other = [result((1, ap, 50.0), (2, ap, 50.0)) for ap in (2.0, 4.0, 6.0)]
    table = lead_table({"OHEM": other, "AP-Loss": ours}, "AP-Loss")
    assert table is not None
    # Variances 1 and 4 of three each: sqrt(5 / 3) = 1.29, with 2.94 degrees of freedom t = 3.22.
    assert table.splitlines()[2] == "| 1 | -2.0 ± 4.2 | +0.0 ± 0.0 |"


def test_a_lead_of_nothing_has_no_minus() -> None:
    ours = [result((1, 4.98, 5.0), (2, 5.02, 5.0))]
    other = [result((1, 5.0, 5.0), (2, 5.0, 5.0))]
    table = lead_table({"OHEM": other, "AP-Loss": ours}, "AP-Loss")
    assert table is not None
    assert table.splitlines()[2:] == ["| 1 | +0.0 | +0.0 |", "| 2 | +0.0 | +0.0 |"]


def test_epochs_that_one_loss_alone_was_evaluated_after_have_no_lead() -> None:
    ours = [result((1, 5.0, 5.0), (2, 10.0, 20.0), (3, 11.0, 21.0), (4, 30.0, 50.0))]
    others = {"OHEM": [result((2, 9.0, 20.0), (4, 9.0, None))], "Focal": [result((4, 1.0, 1.0))]}
    table = lead_table({**others, "AP-Loss": ours}, "AP-Loss")
    assert table is not None
    assert table.splitlines()[2:] == [
        "| 2 | +1.0 | +0.0 | – | – |",
        "| 4 | +21.0 | – | +29.0 | +49.0 |",
    ]


@pytest.mark.parametrize(
    "others",
    [
        pytest.param({}, id="no other loss"),
        pytest.param({"OHEM": []}, id="none that was trained"),
        pytest.param({"OHEM": [result((2, 9.0, 9.0))]}, id="one evaluation in common"),
    ],
)
def test_without_a_course_to_compare_there_is_no_table(others: dict[str, Any]) -> None:
    ours = [result((1, 1.0, 1.0), (2, 10.0, 20.0))]
    assert lead_table({**others, "AP-Loss": ours}, "AP-Loss") is None
