"""What a setting may be: its type is that of the dataclass's field, its rule stands beside it.

`setting(60, least=1)` is a field with a default and a rule. `check_section` looks at every field of
a section when it is made, and brings the value into its form: whole numbers become decimals where
those are wanted, lists become tuples.
"""

from __future__ import annotations

import difflib
import math
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from itertools import pairwise
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from rankdet.errors import ConfigError, message, shorten

_LONGEST_LIST = 100_000  # more than any list of classes


@dataclass(frozen=True)
class Rule:
    """What a value, or each value of a list, must be beside its type.

    least and most may be reached, above and below not. choices: the only texts. is_empty_allowed:
    a text or a list may be empty. is_ascending: each value of a list is higher than the last.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    is_empty_allowed: bool = False
    is_ascending: bool = False


class SettingError(ConfigError):
    """A setting that is unknown or breaks its rule. key: its whole name, such as training.epochs.

    >>> print(SettingError("training.epochs", 0, "expected a whole number of at least 1"))
    training.epochs = 0: expected a whole number of at least 1.
    """

    def __init__(
        self,
        key: str,
        value: object,
        rule: str,
        hint: str = "",
        *,
        file: str = "",
        line: int | None = None,
    ) -> None:
        super().__init__(rule)
        self.key = key
        self.value = value
        self.rule = rule
        self.hint = hint
        self.file = file
        self.line = line

    def __str__(self) -> str:
        return message(
            self.rule,
            file=self.file,
            where="" if self.line is None else self.line,
            field=self.key,
            value=None if self.value is NO_VALUE else shorten(self.value),
            hint=self.hint,
        )

    def at(self, file: str, line: int | None) -> SettingError:
        """The same error, with the place where the setting stands."""
        return SettingError(self.key, self.value, self.rule, self.hint, file=file, line=line)


NO_VALUE = object()  # for a SettingError that is about the key alone


def setting(default: Any, **rule: Any) -> Any:
    """A field of a section: its default, and the rule for its values."""
    return field(default=default, metadata={"rule": Rule(**rule)})


def check_section(section: Any, prefix: str) -> None:
    """Put every `setting` of a frozen dataclass into its form; SettingError if it breaks a rule."""
    for entry in fields(section):
        if "rule" in entry.metadata:
            value = _checked(getattr(section, entry.name), entry, type(section), prefix)
            object.__setattr__(section, entry.name, value)


def _checked(value: Any, entry: Field[Any], section: type, prefix: str) -> Any:
    kind, is_optional = kind_of(section, entry.name)
    key = prefix + entry.name
    rule: Rule = entry.metadata["rule"]
    if value is None and is_optional:
        return None
    result = _in_form(value, kind, rule)
    if result is None:
        expected = f"expected {_in_words(kind, rule)}{', or null' if is_optional else ''}"
        raise SettingError(key, value, expected, _hint(value, kind, rule, key))
    return result


@cache
def _kinds(section: type) -> dict[str, tuple[Any, bool]]:
    kinds = {}
    for name, hint in get_type_hints(section).items():
        options = get_args(hint) if NoneType in get_args(hint) else (hint,)
        kinds[name] = (next(kind for kind in options if kind is not NoneType), len(options) > 1)
    return kinds


def kind_of(section: type, name: str) -> tuple[Any, bool]:
    """The type of a field without None, and whether None is allowed.

    >>> @dataclass
    ... class Example:
    ...     sides: tuple[int, ...] | None
    >>> kind_of(Example, "sides")
    (tuple[int, ...], True)
    """
    return _kinds(section)[name]


def _in_form(value: Any, kind: Any, rule: Rule) -> Any:
    """The value as the type `kind` with the rule kept; None if it is not."""
    if get_origin(kind) is tuple:
        return _tuple_in_form(value, get_args(kind), rule)
    if kind is str:
        is_fine = isinstance(value, str) and _is_text(value) and (value or rule.is_empty_allowed)
        return value if is_fine and value in (rule.choices or (value,)) else None
    if kind is bool:
        return value if isinstance(value, bool) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return _number_in_form(value, kind, rule) if is_number else None


def _is_text(value: str) -> bool:
    """Whether a text can be stored and shown: no control characters, no halves of characters."""
    return not any(unicodedata.category(character) in ("Cc", "Cs") for character in value)


def _number_in_form(value: int | float, kind: Any, rule: Rule) -> int | float | None:
    try:
        number: float = kind(value)
        is_finite = math.isfinite(number)
    except (OverflowError, ValueError):  # infinite as an int, or an int too large for a float
        return None
    is_inside = (
        is_finite
        and number == value
        and (rule.least is None or number >= rule.least)
        and (rule.above is None or number > rule.above)
        and (rule.most is None or number <= rule.most)
        and (rule.below is None or number < rule.below)
    )
    return number if is_inside else None


def _tuple_in_form(value: Any, kinds: tuple[Any, ...], rule: Rule) -> tuple[Any, ...] | None:
    if not isinstance(value, list | tuple) or len(value) > _LONGEST_LIST:
        return None
    if kinds[-1] is not Ellipsis and len(value) != len(kinds):
        return None
    if not value and not rule.is_empty_allowed:
        return None
    items = tuple(_in_form(item, kinds[0], rule) for item in value)
    if any(item is None for item in items) or (kinds[0] is str and len(set(items)) < len(items)):
        return None
    if rule.is_ascending and any(a >= b for a, b in pairwise(items)):
        return None
    return items


def _in_words(kind: Any, rule: Rule) -> str:
    """What is expected.

    >>> _in_words(float, Rule(above=0, most=1)), _in_words(tuple[int, ...], Rule(least=32))
    ('a number above 0 and at most 1', 'a list of one or more whole numbers of at least 32')
    """
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        count = "" if rule.is_empty_allowed else "one or more "
        count = count if kinds[-1] is Ellipsis else f"{len(kinds)} "
        words = {int: "whole numbers", float: "numbers", str: "different texts"}[kinds[0]]
        order = " in ascending order" if rule.is_ascending else ""
        return f"a list of {count}{words}{_limits(rule)}{order}"
    if rule.choices:
        return f"one of {', '.join(rule.choices)}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]
    return words + _limits(rule)


def _limits(rule: Rule) -> str:
    limits = {
        "of at least": rule.least,
        "above": rule.above,
        "at most": rule.most,
        "below": rule.below,
    }
    parts = [f"{words} {limit:.15g}" for words, limit in limits.items() if limit is not None]
    return f" {' and '.join(parts)}" if parts else ""


def _hint(value: Any, kind: Any, rule: Rule, key: str) -> str:
    """What to do about a value that breaks a rule."""
    if rule.choices and isinstance(value, str):
        return closest(value, rule.choices) or f"Choose another {key}."
    if kind is str and isinstance(value, int | float):
        return "Put it in quotes."
    return f"Correct {key}."


def closest(name: str, known: Iterable[str]) -> str:
    """A question whether the most similar known name was meant; empty if none is similar.

    >>> closest("epoch", ["epochs", "batch_size"])
    "Did you mean 'epochs'?"
    """
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {found[0]!r}?" if found else ""


def checked_settings(settings: Any, key: str) -> dict[str, Any]:
    """A copy of a mapping from names to plain values: settings that another module will check."""
    if not isinstance(settings, Mapping):
        raise SettingError(key, settings, "expected names with values", f"Correct {key}.")
    for name, value in settings.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise SettingError(key, name, "expected the name of a setting", f"Correct {key}.")
        is_plain = value is None or isinstance(value, bool | int | float | str)
        is_finite = not isinstance(value, float) or math.isfinite(value)
        if not is_plain or not is_finite or (isinstance(value, str) and not _is_text(value)):
            raise SettingError(
                f"{key}.{name}",
                value,
                "expected a finite number, a text, true, false or null",
                f"Correct {key}.{name}.",
            )
    return dict(settings)
