"""Starting from a whole detector with other classes: its class output is mapped by their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from rankdet.detectors.anchors import PyramidAnchors
from rankdet.detectors.class_names import TORCHVISION_COCO_CLASSES, match_classes
from rankdet.detectors.detector import ClassOutput, Detector
from rankdet.detectors.weight_fit import (
    check_fit,
    copy_tensors,
    count_anchors,
    detector_kind,
    fitting_settings,
)
from rankdet.errors import WeightsError, listed, message

__all__ = ["TORCHVISION_COCO_CLASSES", "HeadMapping", "load_detector"]

# Names that tensors had before torchvision 0.13. The convolutions of RetinaNet's heads were conv.0,
# conv.2, ... with activations between; those of the pyramid and of the RPN stood alone.
_OLD_NAMES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(r"(head\.\w+_head\.conv)\.(\d+)\.(weight|bias)"),
        lambda found: f"{found[1]}.{int(found[2]) // 2}.0.{found[3]}",
    ),
    (
        re.compile(r"(backbone\.fpn\.(?:inner|layer)_blocks\.\d+)\.(weight|bias)"),
        lambda found: f"{found[1]}.0.{found[2]}",
    ),
    (
        re.compile(r"(rpn\.head\.conv)\.(weight|bias)"),
        lambda found: f"{found[1]}.0.0.{found[2]}",
    ),
)
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
    detector: Detector,
    tensors: Mapping[str, Tensor],
    *,
    source_classes: Sequence[str] | None,
    classes: Sequence[str],
    activation: str = "sigmoid",
    source_activation: str = "sigmoid",
    file: str = "",
) -> HeadMapping:
    """Put the weights of another detector, ours or torchvision's, into this one.

    All is copied but the class outputs (`Detector.class_outputs`), whose columns are mapped by the
    names of the classes; those without a namesake stay as initialised. A softmax's background
    column is taken from a softmax.

    Args:
        tensors: of the whole source, from `read_tensors`.
        source_classes: its classes in the order of its columns, without the background of a
            softmax. None: not known; then 91 columns are torchvision's COCO, and of any other
            number no class is taken.
        classes: of this detector.
        activation: of this detector, "sigmoid" or "softmax" (column 0 is background).
        source_activation: of the source.
        file: the source's name, for messages.
    """
    state = detector.state_dict()
    tensors = _current_names(tensors)
    outputs = detector.class_outputs()
    num_columns = _check_detector(detector, outputs, tensors, state, file)
    if source_classes is None:
        is_coco = num_columns == len(TORCHVISION_COCO_CLASSES)
        first = int(source_activation == "softmax")
        source_classes = TORCHVISION_COCO_CLASSES[first:] if is_coco else ()
    else:
        _check_columns(num_columns, len(source_classes), source_activation, file)

    matches = match_classes(classes, source_classes)
    columns = _column_pairs(matches, activation, source_activation)
    for output in outputs:
        for name in _parts(output):
            _copy_columns(tensors.pop(name), state[name], output, columns)
    copy_tensors(tensors, state)
    pairs = list(zip(classes, matches, strict=True))
    return HeadMapping(
        mapped=tuple((name, source_classes[match]) for name, match in pairs if match is not None),
        fresh=tuple(name for name, match in pairs if match is None),
    )


def _current_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same, with old names of torchvision's brought up to date."""
    renamed = {}
    for name, tensor in tensors.items():
        found = ((old.fullmatch(name), rename) for old, rename in _OLD_NAMES)
        renamed[next((rename(match) for match, rename in found if match), name)] = tensor
    return renamed


def _parts(output: ClassOutput) -> tuple[str, str]:
    """The names of an output's tensors."""
    return f"{output.name}.weight", f"{output.name}.bias"


def _check_detector(
    detector: Detector,
    outputs: Sequence[ClassOutput],
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    file: str,
) -> int:
    """How many columns the source's class outputs have; WeightsError if anything else differs."""
    _check_kind(tensors, state, file)
    hint = fitting_settings(tensors, state, _num_ratios(detector))
    num_anchors, expected = count_anchors(tensors), count_anchors(state)
    if num_anchors not in (0, expected):
        rule = f"it has {num_anchors} anchors at each place, the detector {expected}"
        raise WeightsError(message(rule, file=file, hint=hint))
    bias = tensors.get(_parts(outputs[0])[1])
    num_columns = 1 if bias is None else max(1, bias.numel() // outputs[0].num_anchors)
    fitting = dict(state)
    for output in outputs:
        num_rows = output.num_anchors * num_columns * output.width
        for name in _parts(output):
            shape = (num_rows, *state[name].shape[1:])
            fitting[name] = state[name].new_empty(shape, device="meta")
    check_fit(tensors, fitting, file=file, hint=hint)
    return num_columns


def _num_ratios(detector: Detector) -> int:
    """Of the anchors of the pyramid; 3 if there is none, where it is of no matter."""
    parts = (getattr(module, "anchors", None) for module in detector.modules())
    return next((len(part.ratios) for part in parts if isinstance(part, PyramidAnchors)), 3)


def _check_kind(tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], file: str) -> None:
    """Raise WeightsError if the names say that the source is another detector."""
    given, present = detector_kind(tensors), detector_kind(state)
    if given.title in (present.title, "unknown"):
        return
    rule = f"is of {given.title}; the detector is {present.title}"
    hint = f"The file fits detector.name={given.name}." if given.name else ""
    raise WeightsError(message(rule, file=file, hint=hint))


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
    source: Tensor, target: Tensor, output: ClassOutput, columns: Sequence[tuple[int, int]]
) -> None:
    """Copy columns of a class output, whose rows are (anchor, column, value)."""
    source = source.reshape(output.num_anchors, -1, output.width, *source.shape[1:])
    target = target.view(output.num_anchors, -1, output.width, *target.shape[1:])
    for column, source_column in columns:
        target[:, column].copy_(source[:, source_column])
