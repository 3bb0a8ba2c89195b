"""Lists of class names: read from a file, checked, matched with a data set's own."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeGuard

from rankdet.data.reading.findings import data_error
from rankdet.data.reading.parsing import read_lines

MAX_NAME = 200  # characters: what is longer is no name, and slow to compare


def read_class_list(path: Path | str) -> tuple[str, ...]:
    """The class names of a text file, one on each line; blank lines do not count."""
    path = Path(path)
    names = [line.strip() for line in read_lines(path)]
    return checked_classes([name for name in names if name], file=path)


def checked_classes(names: Iterable[str], *, file: object) -> tuple[str, ...]:
    """The names as a tuple, if they are different and not empty; otherwise DataError.

    >>> checked_classes(["cat", "dog"], file="classes.txt")
    ('cat', 'dog')
    """

    def refuse(detail: str, value: object = None) -> Exception:
        return data_error("classes-invalid", file=file, field="classes", value=value, detail=detail)

    if isinstance(names, str):
        raise refuse("It is one text, not a list.", names)
    names = tuple(names)
    if not names:
        raise refuse("It has no names.")
    seen = set()
    for name in names:
        if not isinstance(name, str):
            raise refuse("Every name must be a text.", name)
        if not is_class_name(name):
            raise refuse(f"A name has 1 to {MAX_NAME} characters.", name)
        if name in seen:
            raise refuse("The name stands there twice.", name)
        seen.add(name)
    return names


@functools.lru_cache(maxsize=1000)  # one misspelt class can be that of every object
def did_you_mean(name: str, names: tuple[str, ...]) -> str:
    """A sentence with that one of `names` which is most like `name`; empty if none is.

    >>> did_you_mean("persom", ("person", "cat"))
    "Did you mean 'person'?"
    """
    if len(name) > MAX_NAME:
        return ""
    lower = {other.lower(): other for other in names}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    return f"Did you mean {lower[close[0]]!r}?" if close else ""


@dataclass(frozen=True)
class ClassList:
    """The classes of a split; category_ids: the file's own number of each, in the same order.

    labels: category id -> index in classes, for those categories that are wanted.
    """

    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    labels: dict[int, int]


def choose_classes(
    own: Mapping[str, int], classes: tuple[str, ...] | None, file: object
) -> ClassList:
    """The file's `own` classes (name -> category id), or the given ones, matched by their names.

    A given class that the file does not have gets a category id that the file does not use.

    >>> choose_classes({"cat": 1, "dog": 5}, ("dog", "bird"), "a.json")
    ClassList(classes=('dog', 'bird'), category_ids=(5, 6), labels={5: 0})
    """
    if classes is None:
        classes = tuple(own)
    elif not own.keys() & set(classes):
        detail = f"It has {', '.join(list(own)[:10])}."
        raise data_error(
            "classes-foreign", file=file, field="classes", value=classes, detail=detail
        )
    spare = count(max(own.values(), default=-1) + 1)
    category_ids = tuple(own[name] if name in own else next(spare) for name in classes)
    labels = {own[name]: label for label, name in enumerate(classes) if name in own}
    return ClassList(classes, category_ids, labels)


def is_class_name(value: object) -> TypeGuard[str]:
    """Whether this is a text that can be shown and written: not blank, no half characters."""
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON and YAML can hold half of a surrogate pair
        return False
    return True
