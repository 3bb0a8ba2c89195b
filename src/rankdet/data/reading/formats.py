"""Data sets of any format: which one it is, its splits, and a split or a sum of splits read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from rankdet.data.reading import coco, voc, yolo
from rankdet.data.reading.annotations import Annotations, assemble
from rankdet.data.reading.classes import checked_classes, did_you_mean, read_class_list
from rankdet.data.reading.findings import Finding, Findings, data_error
from rankdet.data.reading.images import MAX_PIXELS
from rankdet.data.reading.rules import RULES
from rankdet.data.reading.split import Parsed, Split
from rankdet.data.reading.unrecognised import is_archive, is_named_as_part, what_it_is
from rankdet.errors import DataError, system_reason

__all__ = ["FORMATS", "read_class_list", "read_split", "recognise", "split_names"]


class _Reader(Protocol):
    """What the module of a format offers."""

    def matches(self, path: Path) -> bool: ...

    def split_names(self, path: Path) -> tuple[str, ...]: ...

    def parse(
        self,
        path: Path,
        split: str,
        *,
        classes: tuple[str, ...] | None,
        findings: Findings,
        allow_outside: bool,
    ) -> Parsed: ...


_READERS: dict[str, _Reader] = {"voc": voc, "coco": coco, "yolo": yolo}
FORMATS = tuple(_READERS)

_LOOKED_FOR = {
    "voc": voc.LOOKED_FOR,
    "coco": "COCO: a JSON file with images, annotations and categories, here or in annotations",
    "yolo": "YOLO: a data.yaml, or folders images and labels",
}


def recognise(path: Path | str) -> str:
    """The format of a data set, one of FORMATS, from its files; DataError if it is not clear."""
    path = _existing(path)
    found = _matching(path)
    if not found:
        sentences = _what_it_is(path)
        detail = f"Looked for {'; '.join(_LOOKED_FOR.values())}."
        raise data_error("data-unrecognised", file=path, detail=f"{sentences} {detail}".strip())
    if len(found) > 1:
        detail = f"It looks like {' and like '.join(found)}."
        raise data_error("data-unrecognised", file=path, detail=detail)
    return found[0]


def _matching(path: Path) -> list[str]:
    """The formats that the files look like."""
    with _system_errors_explained(path):
        if is_archive(path):
            return []
        return [name for name, reader in _READERS.items() if reader.matches(path)]


def _what_it_is(path: Path) -> str:
    """What can be said of a path that has no format; empty if there is nothing."""
    try:
        is_inside = is_named_as_part(path) and bool(_matching(path.absolute().parent))
    except DataError:
        is_inside = False
    with _system_errors_explained(path):
        return what_it_is(path, is_inside)


def split_names(path: Path | str, format: str | None = None) -> tuple[str, ...]:
    """The splits of a data set. Sums of them ("a+b") can be read too."""
    path = _existing(path)
    format = _checked_format(path, format)
    with _system_errors_explained(path):
        return _READERS[format].split_names(path)


def read_split(
    path: Path | str,
    split: str,
    *,
    format: str | None = None,
    classes: Sequence[str] | None = None,
    allow_outside: bool = False,
    max_pixels: int = MAX_PIXELS,
    on_start: Callable[[int], None] | None = None,
    on_image: Callable[[], None] | None = None,
) -> Split:
    """A split, or a sum of splits such as "2007_trainval+2012_trainval", read and judged.

    classes: the class list, where the data's own is not wanted. allow_outside: whether files may
    lie outside of the data set. on_start is called with the number of images, then on_image as
    many times. The headers of all images are read, but no pixels.
    """
    if not isinstance(split, str):
        raise ValueError(f"split: expected a text, got {split!r}")
    path = _existing(path)
    format = _checked_format(path, format)
    names = None if classes is None else checked_classes(classes, file=path)
    parts = _part_names(path, split, split_names(path, format))
    with _system_errors_explained(path):
        parsed = _parse_all(path, format, parts, names, allow_outside)
    _check_annotated(path, parts, [part.is_annotated for part, _ in parsed])
    if on_start is not None:
        on_start(sum(part.num_images for part, _ in parsed))
    read = [_assembled(part, found, max_pixels, on_image) for part, found in parsed]
    findings = Findings()
    for _, found in parsed:
        findings.merge(found)
    if not any(len(part) for part in read):
        raise _empty(path, split, findings)
    first = parsed[0][0]
    result = Split(
        name=split,
        format=format,
        classes=first.classes,
        category_ids=first.category_ids,
        is_annotated=first.is_annotated,
        annotations=_joined(path, parts, read),
        findings=findings,
    )
    if result.is_annotated:
        _note_empty_classes(path, result)
    return result


def _existing(path: Path | str) -> Path:
    """The path, if it can be looked at."""
    path = Path(path)
    try:
        with _system_errors_explained(path):
            path.stat()
    except ValueError as error:  # a null character in the name
        raise data_error("data-missing", file=path) from error
    return path


@contextmanager
def _system_errors_explained(path: Path) -> Iterator[None]:
    """Turns what the system says about a file into a DataError."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise data_error("data-missing", file=error.filename or path) from error
    except OSError as error:
        raise data_error(
            "file-unreadable", file=error.filename or path, detail=f"{system_reason(error)}."
        ) from error


def _checked_format(path: Path, format: str | None) -> str:
    if format is None:
        return recognise(path)
    if format not in FORMATS:
        raise ValueError(f"format: expected one of {', '.join(FORMATS)}, got {format!r}")
    with _system_errors_explained(path):
        is_of_format = not is_archive(path) and _READERS[format].matches(path)
    if not is_of_format:
        others = _matching(path)
        detail = f"Looked for {_LOOKED_FOR[format]}."
        if others:
            detail += f" It looks like {' and like '.join(map(str.upper, others))}."
        else:
            detail += f" {_what_it_is(path)}".rstrip()
        raise data_error("format-differs", file=path, field="format", value=format, detail=detail)
    return format


