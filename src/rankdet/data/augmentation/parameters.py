"""Random parameters of the augmentations: drawn here, applied in `transforms` and `batched`.

A sample has a fixed row of uniform numbers, made from its key alone, and each decision has a fixed
place in the row. So the same sample gets the same parameters in any batch, worker or process, and
changing one probability leaves all other decisions as they were.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from rankdet.data.augmentation.packed import PackedTargets
from rankdet.data.randomness import SampleKey, uniforms

MIN_SIDE = 1.0  # pixels: a box that became narrower or lower than this is dropped
LONGEST = 1536  # pixels: an image with a longer side is made smaller before the SSD chain
_OBJECTS_AT_ONCE = 4096  # whose IoU with all tries is computed together: 30 MB

# Principal components of the colours of ImageNet, RGB in 0..1, as AlexNet's authors used them.
_EIGENVALUES = (0.2175, 0.0188, 0.0045)
_EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))


@dataclass(frozen=True)
class SSDSettings:
    """The chain as in the code of the paper's authors; ranges are (lowest, highest).

    crop_minimum_ious: the options, one of which is drawn: None leaves the image whole, a number is
    the IoU that the crop must reach with some object, 0 asks for an object's centre only. An option
    that no try fulfils is drawn again; an image stays whole where none can be fulfilled.
    """

    brightness: float = 32 / 255  # added, at most
    brightness_probability: float = 0.5
    contrast: tuple[float, float] = (0.5, 1.5)
    contrast_probability: float = 0.5
    saturation: tuple[float, float] = (0.5, 1.5)
    saturation_probability: float = 0.5
    hue: float = 18 / 360  # turns of the colour circle, at most
    hue_probability: float = 0.5
    lighting: float = 0.1  # standard deviation
    lighting_probability: float = 0.5
    expand: tuple[float, float] = (1.0, 4.0)
    expand_probability: float = 0.5
    crop_minimum_ious: tuple[float | None, ...] = (None, 0.1, 0.3, 0.7, 0.9, 0.0)
    crop_sides: tuple[float, float] = (0.3, 1.0)  # of the image's width and height
    crop_aspects: tuple[float, float] = (0.5, 2.0)  # width : height
    num_tries: int = 50
    flip_probability: float = 0.5
    min_side: float = MIN_SIDE

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("probability") and not 0 <= value <= 1:
                raise ValueError(f"{field.name}: expected 0..1, got {value}")
        for name, low in (("contrast", 0), ("saturation", 0), ("expand", 1), ("crop_aspects", 0)):
            _check_range(name, getattr(self, name), low)
        _check_range("crop_sides", self.crop_sides, 0, 1)
        if not self.crop_minimum_ious:
            raise ValueError("crop_minimum_ious: expected at least one option")
        if not 0 <= self.hue <= 0.5:
            raise ValueError(f"hue: expected 0..0.5 turns, got {self.hue}")
        if self.num_tries < 1:
            raise ValueError(f"num_tries: expected at least 1, got {self.num_tries}")
        if not self.min_side > 0:
            raise ValueError(f"min_side: expected more than 0, got {self.min_side}")


def check_pixels(**lengths: object) -> None:
    """ValueError for a length that is not a whole number of pixels above 0."""
    for name, length in lengths.items():
        if not isinstance(length, Integral) or length < 1:
            raise ValueError(f"{name}: expected a whole number of pixels above 0, got {length!r}")


def _check_range(name: str, ends: tuple[float, float], low: float, high: float = math.inf) -> None:
    if not low <= ends[0] <= ends[1] <= high:
        raise ValueError(f"{name}: expected {low} <= lowest <= highest <= {high}, got {ends}")


@dataclass(frozen=True)
class SSDParameters:
    """What the SSD chain does to each of B samples; a step that is left out has its neutral value.

    brightness (B,): added, 0 neutral. contrast (B,) and saturation (B,): factors, 1 neutral.
    is_contrast_first (B,) bool: contrast before saturation and hue, otherwise after. hue (B,):
    turns, 0 neutral. lighting (B, 3): added to R, G, B. canvases (B, 2): height and width after
    the expansion. offsets (B, 2): top and left of the image in its canvas. crops (B, 4): the
    window xyxy in the canvas, all of it if there is no crop. is_flipped (B,) bool. Colours are
    float32, places int64; all on the CPU.
    """

    brightness: Tensor
    contrast: Tensor
    is_contrast_first: Tensor
    saturation: Tensor
    hue: Tensor
    lighting: Tensor
    canvases: Tensor
    offsets: Tensor
    crops: Tensor
    is_flipped: Tensor

    def __len__(self) -> int:
        return len(self.brightness)

    def row(self, index: int) -> SSDParameters:
        """The parameters of one sample, B = 1."""
        fields = dataclasses.fields(self)
        return SSDParameters(*(getattr(self, field.name)[index, None] for field in fields))


# The place of each decision in a sample's row of uniform numbers. The tries of the crop stand
# behind, four numbers each, so that their number does not matter to the rest.
_DECISIONS = (
    "is_bright",
    "brightness",
    "is_contrasted",
    "contrast",
    "is_contrast_first",
    "is_saturated",
    "saturation",
    "is_hued",
    "hue",
    "is_lit",
    "lighting_0",
    "lighting_1",
    "lighting_2",
    "is_expanded",
    "expand",
    "top",
    "left",
    "crop_option",
    "is_flipped",
)


def sample_ssd(
    keys: Sequence[SampleKey], targets: PackedTargets, settings: SSDSettings
) -> SSDParameters:
    """The parameters of each sample, from its key, size and boxes alone."""
    draws = uniforms(keys, len(_DECISIONS) + 4 * settings.num_tries)
    draw = dict(zip(_DECISIONS, draws[:, : len(_DECISIONS)].unbind(dim=1), strict=True))
    tries = draws[:, len(_DECISIONS) :].reshape(len(keys), settings.num_tries, 4)

    def if_drawn(decision: str, probability: float, value: Tensor, neutral: float) -> Tensor:
        return torch.where(draw[decision] < probability, value, neutral).float()

    s = settings
    brightness = _between(draw["brightness"], (-s.brightness, s.brightness))
    contrast = _between(draw["contrast"], s.contrast)
    saturation = _between(draw["saturation"], s.saturation)
    hue = _between(draw["hue"], (-s.hue, s.hue))
    canvases, offsets = _sample_expansions(draw, targets.sizes, s)
    return SSDParameters(
        brightness=if_drawn("is_bright", s.brightness_probability, brightness, 0.0),
        contrast=if_drawn("is_contrasted", s.contrast_probability, contrast, 1.0),
        is_contrast_first=draw["is_contrast_first"] < 0.5,
        saturation=if_drawn("is_saturated", s.saturation_probability, saturation, 1.0),
        hue=if_drawn("is_hued", s.hue_probability, hue, 0.0),
        lighting=_sample_lighting(draw, s),
        canvases=canvases,
        offsets=offsets,
        crops=_sample_crops(draw["crop_option"], tries, targets, canvases, offsets, s),
        is_flipped=draw["is_flipped"] < s.flip_probability,
    )


def _between(uniform: Tensor, ends: tuple[float, float]) -> Tensor:
    return ends[0] + (ends[1] - ends[0]) * uniform


def _sample_lighting(draw: dict[str, Tensor], settings: SSDSettings) -> Tensor:
    """(B, 3): what AlexNet's colour noise adds to R, G, B."""
    uniform = torch.stack([draw[f"lighting_{component}"] for component in range(3)], dim=1)
    # A uniform number of 0 would be a normal one of -infinity.
    normal = math.sqrt(2) * torch.erfinv(2 * uniform.clamp(min=1e-12) - 1)
    strengths = settings.lighting * normal * normal.new_tensor(_EIGENVALUES)
    # A sum of three, not a matrix product: its rounding would depend on the batch.
    noise = (strengths[:, None, :] * normal.new_tensor(_EIGENVECTORS)).sum(dim=2)
    is_lit = draw["is_lit"] < settings.lighting_probability
    return torch.where(is_lit[:, None], noise, 0.0).float()


