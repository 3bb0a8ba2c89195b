"""Lists of class names: read, checked, compared, and matched with a data set's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankdet.data.reading.classes import (
    MAX_NAME,
    ClassList,
    checked_classes,
    choose_classes,
    did_you_mean,
    is_class_name,
    read_class_list,
)
from rankdet.errors import DataError

LONGEST = "n" * MAX_NAME


def refused(function: Any, *arguments: Any, **keywords: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        function(*arguments, **keywords)
    return caught.value


# ---- files and lists


def test_a_file_has_a_name_on_each_line_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_text("\ufeff  traffic light \r\n\n \t\ncat\n", encoding="utf-8")
    assert read_class_list(path) == read_class_list(str(path)) == ("traffic light", "cat")


@pytest.mark.parametrize("content", ["", "\n \n", "cat\ndog\n cat\n", LONGEST + "n"])
def test_a_file_without_different_names_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "classes.txt"
    path.write_text(content)
    error = refused(read_class_list, path)
    assert (error.code, error.file, error.field) == ("classes-invalid", str(path), "classes")


@pytest.mark.parametrize(
    ("names", "detail", "value"),
    [
        ("cat", "It is one text, not a list.", "'cat'"),
        ([], "It has no names.", None),
        ((), "It has no names.", None),
        (["cat", 3], "Every name must be a text.", "3"),
        (["cat", " \t"], "A name has 1 to 200 characters.", "' \\t'"),
        ([LONGEST + "n"], "A name has 1 to 200 characters.", None),
        (["cat", "dog", "cat"], "The name stands there twice.", "'cat'"),
    ],
)
def test_a_list_is_refused_with_the_reason(names: Any, detail: str, value: str | None) -> None:
    error = refused(checked_classes, names, file="given")
    assert (error.code, error.file, error.detail) == ("classes-invalid", "given", detail)
    if len(names) != 1:
        assert error.value == value


def test_a_sound_list_stays_as_it_is() -> None:
    assert checked_classes(["dog", "Dog", LONGEST], file="given") == ("dog", "Dog", LONGEST)


# ---- names


@pytest.mark.parametrize(
    ("value", "is_name"),
    [
        ("cat", True),
        ("猫 1", True),
        (LONGEST, True),
        (LONGEST + "n", False),
        ("", False),
        (" \n", False),
        (None, False),
        (3, False),
        (["cat"], False),
        ("half \ud800", False),
    ],
)
def test_a_class_name_is_a_text_that_can_be_written(value: object, is_name: bool) -> None:
    assert is_class_name(value) is is_name


def test_the_nearest_name_is_offered_whatever_its_case() -> None:
    assert did_you_mean("PERSOM", ("cat", "Person", "persons")) == "Did you mean 'Person'?"
    assert did_you_mean("xyz", ("cat", "Person")) == ""
    assert did_you_mean("cat", ()) == ""


def test_names_of_endless_length_are_not_compared() -> None:
    assert did_you_mean(LONGEST, (LONGEST,)) == f"Did you mean '{LONGEST}'?"
    assert did_you_mean(LONGEST + "n", (LONGEST,)) == ""


# ---- a data set's own classes and the given ones


def test_without_a_given_list_the_data_sets_own_is_used() -> None:
    chosen = choose_classes({"dog": 5, "cat": 1}, None, "a.json")
    assert chosen == ClassList(("dog", "cat"), (5, 1), {5: 0, 1: 1})
    assert choose_classes({}, None, "a.json") == ClassList((), (), {})


def test_given_classes_are_matched_by_name_and_others_get_ids_that_are_free() -> None:
    chosen = choose_classes({"cat": 7, "dog": 3, "cow": 9}, ("yak", "dog", "emu", "cat"), "a.json")
    assert chosen.classes == ("yak", "dog", "emu", "cat")
    assert chosen.category_ids == (10, 3, 11, 7)
    assert chosen.labels == {3: 1, 7: 3}  # no cow


def test_a_list_that_shares_no_name_is_refused_with_some_of_the_data_sets_own() -> None:
    own = {f"class {i}": i for i in range(12)}
    error = refused(choose_classes, own, ("cat", "dog"), "a.json")
    assert (error.code, error.file, error.field) == ("classes-foreign", "a.json", "classes")
    assert error.value == "('cat', 'dog')"
    assert error.detail.startswith("It has class 0, class 1, ")
    assert error.detail.endswith("class 9.")
