"""Which class of a trained detector stands for which of another: by name, with known synonyms."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchvision.models.detection import RetinaNet_ResNet50_FPN_Weights

# The columns of torchvision's detectors for COCO: by COCO's own numbers, which have gaps ("N/A").
TORCHVISION_COCO_CLASSES: tuple[str, ...] = tuple(
    RetinaNet_ResNet50_FPN_Weights.COCO_V1.meta["categories"]
)

_NO_CLASSES = ("__background__", "N/A")

# Names of one thing in COCO, VOC and common use, as `_plain` writes them.
_SYNONYMS = (
    ("airplane", "aeroplane"),
    ("motorcycle", "motorbike"),
    ("couch", "sofa"),
    ("tv", "tvmonitor", "television"),
    ("cellphone", "mobilephone"),
    ("donut", "doughnut"),
    ("hairdrier", "hairdryer"),
)
_FIRST_SYNONYM = {name: names[0] for names in _SYNONYMS for name in names}


def match_classes(classes: Sequence[str], source_classes: Sequence[str]) -> list[int | None]:
    """For each class its index in the source, or None if the source has no such class.

    The same name wins, then one that differs in case, spaces, hyphens and underscores only, then a
    synonym. Equal lists match place by place.

    >>> match_classes(["sofa", "Dining_Table", "lamp"], ["dining table", "couch"])
    [1, 0, None]
    """
    if list(classes) == list(source_classes):  # also the columns that are no class
        return list(range(len(classes)))
    matches: list[int | None] = [None] * len(classes)
    for spell in (str, _plain, _canonical):
        index_of: dict[str, int] = {}
        for index, name in enumerate(source_classes):
            if name not in _NO_CLASSES:
                index_of.setdefault(spell(name), index)
        matches = [
            index_of.get(spell(name)) if match is None else match
            for name, match in zip(classes, matches, strict=True)
        ]
    return matches


def _plain(name: str) -> str:
    """The name in small letters, without spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]+", "", name.casefold()) or name


def _canonical(name: str) -> str:
    """The first of the name's synonyms."""
    return _FIRST_SYNONYM.get(_plain(name), _plain(name))
