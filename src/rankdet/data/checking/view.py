"""One HTML page with sample pictures of a data set and their boxes; it needs nothing else.

Names come from strangers: everything goes through the template, which escapes it.
"""

from __future__ import annotations

import base64
import io
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from PIL import Image

from rankdet import __version__
from rankdet.data.checking import statistics
from rankdet.data.checking.check import read_splits
from rankdet.data.reading import formats, images
from rankdet.data.reading.classes import did_you_mean
from rankdet.data.reading.findings import Findings
from rankdet.data.reading.rules import RULES
from rankdet.data.reading.split import Split
from rankdet.errors import DataError, RankdetError, printable

MARK = '<meta name="generator" content="rankdet view">'  # at the start of every such page

_LONGER_SIDE = 480  # pixels of a picture on the page
_QUALITY = 82  # of its JPEG
_MAX_EXAMPLES = 5  # findings of one rule
_MAX_HEIGHT = 20  # of a picture on the page, in rem: a high one would leave gaps beside it
_SMALLEST_NAMED = 0.03  # of the picture's area: names on smaller boxes would hide them

# The colours of Okabe and Ito, which colour-blind people can tell apart, with black exchanged for
# grey. There are more classes than colours: the names stand on the boxes too.
COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#bbbbbb"]


@dataclass(frozen=True)
class Sample:
    """One picture: pixels (height, width, 3) uint8, or the reason why there are none."""

    name: str
    pixels: np.ndarray | None
    error: str
    size: tuple[int, int]  # (width, height)
    boxes: np.ndarray  # (M, 4) xyxy pixels
    labels: np.ndarray  # (M,)
    is_ignored: np.ndarray  # (M,)


@dataclass(frozen=True)
class Section:
    """A split on the page: its numbers and some of its pictures."""

    name: str
    classes: tuple[str, ...]
    num_images: int
    num_objects: int | None  # None: not known
    num_ignored: int | None
    counts: dict[str, int]  # objects of each class, if known
    findings: Findings | None
    samples: list[Sample]
    error: str = ""  # why the split cannot be read, if so


def file_sections(
    path: Path,
    *,
    format: str | None = None,
    split_names: Sequence[str] = (),
    class_list: tuple[str, ...] | None = None,
    wanted: Sequence[str] = (),
    count: int = 24,
    seed: int = 0,
    allow_outside: bool = False,
    max_pixels: int = images.MAX_PIXELS,
) -> list[Section]:
    """The splits of a data set (all, unless some are named), `count` pictures of each.

    wanted: classes, one of which each picture must show. Pictures that cannot be decoded are part,
    and so are splits that cannot be read; DataError if none can.
    """
    format = format or formats.recognise(path)
    sections = []
    errors = []
    for name, split in read_splits(
        path,
        format,
        split_names,
        classes=class_list,
        allow_outside=allow_outside,
        max_pixels=max_pixels,
    ):
        if isinstance(split, DataError):
            errors.append(split)
            sections.append(Section(name, (), 0, 0, 0, {}, None, [], error=str(split)))
        else:
            sections.append(split_section(split, wanted, count, seed, max_pixels))
    if len(errors) == len(sections):
        raise errors[0]
    return sections


def split_section(
    split: Split, wanted: Sequence[str], count: int, seed: int, max_pixels: int = images.MAX_PIXELS
) -> Section:
    """Some pictures of a split that has been read."""
    annotations = split.annotations
    candidates: Sequence[int] = range(len(annotations))
    if wanted:
        is_wanted = np.isin(annotations.labels, _checked_labels(split.classes, wanted))
        candidates = [i for i in candidates if is_wanted[annotations.rows(i)].any()]
    samples = []
    for index in sorted(shuffled(candidates, seed, split.name)[:count]):
        path, rows = annotations.path(index), annotations.rows(index)
        pixels, error = None, ""
        try:
            pixels = images.decode(path, max_pixels)
        except DataError as reason:
            error = str(reason)
        width, height = annotations.sizes[index].tolist()
        objects = (annotations.boxes[rows], annotations.labels[rows], annotations.is_ignored[rows])
        samples.append(Sample(str(path), pixels, error, (width, height), *objects))
    return Section(
        name=split.name,
        classes=split.classes,
        num_images=len(split),
        num_objects=len(annotations.boxes),
        num_ignored=int(annotations.is_ignored.sum()),
        counts={row.name: row.num_objects for row in statistics.class_counts(split)},
        findings=split.findings,
        samples=samples,
    )


def synthetic_sections(
    *, split_names: Sequence[str] = (), wanted: Sequence[str] = (), count: int = 24, seed: int = 0
) -> list[Section]:
    """Pictures of the embedded data set, which are drawn now."""
    from rankdet.data.synthetic.dataset import SPLITS, open_synthetic  # needs torch

    sections = []
    for name in dict.fromkeys(split_names or SPLITS):
        dataset = open_synthetic(name)
        labels = set(_checked_labels(dataset.classes, wanted))
        samples: list[Sample] = []
        for index in shuffled(range(len(dataset)), seed, name):
            if len(samples) == count:
                break
            target = dataset.target(index)
            if wanted and not labels & set(target.labels.tolist()):
                continue
            pixels = dataset.image(index).permute(1, 2, 0).numpy()
            objects = (target.boxes.numpy(), target.labels.numpy(), target.is_ignored.numpy())
            height, width = dataset.size(index)
            samples.append(Sample(dataset.name(index), pixels, "", (width, height), *objects))
        # The objects of all images are known only after all have been arranged: not worth it here.
        unknown: dict[str, Any] = {"num_objects": None, "num_ignored": None, "counts": {}}
        section = Section(
            name, dataset.classes, len(dataset), findings=None, samples=samples, **unknown
        )
        sections.append(section)
    return sections


