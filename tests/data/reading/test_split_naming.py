"""Names of splits: what an alias means, and in which order they are listed."""

from __future__ import annotations

from itertools import islice, permutations

import pytest

from rankdet.data.reading.split_naming import find_split, in_order
from rankdet.errors import DataError


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("trainval35k", "train2017"),
        ("minival", "val2017"),
        ("test-dev", "test-dev2017"),
        ("val", "valid"),
        ("valid", "val"),
    ],
)
def test_an_alias_means_another_split_only_where_its_own_name_is_unknown(
    asked: str, found: str
) -> None:
    assert find_split(asked, ["other", found], "set") == found
    assert find_split(asked, [found, asked], "set") == asked


def test_any_iterable_of_names_will_do() -> None:
    assert find_split("valid", (name for name in ("train", "val")), "set") == "val"


@pytest.mark.parametrize("asked", ["tset", "", "Train", "train2017", "minival"])
def test_an_unknown_split_is_refused_with_those_that_exist(asked: str) -> None:
    with pytest.raises(DataError) as caught:
        find_split(asked, ["train", "test"], "set")
    error = caught.value
    assert (error.code, error.file, error.field) == ("split-unknown", "set", "split")
    assert (error.value, error.detail) == (repr(asked), "There are: train, test.")


def test_where_there_is_no_split_the_error_says_so() -> None:
    with pytest.raises(DataError) as caught:
        find_split("train", [], "set")
    assert caught.value.detail == "There is none at all."


def test_training_comes_before_validation_others_and_testing() -> None:
    expected = ("train", "train2017", "trainval", "val", "valid", "extra", "mini", "test", "test2")
    for names in islice(permutations(expected), 0, None, 5000):
        assert in_order(names) == expected
    assert in_order([]) == ()
