"""Errors that a user can cause: each says where, what, which rule, and what to do."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence

_LONGEST_VALUE = 120  # characters of a value that a message repeats
_LONGEST_TEXT = 9000  # two paths are at most as long as this; a line of a list can be longer


class RankdetError(Exception):
    """A mistake outside our code; the command line prints its text alone, without a traceback."""


class DataError(RankdetError):
    """Something is wrong with the user's data.

    rule says what was expected; file, where (a line number, or a JSON path or XML element), field
    and value say what was found; detail is a further sentence about this case; hint says what to
    do; code is the short name of the rule.

    >>> print(DataError("expected a number", file="a.xml", where="object[1]", field="xmin",
    ...                 value="left", hint="Correct the box."))
    a.xml: object[1]: xmin = 'left': expected a number. Correct the box.
    >>> print(DataError("expected 5 columns", file="a.txt", where=3))
    a.txt:3: expected 5 columns.
    """

    def __init__(
        self,
        rule: str,
        *,
        code: str = "",
        file: str = "",
        where: int | str = "",
        field: str = "",
        value: object = None,
        detail: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(rule)
        self.rule = rule
        self.code = code
        self.file = file
        self.where = where
        self.field = field
        self.value = value if value is None else shorten(value)
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        return message(
            self.rule,
            file=self.file,
            where=self.where,
            field=self.field,
            value=self.value,
            hint=" ".join(part for part in (self.detail, self.hint) if part),
        )


class ConfigError(RankdetError):
    """A setting is unknown, or its value breaks a rule."""


class WeightsError(RankdetError):
    """A file of weights cannot be used."""


class CheckpointError(RankdetError):
    """A run or one of its checkpoints cannot be used, or must not be continued."""


class TrainingError(RankdetError):
    """The training cannot go on: numbers are not finite."""


class LoaderError(RankdetError):
    """A process that loads images died or hangs."""


def system_reason(error: Exception) -> str:
    """Why the system refuses something, in its own words.

    >>> system_reason(OSError(28, "No space left on device")), system_reason(ValueError())
    ('No space left on device', 'ValueError')
    """
    return getattr(error, "strerror", None) or type(error).__name__


def shorten(value: object) -> str:
    """The value as Python writes it, cut after a line's length: some values are whole files."""
    try:
        if isinstance(value, str | bytes):
            text = repr(value[: _LONGEST_VALUE + 1])
        else:
            text = _WRITER.repr(value)  # a container's first items: the rest is not even looked at
    except Exception:  # an integer of thousands of digits; an object that cannot be written
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."


def _value_writer() -> reprlib.Repr:
    """What writes values that are not text: like repr, but only so much of each."""
    writer = reprlib.Repr()
    writer.maxstring = writer.maxother = writer.maxlong = _LONGEST_VALUE
    return writer


_WRITER = _value_writer()


def counted(number: int, noun: str) -> str:
    """How many of what.

    >>> counted(1, "image"), counted(2000, "image")
    ('1 image', '2,000 images')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def listed(names: Sequence[str], most: int) -> str:
    """The names with commas, and how many more there are than `most`.

    >>> listed(["a", "b", "c"], most=3), listed(["a", "b", "c"], most=1)
    ('a, b, c', 'a and 2 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def message(
    rule: str,
    *,
    file: str = "",
    where: int | str = "",
    field: str = "",
    value: str | None = None,
    hint: str = "",
) -> str:
    """One line: `file:line: field = value: rule. hint`, without the parts that are not known."""
    place = f"{file}:{where}" if isinstance(where, int) else file
    parts = [place, "" if isinstance(where, int) else where]
    if field and value is not None:
        parts.append(f"{field} = {value}")
    else:
        parts.append(field or (value or ""))
    head = ": ".join(part for part in parts if part)
    text = printable((f"{head}: " if head else "") + f"{rule}." + (f" {hint}" if hint else ""))
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[: _LONGEST_TEXT // 2]} ... {text[-_LONGEST_TEXT // 2 :]}"


def printable(text: str) -> str:
    """The text, with control characters written out: none may reach a terminal or a log.

    >>> print(printable("two" + chr(10) + "lines"))
    two\\nlines
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
