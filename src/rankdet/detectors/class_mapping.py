"""Starting from a whole detector with other classes: its class output is mapped by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from rankdet.detectors.class_names import TORCHVISION_COCO_CLASSES, match_classes
from rankdet.detectors.retinanet import RetinaNet
from rankdet.detectors.weight_fit import check_fit, copy_tensors, count_anchors, fitting_settings
from rankdet.errors import WeightsError, listed, message

__all__ = ["TORCHVISION_COCO_CLASSES", "HeadMapping", "load_detector"]

_CLASS_OUTPUT = "head.classification_head.cls_logits."
_MOST_NAMES = 20  # of classes, that a sentence lists


@dataclass(frozen=True)
class HeadMapping:
    """Where the columns of a class output come from.

    mapped: (class, class of the source) for each class that was taken over. fresh: the classes that
    start as initialised.
    """

    mapped: tuple[tuple[str, str], ...]
    fresh: tuple[str, ...]

    def describe(self) -> str:
        """A sentence for the log: how many, which start fresh, and which had another name.

        >>> HeadMapping((("dog", "dog"), ("sofa", "couch")), ("lamp", "rug")).describe()
        '2 of 4 classes taken from the source (sofa from couch), 2 start fresh: lamp, rug'
        """
        num_classes = len(self.mapped) + len(self.fresh)
        text = f"{len(self.mapped)} of {num_classes} classes taken from the source"
        renamed = [f"{name} from {source}" for name, source in self.mapped if name != source]
        text += f" ({listed(renamed, _MOST_NAMES)})" if renamed else ""
        text += f", {len(self.fresh)} start fresh"
        return f"{text}: {listed(self.fresh, _MOST_NAMES)}" if self.fresh else text


def load_detector(
    detector: RetinaNet,
    tensors: Mapping[str, Tensor],
    *,
    source_classes: Sequence[str] | None,
    classes: Sequence[str],
    activation: str = "sigmoid",
    source_activation: str = "sigmoid",
    file: str = "",
) -> HeadMapping:
    """Put the weights of another detector, ours or torchvision's, into this one.

    All is copied but the class output, whose columns are mapped by the names of the classes; those
    without a namesake stay as initialised. A softmax's background column is taken from a softmax.

    Args:
        tensors: of the whole source, from `read_tensors`.
        source_classes: its classes in the order of its columns. None: not known; then 91 columns
            are torchvision's COCO, and of any other number no class is taken.
        classes: of this detector.
        activation: of this detector, "sigmoid" or "softmax" (column 0 is background).
        source_activation: of the source.
        file: the source's name, for messages.
    """
    state = detector.state_dict()
    tensors = _current_names(tensors)
    num_columns = _check_detector(detector, tensors, state, file)
    if source_classes is None:
        is_coco = num_columns == len(TORCHVISION_COCO_CLASSES)
        source_classes = TORCHVISION_COCO_CLASSES if is_coco else ()
    else:
        _check_columns(num_columns, len(source_classes), source_activation, file)

    matches = match_classes(classes, source_classes)
    columns = _column_pairs(matches, activation, source_activation)
    for name in (_CLASS_OUTPUT + "weight", _CLASS_OUTPUT + "bias"):
        _copy_columns(tensors.pop(name), state[name], count_anchors(state), columns)
    copy_tensors(tensors, state)
    pairs = list(zip(classes, matches, strict=True))
    return HeadMapping(
        mapped=tuple((name, source_classes[match]) for name, match in pairs if match is not None),
        fresh=tuple(name for name, match in pairs if match is None),
    )


def _current_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same, with names that torchvision's heads had before 0.13 brought up to date.

    Their convolutions were conv.0, conv.2, ... with activations between; now conv.0.0, conv.1.0.
    """
    old = re.compile(r"(head\.\w+_head\.conv)\.(\d+)\.(weight|bias)")
    renamed = {}
    for name, tensor in tensors.items():
        found = old.fullmatch(name)
        current = f"{found[1]}.{int(found[2]) // 2}.0.{found[3]}" if found else name
        renamed[current] = tensor
    return renamed


def _check_detector(
    detector: RetinaNet, tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], file: str
) -> int:
    """How many columns the source's class output has; WeightsError if anything else differs."""
    num_ratios = len(detector.anchor_generator.aspect_ratios[0])
    hint = fitting_settings(tensors, state, num_ratios)
    num_anchors, expected = count_anchors(tensors), count_anchors(state)
    if num_anchors not in (0, expected):
        rule = f"it has {num_anchors} anchors at each place, the detector {expected}"
        raise WeightsError(message(rule, file=file, hint=hint))
    bias = tensors.get(_CLASS_OUTPUT + "bias")
    num_columns = 1 if bias is None else max(1, bias.numel() // expected)
    fitting = dict(state)
    for name in (_CLASS_OUTPUT + "weight", _CLASS_OUTPUT + "bias"):
        shape = (expected * num_columns, *state[name].shape[1:])
        fitting[name] = state[name].new_empty(shape, device="meta")
    check_fit(tensors, fitting, file=file, hint=hint)
    return num_columns


def _check_columns(num_columns: int, num_classes: int, source_activation: str, file: str) -> None:
    expected = num_classes + (source_activation == "softmax")
    if num_columns != expected:
        rule = (
            f"its class output has {num_columns} columns; expected {expected} for "
            f"{num_classes} classes and {source_activation}"
        )
        raise WeightsError(message(rule, file=file))


def _column_pairs(
    matches: Sequence[int | None], activation: str, source_activation: str
) -> list[tuple[int, int]]:
    """(column, column of the source) for all that is taken over.

    >>> _column_pairs([1, None], "softmax", "softmax")
    [(0, 0), (1, 2)]
    """
    first, source_first = int(activation == "softmax"), int(source_activation == "softmax")
    pairs = [
        (index + first, match + source_first)
        for index, match in enumerate(matches)
        if match is not None
    ]
    return [(0, 0), *pairs] if first and source_first else pairs


def _copy_columns(
    source: Tensor, target: Tensor, num_anchors: int, columns: Sequence[tuple[int, int]]
) -> None:
    """Copy columns of a class output, whose rows are (anchor, column), anchors first."""
    source = source.reshape(num_anchors, -1, *source.shape[1:])
    target = target.view(num_anchors, -1, *target.shape[1:])
    for column, source_column in columns:
        target[:, column].copy_(source[:, source_column])
