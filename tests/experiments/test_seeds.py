"""Rows that differ in the seed alone."""

from __future__ import annotations

from rankdet.experiments.seeds import has_seed, number_of_seeds, seed_key, values_of_row


def record_of(values: dict[str, float | None]) -> dict[str, object]:
    """A record whose finished rows have this AP; None: no labels to measure it by."""
    rows = {
        key: {"result": {"metrics": None if value is None else {"AP": value}}}
        for key, value in values.items()
    }
    return {"request": {"seed": 3}, "plan": [*rows, "AP: seed 9"], "rows": rows}


def test_a_name_says_its_seed_at_its_end_alone() -> None:
    assert has_seed(seed_key("AP", 12))
    assert not any(map(has_seed, ["AP", "AP: seed", "AP: seed 1 of 2", "linseed 1"]))


def test_values_are_those_of_all_seeds_of_a_row_and_of_no_other() -> None:
    record = record_of({"AP": 1.0, "AP: seed 4": 2.0, "AP: seed 5": None, "less AP: seed 4": 7.0})
    assert values_of_row(record, "AP", "AP") == [1.0, 2.0]
    assert values_of_row(record, "AP", "AP50") == []


def test_a_row_without_a_seed_in_its_name_has_that_of_the_request() -> None:
    assert number_of_seeds(record_of({"AP": 1.0, "OHEM": 1.0})) == 2  # 3, and 9 of the plan
    assert number_of_seeds(record_of({"AP": 1.0, "AP: seed 3": 1.0, "AP: seed 4": 1.0})) == 3
