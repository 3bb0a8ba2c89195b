"""The file of a record: what is refused, and what is read of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankdet.errors import ConfigError, RankdetError
from rankdet.experiments.record import (
    read_record,
    request_differences,
    results_of,
    shown_from,
    state_of,
)


@pytest.fixture
def record() -> dict[str, Any]:
    """Three rows are planned: one is finished, one failed, one waits."""
    return {
        "rankdet_reproduction": 1,
        "item": "study",
        "labels": [],
        "request": {"scale": "smoke", "seed": 0},
        "plan": ["a", "b", "c"],
        "rows": {"a": {"result": {"value": 1.5}}, "b": {"error": "not finite"}},
    }


def test_a_record_is_read_as_it_was_written(record: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    file.write_text(json.dumps(record))
    assert read_record(file) == record


@pytest.mark.parametrize("changes", ["seed=1", [3], {"seed": 1}])
def test_changes_are_a_list_of_texts(
    record: dict[str, Any], tmp_path: Path, changes: object
) -> None:
    file = tmp_path / "study.json"
    file.write_text(json.dumps({**record, "request": {"scale": "smoke", "changes": changes}}))
    with pytest.raises(RankdetError, match=r"request\.changes is not as it was written"):
        read_record(file)


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (["a=1", "b=2"], ["b=2", "a=1"], []),
        (["a=3", "a = 1"], ["a=1"], []),
        (["a=1"], ["a=1", "a=3"], ["--set a = '1', and now it is '3'"]),
        ([], ["a=1"], ["no --set a, and now it is '1'"]),
        (["a=1"], [], ["--set a = '1', and now it is not given"]),
    ],
)
def test_of_each_setting_that_is_changed_the_last_value_counts(
    before: list[str], now: list[str], words: list[str]
) -> None:
    assert request_differences({"changes": before}, {"changes": now}) == words


def test_results_are_those_of_finished_rows(record: dict[str, Any]) -> None:
    assert results_of(record) == {"a": {"value": 1.5}}
    assert state_of(record) == "Not run yet: c. Failed: b."


def test_many_missing_rows_are_counted() -> None:
    record: dict[str, Any] = {"plan": [str(number) for number in range(20)], "rows": {}}
    assert state_of(record) == "Not run yet: 0, 1, 2, 3, 4, 5, 6, 7 and 12 more."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("no", "not JSON"),
        ("[]", "rankdet_reproduction = None"),
        ('{"rankdet_reproduction": 99}', "rankdet_reproduction = 99: expected 1"),
        ('{"rankdet_reproduction": 1, "item": "x"}', "request is not as it was written"),
        ('{"rankdet_reproduction": Infinity}', "not JSON: Infinity is no number of JSON"),
        ('{"rankdet_reproduction": NaN}', "not JSON: NaN is no number of JSON"),
    ],
)
def test_a_file_that_is_no_record_is_told(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)
    with pytest.raises(RankdetError, match=words):
        read_record(file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record["rows"].update(a=None), "the row a is not as it was written"),
        (lambda record: record["rows"].update(a="x"), "the row a is not as it was written"),
        (lambda record: record["rows"]["a"].update(result={}), "the row a is not as it was"),
        (lambda record: record["rows"]["a"].update(result=[1]), "the row a is not as it was"),
        (lambda record: record["request"].update(scale="huge"), "request.scale is not as it was"),
        (lambda record: record.update(plan=["a", True]), "plan is not as it was written"),
    ],
)
def test_a_record_whose_rows_were_changed_is_refused(
    change: Callable[[Any], None], words: str, record: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "study.json"
    change(record)
    content = json.dumps(record)
    file.write_text(content)
    with pytest.raises(RankdetError, match=f"{words}.*Put back a copy"):
        read_record(file)
    assert file.read_text() == content


@pytest.mark.parametrize(
    "error", [KeyError("epoch"), TypeError("no number"), ConfigError("a setting is wrong")]
)
def test_what_cannot_be_shown_names_the_file(error: Exception, tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    words = rf"study\.json: a row .*{error}.* is not as it was written"
    with pytest.raises(RankdetError, match=words), shown_from(file):
        raise error