def _sample_expansions(
    draw: dict[str, Tensor], sizes: Tensor, settings: SSDSettings
) -> tuple[Tensor, Tensor]:
    """(B, 2) int64 canvases and offsets: every whole-pixel place in the canvas is equally likely.

    Differs from the paper: sizes and places are whole pixels.
    """
    is_expanded = draw["is_expanded"] < settings.expand_probability
    ratios = torch.where(is_expanded, _between(draw["expand"], settings.expand), 1.0)
    canvases = (sizes * ratios[:, None]).long()
    places = torch.stack([draw["top"], draw["left"]], dim=1)
    return canvases, (places * (canvases - sizes + 1)).long()


def _sample_crops(
    option: Tensor,
    tries: Tensor,
    targets: PackedTargets,
    canvases: Tensor,
    offsets: Tensor,
    settings: SSDSettings,
) -> Tensor:
    """(B, 4) int64 windows xyxy: the first try that fits, or the whole canvas.

    The authors' code draws another option where no try fits. The options that can be fulfilled are
    then equally likely, so that one of these is drawn here.

    Differs from the paper: their new option has new tries, here it has the same ones.
    """
    options = settings.crop_minimum_ious
    is_whole = torch.tensor([minimum is None for minimum in options])
    minimum_ious = torch.tensor([minimum or 0.0 for minimum in options], dtype=torch.float64)
    windows, is_shaped = _candidate_windows(tries, canvases, settings)
    ious = _best_ious(windows, targets, offsets, settings.min_side)
    fits = is_shaped[:, None, :] & (ious[:, None, :] >= minimum_ious[:, None]) & ~is_whole[:, None]
    is_possible = fits.any(dim=2) | is_whole
    number = (option * is_possible.sum(dim=1)).long()
    is_choice = is_possible & (is_possible.cumsum(dim=1) == number[:, None] + 1)
    samples = torch.arange(len(windows))
    fits = fits[samples, is_choice.int().argmax(dim=1)]
    chosen = windows[samples, fits.int().argmax(dim=1)]
    whole = torch.cat([torch.zeros_like(canvases), canvases.flip(1)], dim=1)
    return torch.where(fits.any(dim=1, keepdim=True), chosen.long(), whole)


