"""The splits for training and validation, for a user who named none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rankdet.data.reading.findings import data_error
from rankdet.data.reading.formats import split_names

SYNTHETIC_SPLITS = ("train:2000", "val:500")

# A year of VOC before the word, or of COCO after it: 2012_train, train2017.
_TRAINING = re.compile(
    r"(?P<before>(.*_)?)(?P<word>train|trainval)(?P<after>[0-9]*)", re.IGNORECASE
)
_VALIDATION = ("val", "valid", "validation")


def choose_splits(path: Path | str, format: str | None = None) -> tuple[str, str | None]:
    """The names of the splits to train with and to evaluate on; the latter None if there is none.

    They are found by name: `train` with `val`, `valid` or `validation`, and the same with a year
    (`2012_train`, `train2017`). Without a `train`, a `trainval`, and nothing to evaluate on; a set
    with one split is for training. A split called test is never chosen: numbers on it are for the
    end. DataError if more than one choice is possible (several years), or none.
    """
    if path == "synthetic":
        return SYNTHETIC_SPLITS
    names = split_names(path, format)
    pairs = training_pairs(names)
    if len(pairs) != 1:
        detail = f"There are {', '.join(names)}." if names else "There is none at all."
        raise data_error("split-unclear", file=path, detail=detail)
    return pairs[0]


def training_pairs(names: Sequence[str]) -> list[tuple[str, str | None]]:
    """Every choice that the names of the splits allow, as `choose_splits` describes it.

    >>> training_pairs(["train", "val", "trainval"])
    [('train', 'val')]
    >>> training_pairs(["2007_train", "2007_val", "2012_train", "2012_val"])
    [('2007_train', '2007_val'), ('2012_train', '2012_val')]
    """
    if len(names) == 1:
        return [(names[0], None)]
    found = [match for match in map(_TRAINING.fullmatch, names) if match]
    pairs: list[tuple[str, str | None]] = [
        (match[0], _validation_of(match, names))
        for match in found
        if match["word"].lower() == "train"
    ]
    return pairs or [(match[0], None) for match in found]


def _validation_of(match: re.Match[str], names: Sequence[str]) -> str | None:
    """The split that belongs to a training split: the same name with another word in it."""
    wanted = [f"{match['before']}{word}{match['after']}".lower() for word in _VALIDATION]
    return next((name for name in names if name.lower() in wanted), None)
