"""Checks of values that come from a JSON file: each returns the value, or says what is wrong.

A file may be damaged, or made by somebody who wants to do harm. What has passed these checks holds
finite numbers, bounded lists and text that can be printed, and nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from rankdet.errors import printable

Check = Callable[[Any, str], Any]  # (value, place) -> the checked value; FieldError if it is wrong

LONGEST_TEXT = 4000  # characters; longer ones are cut
LONGEST_NAME = 200
_DEEPEST = 8  # levels of settings within settings
_MOST_ITEMS = 5000  # in one list or object of settings


class FieldError(Exception):
    """A value breaks a rule. place: where it stands, as `classes[2].ap50`."""

    def __init__(self, place: str, rule: str, value: object) -> None:
        super().__init__(f"{place}: {rule}")
        self.place = place
        self.rule = rule
        self.value = value


def strict_json(text: str | bytes) -> Any:
    """The value that the text describes; ValueError for what JSON does not have, or leaves open.

    >>> strict_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> strict_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ...
    ValueError: the name 'a' stands twice in one object
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError("lists or objects are nested too deeply") from error


def number(least: float = -1e12, most: float = 1e12) -> Check:
    """A finite number in [least, most], as a float or an int."""

    def check(value: Any, place: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FieldError(place, "expected a number", value)
        if not (least <= value <= most and math.isfinite(value)):
            raise FieldError(place, f"expected a number from {least:g} to {most:g}", value)
        return value

    return check


def whole(least: int = 0, most: int = 10**12) -> Check:
    """An integer in [least, most]."""

    def check(value: Any, place: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise FieldError(place, f"expected a whole number from {least} to {most:g}", value)
        return value

    return check


def text(longest: int = LONGEST_TEXT) -> Check:
    """Text without control characters, cut after `longest` characters."""

    def check(value: Any, place: str) -> str:
        if not isinstance(value, str):
            raise FieldError(place, "expected text", value)
        return shown(value, longest)

    return check


def shown(value: str, longest: int = LONGEST_TEXT) -> str:
    """The text as it may stand on the page.

    >>> shown("a" + chr(7) + "b" * 9, longest=6)
    'a\\\\x07…'
    """
    result = printable(value[: longest + 1])
    if not result.strip():
        return "(empty)"
    return result if len(result) <= longest else result[: longest - 1] + "…"


def one_of(*choices: str) -> Check:
    """One of the words."""

    def check(value: Any, place: str) -> str:
        if not isinstance(value, str) or value not in choices:
            raise FieldError(place, f"expected {' or '.join(choices)}", value)
        return value

    return check


def optional(check: Check) -> Check:
    """What the check lets pass, or None."""
    return lambda value, place: None if value is None else check(value, place)


def list_of(check: Check, most: int, *, least: int = 0) -> Check:
    """A list of `least` to `most` values that pass the check."""

    def checked(value: Any, place: str) -> list[Any]:
        if not isinstance(value, list):
            raise FieldError(place, "expected a list", value)
        if not least <= len(value) <= most:
            wanted = f"{most}" if least == most else f"{least} to {most}"
            raise FieldError(place, f"expected {wanted} entries, got {len(value)}", None)
        return [check(item, f"{place}[{index}]") for index, item in enumerate(value)]

    return checked


def record(fields: Mapping[str, Check], *, may_lack: Mapping[str, Check] | None = None) -> Check:
    """An object with these fields. Those that it may lack are None then; others are left out."""

    def checked(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise FieldError(place, "expected an object", value)
        result = {}
        for name, check in fields.items():
            if name not in value:
                raise FieldError(_inside(place, name), "the field is missing", None)
            result[name] = check(value[name], _inside(place, name))
        for name, check in (may_lack or {}).items():
            result[name] = optional(check)(value.get(name), _inside(place, name))
        return result

    return checked


def mapping(check: Check, most: int = 100) -> Check:
    """An object with any names, whose values pass the check."""

    def checked(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise FieldError(place, "expected an object", value)
        if len(value) > most:
            raise FieldError(place, f"expected at most {most} fields, got {len(value)}", None)
        return {
            shown(name, LONGEST_NAME): check(item, _inside(place, shown(name, LONGEST_NAME)))
            for name, item in value.items()
        }

    return checked


def settings(value: Any, place: str) -> dict[str, Any]:
    """An object of settings: text, numbers, true, false, null, lists and objects, within limits."""
    if not isinstance(value, dict):
        raise FieldError(place, "expected an object", value)
    result: dict[str, Any] = _setting(value, place, 0)
    return result


def _setting(value: Any, place: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise FieldError(place, f"expected at most {_DEEPEST} levels", None)
    if isinstance(value, dict | list) and len(value) > _MOST_ITEMS:
        raise FieldError(place, f"expected at most {_MOST_ITEMS} entries, got {len(value)}", None)
    if isinstance(value, dict):
        names = {name: shown(name, LONGEST_NAME) for name in value}
        return {
            shown_name: _setting(value[name], _inside(place, shown_name), depth + 1)
            for name, shown_name in names.items()
        }
    if isinstance(value, list):
        return [_setting(item, f"{place}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, str):
        return shown(value)
    if value is None or isinstance(value, bool):
        return value
    return number(-1e300, 1e300)(value, place)


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number that JSON has")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"the name {shown(name, 60)!r} stands twice in one object")
        result[name] = value
    return result