def _candidate_windows(
    tries: Tensor, canvases: Tensor, settings: SSDSettings
) -> tuple[Tensor, Tensor]:
    """(B, T, 4) float64 windows xyxy with whole-pixel edges; (B, T): their aspect is allowed."""
    canvas = canvases[:, None, :].double()
    lengths = (_between(tries[..., :2], settings.crop_sides) * canvas).floor().clamp(min=1)
    starts = (tries[..., 2:] * (canvas - lengths + 1)).floor()
    windows = torch.cat([starts.flip(-1), (starts + lengths).flip(-1)], dim=-1)
    aspect = lengths[..., 1] / lengths[..., 0]
    low, high = settings.crop_aspects
    return windows, (low <= aspect) & (aspect <= high)


def _best_ious(windows: Tensor, targets: PackedTargets, offsets: Tensor, min_side: float) -> Tensor:
    """(B, T) float64: the best IoU of a window with an object whose centre is inside of it.

    -1 if there is no such object, 1 in an image without objects, which asks for nothing. Ignored
    objects count only where an image has no others.

    Differs from the paper: there the centre may be one object's and the IoU another's; this is how
    torchvision's RandomIoUCrop reads the SSD paper.
    """
    sides = targets.boxes[:, 2:] - targets.boxes[:, :2]
    is_usable = (sides >= min_side).all(dim=1)
    is_real = is_usable & ~targets.is_ignored
    has_real = torch.bincount(targets.rows[is_real], minlength=len(targets)) > 0
    is_counted = torch.where(has_real[targets.rows], is_real, is_usable)
    rows = targets.rows[is_counted]
    boxes = targets.boxes[is_counted].double() + offsets.flip(1).repeat(1, 2)[rows]

    best = windows.new_full(windows.shape[:2], -1.0)
    # An image can have thousands of objects: the memory must not grow with them.
    for part, its_rows in zip(
        boxes.split(_OBJECTS_AT_ONCE), rows.split(_OBJECTS_AT_ONCE), strict=True
    ):
        ious = _centred_ious(part[:, None, :], windows[its_rows])
        best.scatter_reduce_(0, its_rows[:, None].expand_as(ious), ious, "amax")
    num_counted = torch.bincount(rows, minlength=len(targets))
    return torch.where((num_counted == 0)[:, None], 1.0, best)


