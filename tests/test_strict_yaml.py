"""YAML as plain data, or the fault and its line. What a fault means for a file: see its readers."""

from __future__ import annotations

import pytest

from rankdet.strict_yaml import Refused, StrictLoader, parse


@pytest.mark.parametrize(
    ("text", "fault", "line", "key"),
    [
        ("a: 1\nb: !!int 2\n", "forbidden", 2, None),
        ("a: &x 1\nb: *x\n", "forbidden", 2, None),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "duplicate-key", 4, "c"),
        ("a: 1\nb: " + "1" * 401, "number-too-long", 2, None),
        ("a: 1\nb: {c: {d: 1}}\n", "too-deep", 2, None),
    ],
)
def test_a_fault_is_told_with_its_line(text: str, fault: str, line: int, key: object) -> None:
    with pytest.raises(Refused) as caught:
        parse(text, max_depth=3)
    assert (caught.value.fault, caught.value.line, caught.value.key) == (fault, line, key)


def test_what_is_just_allowed_is_read() -> None:
    assert parse("a: {b: {c: 1}}", max_depth=4)[0] == {"a": {"b": {"c": 1}}}
    assert parse("1" * 400, max_depth=1)[0] == int("1" * 400)


def test_a_text_without_content_is_nothing() -> None:
    assert parse("# only this\n", max_depth=1) == (None, None)


def test_a_loader_made_from_the_strict_one_has_its_own_words() -> None:
    class Lenient(StrictLoader):
        pass

    Lenient.add_constructor("tag:yaml.org,2002:bool", lambda loader, node: node.value)
    assert parse("yes", max_depth=1, loader_class=Lenient)[0] == "yes"
    assert parse("yes", max_depth=1)[0] is True
