"""Names of splits: aliases, and the order in which they are listed."""

from __future__ import annotations

from collections.abc import Iterable

from rankdet.data.reading.findings import data_error

# The papers' names of COCO's splits, and both spellings of "validation".
_ALIASES = {
    "trainval35k": "train2017",
    "minival": "val2017",
    "test-dev": "test-dev2017",
    "val": "valid",
    "valid": "val",
}
_ORDER = ("train", "val", "", "test")  # "": any other name


def find_split(asked: str, known: Iterable[str], file: object) -> str:
    """The name among `known` that `asked` means; DataError if there is none.

    >>> find_split("minival", ["train2017", "val2017"], "coco")
    'val2017'
    """
    names = list(known)
    for name in (asked, _ALIASES.get(asked)):
        if name in names:
            assert name is not None
            return name
    detail = f"There are: {', '.join(names)}." if names else "There is none at all."
    raise data_error("split-unknown", file=file, field="split", value=asked, detail=detail)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Training before validation before testing, each in the order of the alphabet.

    >>> in_order(["test", "train2", "valid", "train1"])
    ('train1', 'train2', 'valid', 'test')
    """

    def rank(name: str) -> tuple[int, str]:
        start = next((part for part in _ORDER if part and name.startswith(part)), "")
        return _ORDER.index(start), name

    return tuple(sorted(names, key=rank))