def render_page(sections: Sequence[Section], data: str, classes: Sequence[str] = ()) -> bytes:
    """The page as UTF-8. classes: those that the samples were chosen by, for the headline."""
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = lambda value: "–" if value is None else f"{value:,}"
    source = files("rankdet.data.checking").joinpath("view.html.jinja").read_text(encoding="utf-8")
    names = list(dict.fromkeys(name for section in sections for name in section.classes))
    number_of = {name: number % len(COLOURS) for number, name in enumerate(names)}
    text = environment.from_string(source).render(
        data=printable(data),
        version=__version__,
        chosen=[printable(name) for name in classes],
        palette=[(colour, ink(colour)) for colour in COLOURS],
        sections=[_section(section, number_of) for section in sections],
    )
    return text.encode("utf-8")


def _section(section: Section, number_of: dict[str, int]) -> dict[str, Any]:
    shown: Counter[str] = Counter()
    for sample in section.samples:
        shown.update(section.classes[label] for label in sample.labels.tolist())
    legend = [
        {
            "name": printable(name),
            "colour": number_of[name],
            "num_objects": section.counts.get(name),
            "num_shown": shown[name],
        }
        for name in section.classes
    ]
    return {
        "name": printable(section.name),
        "error": printable(section.error),
        "num_images": section.num_images,
        "num_objects": section.num_objects,
        "num_ignored": section.num_ignored,
        "legend": legend,
        "findings": _findings(section.findings) if section.findings else [],
        "tally": section.findings,
        "samples": [_sample(sample, section.classes, number_of) for sample in section.samples],
    }


def _findings(found: Findings) -> list[dict[str, Any]]:
    """One entry for each rule, faults first."""
    return [
        {
            "code": code,
            "rule": RULES[code],
            "outcome": found.examples[code][0].outcome,
            "count": count,
            "examples": [str(example) for example in found.examples[code][:_MAX_EXAMPLES]],
        }
        for code, count in sorted(
            found.counts.items(), key=lambda pair: (RULES[pair[0]].level, pair[0])
        )
    ]


def _sample(sample: Sample, classes: Sequence[str], number_of: dict[str, int]) -> dict[str, Any]:
    """One picture as the template wants it; places are percentages of the picture's size."""
    width, height = sample.size
    boxes = []
    scale = np.array([width, height, width, height]) / 100.0
    rows = zip(
        sample.boxes / scale, sample.labels.tolist(), sample.is_ignored.tolist(), strict=True
    )
    for (left, top, right, bottom), label, is_ignored in rows:
        boxes.append(
            {
                "left": round(float(left), 2),
                "top": round(float(top), 2),
                "width": round(float(right - left), 2),
                "height": round(float(bottom - top), 2),
                "name": printable(classes[label]),
                "colour": number_of[classes[label]],
                "is_ignored": is_ignored,
                "is_named": (right - left) * (bottom - top) >= _SMALLEST_NAMED * 100.0**2,
                "is_at_right": bool(left > 60.0),
            }
        )
    counts = Counter(printable(classes[label]) for label in sample.labels.tolist())
    objects = ", ".join(f"{count} {name}" for name, count in counts.items()) or "no objects"
    num_ignored = int(sample.is_ignored.sum())
    return {
        "name": printable(sample.name),
        "file": printable(Path(sample.name).name),
        "error": printable(sample.error),
        "source": "" if sample.pixels is None else data_address(sample.pixels),
        "width": width,
        "height": height,
        "max_width": round(_MAX_HEIGHT * width / height, 2),
        # The largest first: the small ones then lie on top and can be pointed at.
        "boxes": sorted(boxes, key=lambda box: -box["width"] * box["height"]),
        "objects": objects + (f" ({num_ignored} ignored)" if num_ignored else ""),
    }


def data_address(pixels: np.ndarray) -> str:
    """A scaled-down JPEG as a data: address, the same for the same pixels."""
    image = Image.fromarray(pixels)
    image.thumbnail((_LONGER_SIDE, _LONGER_SIDE), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def ink(colour: str) -> str:
    """Black or white, whichever is easier to read on a colour (WCAG's relative luminance).

    >>> ink("#f0e442"), ink("#0072b2")
    ('#000', '#fff')
    """
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "#fff"


def shuffled(candidates: Sequence[int], seed: int, name: str) -> list[int]:
    """The candidates in an order that depends on seed and split alone."""
    # Not all splits alike: two of the same length would show the same places of the list.
    return random.Random(f"{seed} {name}").sample(candidates, len(candidates))


def _checked_labels(classes: Sequence[str], wanted: Sequence[str]) -> list[int]:
    for name in wanted:
        if name not in classes:
            hint = did_you_mean(name, classes) or f"The classes are: {', '.join(classes)}."
            raise RankdetError(printable(f"--class {name!r}: there is no such class. {hint}"))
    return [classes.index(name) for name in wanted]
