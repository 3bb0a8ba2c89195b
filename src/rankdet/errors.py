"""Errors that a user can cause: each says where, what, which rule, and what to do."""

from __future__ import annotations

_LONGEST_VALUE = 120  # characters of a value that a message repeats


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


def shorten(value: object) -> str:
    """The value as Python writes it, cut after a line's length: some values are whole files."""
    if isinstance(value, str | bytes):
        value = value[: _LONGEST_VALUE + 1]
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; endless nesting
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."


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
    # A control character (a line break in a file's name, an escape sequence) must not reach a
    # terminal or a log.
    text = (f"{head}: " if head else "") + f"{rule}." + (f" {hint}" if hint else "")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