def _part_names(path: Path, split: str, names: tuple[str, ...]) -> list[str]:
    """The parts of a sum. A split may have a plus in its own name."""
    parts = [split] if split in names else [part.strip() for part in split.split("+")]
    if "" in parts:
        is_sum = len(parts) > 1
        text = "A part of the sum has no name." if is_sum else "The name is empty."
        raise _unknown_split(path, split, names, text)
    for part, count in Counter(parts).items():
        if count > 1:
            detail = f"{part!r} stands there {count} times."
            raise data_error("split-overlap", file=path, field="split", value=split, detail=detail)
    return parts


def _parse_all(
    path: Path,
    format: str,
    parts: list[str],
    classes: tuple[str, ...] | None,
    allow_outside: bool,
) -> list[tuple[Parsed, Findings]]:
    """Every part as its reader gives it, all with the same classes."""
    parsed = []
    for part in parts:
        findings = Findings()
        result = _parse(path, format, part, classes, allow_outside, findings)
        parsed.append((result, findings))
    lists = [part.classes for part, _ in parsed]
    differing = next((i for i, names in enumerate(lists) if names != lists[0]), None)
    if differing is None:
        return parsed
    only = sorted(set(lists[0]) ^ set(lists[differing]))[:5]
    raise data_error(
        "classes-differ",
        file=path,
        field="split",
        value="+".join(parts),
        detail=f"{parts[0]!r} has {len(lists[0])}, {parts[differing]!r} {len(lists[differing])}"
        + (
            f"; only one of them has {', '.join(map(repr, only))}."
            if only
            else ", in another order."
        ),
    )


def _check_annotated(path: Path, parts: list[str], are_annotated: list[bool]) -> None:
    """Refuse a sum with a test set in it: its images would be used as background."""
    if len(set(are_annotated)) > 1:
        bare = [repr(part) for part, is_one in zip(parts, are_annotated, strict=True) if not is_one]
        raise data_error(
            "split-unannotated",
            file=path,
            field="split",
            value="+".join(parts),
            detail=f"There are none for {', '.join(bare)}.",
        )


def _parse(
    path: Path,
    format: str,
    part: str,
    classes: tuple[str, ...] | None,
    allow_outside: bool,
    findings: Findings,
) -> Parsed:
    """One part as its reader gives it."""
    reader = _READERS[format]
    try:
        return reader.parse(
            path, part, classes=classes, findings=findings, allow_outside=allow_outside
        )
    except DataError as error:
        if error.code != "split-unknown":
            raise
        names = reader.split_names(path)
        raise _unknown_split(path, part, names, did_you_mean(part, names)) from error


def _unknown_split(path: Path, split: str, names: tuple[str, ...], text: str) -> DataError:
    """The error for a split that is none of `names`; text: a sentence that comes first, or none."""
    detail = f"There are {', '.join(names)}." if names else "There is none."
    return data_error(
        "split-unknown", file=path, field="split", value=split, detail=f"{text} {detail}".strip()
    )


def _assembled(
    parsed: Parsed, findings: Findings, max_pixels: int, on_image: Callable[[], None] | None
) -> Annotations:
    """The annotations of one part. on_image is called for those images too that a reader skips."""
    num_called = 0

    def called() -> None:
        nonlocal num_called
        num_called += 1
        if on_image is not None:
            on_image()

    annotations = assemble(
        parsed.images,
        findings,
        is_annotated=parsed.is_annotated,
        max_pixels=max_pixels,
        on_image=called,
    )
    for _ in range(parsed.num_images - num_called):
        called()
    return annotations


def _joined(path: Path, parts: list[str], read: list[Annotations]) -> Annotations:
    """All parts as one; refused if an image stands in two of them."""
    if len(read) == 1:
        return read[0]
    joined = Annotations.concatenate(read)
    paths, counts = np.unique(joined.paths, return_counts=True)
    if len(paths) < len(joined):
        example = os.fsdecode(paths[counts > 1][0])
        detail = f"{int((counts > 1).sum())} images stand in two parts, such as {example}."
        raise data_error(
            "split-overlap", file=path, field="split", value="+".join(parts), detail=detail
        )
    return joined


def _empty(path: Path, split: str, findings: Findings) -> DataError:
    """The error for a split without a usable image, with the reason that most images have."""
    tally = findings.images
    if not tally.seen:
        detail = "It lists no image."
    else:
        code, count = tally.dropped.most_common(1)[0]
        example = findings.examples[code][0]
        detail = (
            f"{tally.seen} images were seen. Of {count}: {RULES[code].rule}, such as"
            f" {example.file}. {RULES[code].hint}"
        )
    return data_error("data-empty", file=path, field="split", value=split, detail=detail)


def _note_empty_classes(path: Path, split: Split) -> None:
    """A note for each class that has no object, or only such as do not count."""
    labels, is_ignored = split.annotations.labels, split.annotations.is_ignored
    num_all = np.bincount(labels, minlength=len(split.classes))
    num_counting = np.bincount(labels[~is_ignored], minlength=len(split.classes))
    for name, total, counting in zip(split.classes, num_all, num_counting, strict=True):
        if counting == 0:
            detail = f"All {total} are difficult or crowd." if total else ""
            split.findings.add(
                Finding.of("class-empty", file=path, field="class", value=name, detail=detail)
            )
