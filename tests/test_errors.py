"""Errors that a user can cause: their text, and that it survives a process's border."""

from __future__ import annotations

import pickle
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankdet.errors import DataError, RankdetError, message, shorten

ALL_FIELDS = {
    "code": "box-zero-area",
    "file": "a.xml",
    "where": "object[1]",
    "field": "width",
    "value": 0,
    "detail": "It is 0.",
    "hint": "Correct it.",
}


def test_the_text_has_every_part_in_its_order():
    error = DataError("expected a width", **ALL_FIELDS)
    assert str(error) == "a.xml: object[1]: width = 0: expected a width. It is 0. Correct it."
    assert isinstance(error, RankdetError)


def test_parts_that_are_not_known_leave_no_trace():
    assert str(DataError("expected a number")) == "expected a number."
    assert str(DataError("expected a number", file="a.txt")) == "a.txt: expected a number."
    assert str(DataError("expected a number", field="x")) == "x: expected a number."
    assert str(DataError("expected a number", value=3)) == "3: expected a number."
    assert str(DataError("expected a number", detail="So.")) == "expected a number. So."


def test_a_line_number_is_joined_to_the_file_and_a_path_inside_is_not():
    assert str(DataError("r", file="a.txt", where=3)) == "a.txt:3: r."
    assert str(DataError("r", file="a.json", where="images[3]")) == "a.json: images[3]: r."


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_keeps_every_field_and_the_text(protocol):
    error = DataError("expected a width", **ALL_FIELDS)
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is DataError
    assert vars(copy) == vars(error)
    assert vars(copy)["value"] == "0"
    assert set(vars(copy)) == {"rule", *ALL_FIELDS}
    assert str(copy) == str(error)


def test_a_value_is_written_as_python_writes_it():
    assert shorten("a'b") == '"a\'b"'
    assert shorten(1.5) == "1.5"
    assert shorten((10.25, -3.0, 7.0, 1e300)) == "(10.25, -3.0, 7.0, 1e+300)"
    assert shorten(b"\xff\xd8") == "b'\\xff\\xd8'"
    assert shorten({"a": [1, None, True]}) == "{'a': [1, None, True]}"


def test_a_value_of_exactly_the_limit_is_whole_and_a_longer_one_is_cut():
    assert shorten("x" * 118) == "'" + "x" * 118 + "'"
    assert shorten("x" * 119) == "'" + "x" * 119 + "..."
    assert len(shorten("x" * 10_000_000)) == 123


def test_the_end_of_a_long_text_is_not_looked_at():
    assert shorten("x" * 200 + "'").startswith("'xxx")  # the quotes are those of the start
    assert shorten(b"x" * 10_000_000) == "b'" + "x" * 118 + "..."


def test_values_of_other_kinds_are_whole_up_to_the_limit():
    path = Path("folder") / ("x" * 80)
    for value in (path, 10**100, ["y" * 100]):
        assert shorten(value) == repr(value)


def test_a_message_of_endless_length_keeps_its_start_and_its_end():
    text = message("expected a number", file="f" * 50_000, hint="Correct it.")
    assert text.startswith("fff")
    assert text.endswith("fff: expected a number. Correct it.")
    assert len(text) == 9005
    assert len(message("r", file="f" * 8996)) == 9000


def test_long_lists_are_cut_after_a_few_items_without_being_written_whole():
    class Untouchable:
        def __repr__(self) -> str:
            raise AssertionError("the last item was written")

    assert shorten([*range(1000), Untouchable()]) == "[0, 1, 2, 3, 4, 5, ...]"


def test_values_that_python_cannot_write_are_named_by_their_type():
    class Stubborn(int):
        def __repr__(self) -> str:
            raise OSError("no")

    endless: list[object] = []
    endless.append(endless)
    assert len(shorten(endless)) <= 123
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert len(shorten(deep)) <= 123
    assert len(shorten(10**10_000)) <= 123
    assert "Stubborn" in shorten(Stubborn(3))
    assert len(shorten({"k" * 500: "v" * 500})) <= 123


def test_control_characters_and_escape_sequences_never_reach_the_text():
    error = DataError(
        "r",
        file="a\nb\x1b[31m.jpg",
        where="x\ty",
        field="f\r",
        value="v\x00\u202e",
        detail="d\x07",
        hint="h\u2028",
    )
    assert str(error).isprintable()
    assert "a\\nb\\x1b[31m.jpg" in str(error)


@settings(deadline=None)
@given(st.text(), st.text(), st.text(), st.text())
def test_any_text_gives_one_printable_line(rule, file, field, value):
    assert message(rule, file=file, field=field, value=value).isprintable()


def test_a_name_with_bytes_that_are_no_text_can_be_written():
    text = str(DataError("r", file="a\udcff.jpg"))
    assert text == "a\\udcff.jpg: r."
    text.encode("utf-8")


def test_shortening_works_near_the_end_of_the_stack_and_in_threads():
    found = []

    def dive(depth: int) -> None:
        try:
            dive(depth + 1)
        except RecursionError:
            if depth == sys.getrecursionlimit() // 2:
                found.append(shorten([[[1]]]))
            raise

    def run() -> None:
        with pytest.raises(RecursionError):
            dive(0)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == ["[[[1]]]"]