def _centred_ious(boxes: Tensor, windows: Tensor) -> Tensor:
    """IoU of boxes and windows (..., 4), which broadcast; -1 if the box's centre is outside."""
    left, top, right, bottom = boxes.unbind(dim=-1)
    x1, y1, x2, y2 = windows.unbind(dim=-1)
    x, y = (left + right) / 2, (top + bottom) / 2
    is_inside = (x1 < x) & (x < x2) & (y1 < y) & (y < y2)
    width = (torch.minimum(right, x2) - torch.maximum(left, x1)).clamp_(min=0)
    height = (torch.minimum(bottom, y2) - torch.maximum(top, y1)).clamp_(min=0)
    common = width * height
    union = (right - left) * (bottom - top) + (x2 - x1) * (y2 - y1) - common
    return torch.where(is_inside, common / union, -1.0)


@dataclass(frozen=True)
class JitterSettings:
    """Shorter side drawn from lowest, lowest + step, ..., highest; a longer side at most `longest`.

    The paper says 480..800; the usual values are 32 apart, and few sizes suit the convolutions'
    tuning. With step 1 every whole number can come up.
    """

    shorter: tuple[int, int] = (480, 800)
    step: int = 32
    longest: int = 1333
    flip_probability: float = 0.5
    min_side: float = MIN_SIDE

    def __post_init__(self) -> None:
        _check_range("shorter", self.shorter, 1)
        if self.step < 1:
            raise ValueError(f"step: expected at least 1, got {self.step}")
        if self.longest < 1:
            raise ValueError(f"longest: expected at least 1, got {self.longest}")
        if not 0 <= self.flip_probability <= 1:
            raise ValueError(f"flip_probability: expected 0..1, got {self.flip_probability}")
        if not self.min_side > 0:
            raise ValueError(f"min_side: expected more than 0, got {self.min_side}")


@dataclass(frozen=True)
class JitterParameters:
    """sizes (B, 2) int64: the new height and width; is_flipped (B,) bool. On the CPU."""

    sizes: Tensor
    is_flipped: Tensor

    def __len__(self) -> int:
        return len(self.sizes)

    def row(self, index: int) -> JitterParameters:
        """The parameters of one sample, B = 1."""
        return JitterParameters(self.sizes[index, None], self.is_flipped[index, None])


def sample_flip(keys: Sequence[SampleKey], size: int) -> JitterParameters:
    """Each sample becomes size x size, and with a probability of one half it is mirrored."""
    sizes = torch.full((len(keys), 2), size, dtype=torch.int64)
    return JitterParameters(sizes, is_flipped=uniforms(keys, 1)[:, 0] < 0.5)


def sample_jitter(
    keys: Sequence[SampleKey], targets: PackedTargets, settings: JitterSettings
) -> JitterParameters:
    """The parameters of each sample, from its key and size alone."""
    scale, flip = uniforms(keys, 2).unbind(dim=1)
    low, high = settings.shorter
    num_values = (high - low) // settings.step + 1
    shorter = low + settings.step * (scale * num_values).long()
    sizes = [
        resized_size((height, width), side, settings.longest)
        for (height, width), side in zip(targets.sizes.tolist(), shorter.tolist(), strict=True)
    ]
    return JitterParameters(
        sizes=torch.tensor(sizes, dtype=torch.int64).view(-1, 2),
        is_flipped=flip < settings.flip_probability,
    )


def resized_size(size: tuple[int, int], shorter: int, longest: int) -> tuple[int, int]:
    """(height, width) with the aspect kept: the shorter side as asked, unless the longer forbids.

    >>> resized_size((375, 500), shorter=600, longest=1000)
    (600, 800)
    >>> resized_size((200, 500), shorter=600, longest=1000)
    (400, 1000)
    """
    scale = min(shorter / min(size), longest / max(size))
    height, width = (max(1, round(side * scale)) for side in size)
    return height, width
