"""What is wrong with a data set, and what is in it: every annotation read, every image decoded.

Reads through the same functions as training. Nothing is written, and no torch is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from rankdet.data.checking import decoding
from rankdet.data.checking.decoding import Outcome
from rankdet.data.reading import formats, images
from rankdet.data.reading.findings import Finding, Findings, data_error
from rankdet.data.reading.split import Split
from rankdet.errors import DataError
from rankdet.progress import progress


@dataclass(frozen=True)
class Report:
    """All that a check found.

    splits: those that could be read, without the images that cannot be decoded. errors: the
    others, by name. between: what concerns two splits at once.
    """

    data: str
    format: str
    splits: list[Split]
    errors: dict[str, DataError]
    between: Findings

    @property
    def num_faults(self) -> int:
        """A fault counts once for every split that holds the image, and once for an overlap."""
        found = sum(split.findings.num_faults for split in self.splits)
        return found + len(self.errors) + self.between.num_faults


def check(
    path: Path,
    *,
    format: str | None = None,
    split_names: Sequence[str] = (),
    classes: tuple[str, ...] | None = None,
    allow_outside: bool = False,
    max_pixels: int = images.MAX_PIXELS,
    num_workers: int = 0,
    max_seconds: float = decoding.MAX_SECONDS,
    decode: decoding.Decode = images.decode,
) -> Report:
    """The report on some splits of a data set, or on all that it has.

    DataError if the data set is not recognised; a split that cannot be read is part of the report.
    """
    format = format or formats.recognise(path)
    splits, errors = [], {}
    for name, result in read_splits(
        path,
        format,
        split_names,
        classes=classes,
        allow_outside=allow_outside,
        max_pixels=max_pixels,
    ):
        if isinstance(result, DataError):
            errors[name] = result
        else:
            splits.append(result)

    files = sorted({bytes(name) for split in splits for name in split.annotations.paths})
    with progress("Decoding") as meter:
        meter.expect(len(files))
        outcomes = decoding.decode_all(
            [_path(name) for name in files],
            num_workers=num_workers,
            max_pixels=max_pixels,
            max_seconds=max_seconds,
            decode=decode,
            on_image=meter.advance,
        )
    outcome_of = dict(zip(files, outcomes, strict=True))
    splits = [without_undecodable(split, outcome_of) for split in splits]
    digest_of = {name: outcome.digest for name, outcome in outcome_of.items()}
    for split in splits:
        note_repeats(split, digest_of)
    between = find_overlaps(splits, digest_of)
    between.merge(find_class_differences(path, splits))
    return Report(str(path), format, splits, errors, between)


def read_splits(
    path: Path,
    format: str,
    split_names: Sequence[str] = (),
    *,
    classes: tuple[str, ...] | None = None,
    allow_outside: bool = False,
    max_pixels: int = images.MAX_PIXELS,
) -> Iterator[tuple[str, Split | DataError]]:
    """Name and content of some splits, or of all, with a progress bar; or why one cannot be read.

    DataError if the data set has no splits.
    """
    names = tuple(split_names) or formats.split_names(path, format)
    if not names:
        raise data_error("data-empty", file=path, detail="No split was found.")
    for name in dict.fromkeys(names):
        try:
            with progress(f"Reading {name}") as meter:
                split = formats.read_split(
                    path,
                    name,
                    format=format,
                    classes=classes,
                    allow_outside=allow_outside,
                    max_pixels=max_pixels,
                    on_start=meter.expect,
                    on_image=meter.advance,
                )
        except DataError as error:
            yield name, error
        else:
            yield name, split


def _path(name: bytes) -> Path:
    return Path(os.fsdecode(name))


def without_undecodable(split: Split, outcomes: Mapping[bytes, Outcome]) -> Split:
    """The split without the images that cannot be decoded; its findings tell of them from now on.

    They move with their objects from "used" to "dropped": the counts still reconcile.
    """
    annotations = split.annotations
    kept = []
    for index, name in enumerate(annotations.paths):
        finding = outcomes[bytes(name)].finding
        if finding is None:
            kept.append(index)
        else:
            is_ignored = annotations.is_ignored[annotations.rows(index)]
            split.findings.unuse_image(finding, len(is_ignored), int(is_ignored.sum()))
    return replace(split, annotations=annotations.take(np.array(kept, dtype=np.int64)))


def note_repeats(split: Split, digests: Mapping[bytes, bytes | None]) -> None:
    """Add a finding for each image of the split whose content an earlier one has already."""
    first_with: dict[bytes | None, bytes] = {}
    for name in map(bytes, split.annotations.paths):
        first = first_with.setdefault(digests[name], name)
        if first != name:
            detail = f"The other one is {os.fsdecode(first)}."
            split.findings.add(Finding.of("image-twice", file=os.fsdecode(name), detail=detail))


def find_overlaps(splits: Sequence[Split], digests: Mapping[bytes, bytes | None]) -> Findings:
    """A finding for each content that stands in two splits which should have nothing in common."""
    found = Findings()
    by_content = [
        {digests[name]: name for name in map(bytes, split.annotations.paths)} for split in splits
    ]
    for (one, first), (other, second) in combinations(zip(splits, by_content, strict=True), 2):
        if is_expected_overlap(one, other):
            continue
        for digest, name in first.items():
            if digest in second:
                twin = os.fsdecode(second[digest])
                detail = f"It is in {one.name}, and in {other.name} as {twin}."
                found.add(Finding.of("image-in-two-splits", file=os.fsdecode(name), detail=detail))
    return found


def is_expected_overlap(one: Split, other: Split) -> bool:
    """Whether one of two splits holds all files of the other, as its name lets expect.

    So do VOC's trainval, a sum, and lists whose names say nothing of their use. But a train that
    holds all of val is a mistake.
    """
    pairs = ((one, other), (other, one))
    return any(
        (uses(small.name) <= uses(large.name) or not uses(large.name))
        and set(small.annotations.paths) <= set(large.annotations.paths)
        for small, large in pairs
    )


def uses(name: str) -> set[str]:
    """What a split is for, by its name.

    >>> sorted(uses("2007_trainval+2007_test"))
    ['test', 'train', 'val']
    >>> uses("debug")
    set()
    """
    return set(re.findall("train|val|test", name.lower()))


def find_class_differences(path: Path, splits: Sequence[Split]) -> Findings:
    """A finding for each annotated split whose class list is not that of the first."""
    found = Findings()
    annotated = [split for split in splits if split.is_annotated]
    for split in annotated[1:]:
        first = annotated[0]
        if split.classes != first.classes:
            only = sorted(set(split.classes) ^ set(first.classes))[:5]
            names = ", ".join(map(repr, only))
            difference = f"only one of them has {names}" if only else "the order differs"
            detail = f"Compared with {first.name}: {difference}."
            found.add(
                Finding.of(
                    "split-classes", file=path, field="split", value=split.name, detail=detail
                )
            )
    return found
