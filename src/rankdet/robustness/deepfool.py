"""DeepFool (Moosavi-Dezfooli et al. 2016) for detectors: how small a change of the image is enough.

The paper "slightly generalize[s] this method from attacking classifier to attacking detector" and
says no more. Chosen here:

- A classifier's one prediction becomes the prediction at one anchor for each object: of the anchors
  whose box has an IoU of at least 0.5 with the object, and at which the detector predicts the
  object's class (see the next point), the one with the highest score for it. This is the detection
  before non-maximum suppression. An object without such an anchor is not detected, and not
  attacked: there is nothing to change. Ignored objects are not looked at.
- What is predicted at an anchor. Softmax: the column with the highest logit, background included.
  Sigmoid: the class with the highest logit, or nothing if that is below the logit of the class's
  threshold (scores of ranking losses mean nothing by themselves, so the threshold is the one with
  the best F1, as for all that we show; see `midway_thresholds` for where exactly it lies). So the
  prediction changes when another column passes, or, for a sigmoid, when the score falls below the
  threshold.
- The detector is run again on each perturbed image. Its anchors do not move; the RoIs of Faster
  R-CNN do, and the anchor is then the one that overlaps the original one most.
- The image is what the detector sees, after resizing; padding is never changed. As in DeepFool the
  values are not clipped to 0..1.

Each step linearises all margins f_l(x) = logit of the own class - logit of the other (or of the
threshold) and goes to the closest boundary: r = -f_l / ||w_l||^2 w_l with w_l = grad f_l and l =
argmin |f_l| / ||w_l||; the sum of all steps is made 2 % longer, so that the boundary is passed.
As in DeepFool's published code, f_l is taken 0.0001 larger, or a score that is equal to its
threshold would never move, and of many classes only the `num_boundaries` with the smallest margins
are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchvision.ops import box_iou

from rankdet.boxes import clip_boxes, decode_boxes
from rankdet.robustness.attacked import Batch, held_still, inside, log_odds, own_columns
from rankdet.structures import Detections, Predictions, Target

BEYOND = 1e-4  # by how much of a logit each step aims beyond the boundary


@dataclass(frozen=True)
class DeepFoolSettings:
    """overshoot: how much longer the perturbation is made than the linear model says."""

    overshoot: float = 0.02
    max_iterations: int = 50
    num_boundaries: int = 10
    iou: float = 0.5


@dataclass(frozen=True)
class Aim:
    """The prediction to be changed: of an object (its row in the image's Target) at an anchor."""

    image: int
    object: int
    anchor: int
    label: int


@dataclass(frozen=True)
class Fooled:
    """What became of each attacked object.

    norms: of the perturbation, L2 over all values of the image, pixels in 0..1. relative_norms:
    divided by that of the image. num_iterations: steps that were made. is_fooled: whether the
    prediction changed; the norms of the others are those of what was tried in vain.
    num_objects: in the images that were looked at; num_detected of them were detected, and attacked
    unless the number of attacks was limited.
    """

    norms: Tensor
    relative_norms: Tensor
    num_iterations: Tensor
    is_fooled: Tensor
    num_objects: int
    num_detected: int

    def summary(self) -> dict[str, float | int | None]:
        """Means over the objects whose prediction changed, ready for JSON; None without any.

        norm_255 is the norm in grey levels of 0..255.
        """
        num_fooled = int(self.is_fooled.sum())

        def mean(values: Tensor) -> float | None:
            return values[self.is_fooled].double().mean().item() if num_fooled else None

        norm = mean(self.norms)
        return {
            "norm": norm,
            "norm_255": None if norm is None else 255 * norm,
            "relative_norm": mean(self.relative_norms),
            "iterations": mean(self.num_iterations),
            "success_rate": 100 * num_fooled / len(self.norms) if len(self.norms) else None,
            "num_attacked": len(self.norms),
            "num_detected": self.num_detected,
            "num_objects": self.num_objects,
        }


def deepfool(
    detector: nn.Module,
    batches: Iterable[Batch],
    *,
    activation: str,
    thresholds: Sequence[float],
    box_weights: Sequence[float],
    settings: DeepFoolSettings | None = None,
    max_objects: int | None = None,
    on_objects: Callable[[int], None] | None = None,
) -> Fooled:
    """The attacks on the detected objects of all batches, or on the first `max_objects` of them.

    One object of each image of a batch is attacked at a time. thresholds: the lowest score that
    counts for each class, see `midway_thresholds`. on_objects: told how many attacks were finished.
    """
    settings = DeepFoolSettings() if settings is None else settings
    device = next(detector.parameters()).device
    limits = torch.tensor(thresholds, dtype=torch.float64).logit(eps=1e-9).float().to(device)
    attack = _Attack(detector, limits, activation, settings)
    parts: list[Attempt] = []
    num_objects = num_detected = num_attacked = 0
    with held_still(detector):
        for batch in batches:
            if max_objects is not None and num_attacked >= max_objects:
                break
            images = batch.images.to(device)
            targets = [target.to(device) for target in batch.targets]
            with torch.no_grad():
                stage = detector(images, sizes=batch.sizes)[-1]
            aims = attack.find_aims(stage, targets, batch.sizes, box_weights)
            num_objects += sum(int((~target.is_ignored).sum()) for target in targets)
            num_detected += len(aims)
            aims = aims if max_objects is None else aims[: max_objects - num_attacked]
            for group in one_of_each_image(aims):
                own = [aim.image for aim in group]
                parts.append(
                    attack.fool(images[own], batch.sizes[own], anchors_of(stage, group), group)
                )
                num_attacked += len(group)
                if on_objects is not None:
                    on_objects(len(group))
    return _together(parts, num_objects, num_detected)


def midway_thresholds(
    thresholds: Sequence[float], found: Sequence[Detections]
) -> tuple[float, ...]:
    """Each class's threshold, moved halfway down to the next lower score of the class.

    found: the detections that the thresholds were chosen by. Any threshold between two neighbouring
    scores keeps the same detections. The highest of them is the score of a detection: its object
    would be fooled by no perturbation at all, or by the rounding of another batch. Without a lower
    score a threshold stays.

    >>> scores = torch.tensor([0.75, 0.5, 0.25])
    >>> found = [Detections(torch.zeros(3, 4), scores, torch.tensor([0, 0, 1]))]
    >>> midway_thresholds([0.75, 0.25], found)
    (0.625, 0.25)
    """
    scores = torch.cat([detections.scores for detections in found])
    labels = torch.cat([detections.labels for detections in found])
    moved = []
    for label, threshold in enumerate(thresholds):
        lower = scores[(labels == label) & (scores < threshold)]
        moved.append((threshold + lower.max().item()) / 2 if len(lower) else threshold)
    return tuple(moved)


@dataclass(frozen=True)
class Attempt:
    """One attack on each of B images.

    perturbations (B, 3, H, W), pixels in 0..1, the overshoot included. norms and relative_norms
    (B,) float32 of them, num_iterations (B,) int64, is_fooled (B,) bool.
    """

    perturbations: Tensor
    norms: Tensor
    relative_norms: Tensor
    num_iterations: Tensor
    is_fooled: Tensor


@dataclass(frozen=True)
class _Attack:
    """What all attacks have in common. limits (K,): the logit of each class's threshold."""

    detector: nn.Module
    limits: Tensor
    activation: str
    settings: DeepFoolSettings

    def margins(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(N, C): by how much the own class of each row leads each other column; see `margins`."""
        return margins(logits, labels, self.limits, self.activation)

    def find_aims(
        self,
        stage: Predictions,
        targets: Sequence[Target],
        sizes: Tensor,
        box_weights: Sequence[float],
    ) -> list[Aim]:
        """The anchor at which each object is detected best, of objects that are detected."""
        aims = []
        for image, target in enumerate(targets):
            for number in (~target.is_ignored).nonzero().flatten().tolist():
                label = int(target.labels[number])
                logits = stage.logits[image].float()
                labels = target.labels[number].expand(len(logits))
                is_predicted = (self.margins(logits, labels) >= 0).all(dim=1)
                boxes = class_boxes(stage, image, label, box_weights)
                boxes = clip_boxes(boxes.unsqueeze(0), sizes[image : image + 1])[0]
                overlap = box_iou(target.boxes[number : number + 1], boxes)[0]
                is_candidate = is_predicted & (overlap >= self.settings.iou)
                if stage.is_padding is not None:
                    is_candidate &= ~stage.is_padding[image]
                scores = log_odds(logits, labels, self.activation)
                scores = torch.where(is_candidate, scores, -torch.inf)
                if len(scores) and is_candidate.any():
                    aims.append(Aim(image, number, int(scores.argmax()), label))
        return aims

    def fool(self, images: Tensor, sizes: Tensor, anchors: Tensor, aims: Sequence[Aim]) -> Attempt:
        """The perturbation of each image (B, 3, H, W) that changes its prediction at the aim.

        anchors (B, 4): the boxes of the aims' anchors.
        """
        settings = self.settings
        labels = torch.tensor([aim.label for aim in aims], device=images.device)
        numbers = torch.tensor([aim.anchor for aim in aims], device=images.device)
        is_inside = inside(images, sizes)
        total = torch.zeros_like(images)
        is_fooled = torch.zeros(len(images), dtype=torch.bool, device=images.device)
        num_iterations = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        going = torch.arange(len(images), device=images.device)
        for iteration in range(settings.max_iterations + 1):
            is_last = iteration == settings.max_iterations
            perturbed = images[going] + (1 + settings.overshoot) * total[going]
            with torch.set_grad_enabled(not is_last):
                perturbed.requires_grad_(not is_last)
                stage = self.detector(perturbed, sizes=sizes[going.cpu()])[-1]
                places = followed(stage, numbers[going], anchors[going])
                rows = stage.logits[torch.arange(len(going), device=images.device), places]
                leads = self.margins(rows.float(), labels[going])
            has_changed = (leads < 0).any(dim=1)
            is_fooled[going] = has_changed
            num_iterations[going] = iteration
            if is_last or bool(has_changed.all()):
                break
            step, can_move = closest_boundary(
                leads, perturbed, is_inside[going], settings.num_boundaries
            )
            goes_on = ~has_changed & can_move
            total[going] += torch.where(goes_on.view(-1, 1, 1, 1), step, 0.0)
            going = going[goes_on]
            if not len(going):
                break
        perturbations = (1 + settings.overshoot) * total
        norms = perturbations.flatten(1).norm(dim=1)
        of_images = (images * is_inside).flatten(1).norm(dim=1)
        return Attempt(perturbations, norms, norms / of_images, num_iterations, is_fooled)


def margins(logits: Tensor, labels: Tensor, limits: Tensor, activation: str) -> Tensor:
    """(N, C): by how much the own class of each row leads each column; negative: it does not.

    logits (N, C), labels (N,) in 0..K-1. In the own column stands the lead over the threshold of
    the class, whose logits are limits (K,); for a softmax, which has background as a column, there
    is no threshold, and it is infinite.

    >>> limits = torch.tensor([-1.0, -2.0])
    >>> margins(torch.tensor([[3.0, 1.0]]), torch.tensor([0]), limits, "sigmoid")
    tensor([[4., 2.]])
    >>> margins(torch.tensor([[0.0, 3.0, 1.0]]), torch.tensor([0]), limits, "softmax")
    tensor([[3., inf, 2.]])
    """
    columns = own_columns(labels, activation).unsqueeze(1)
    lowest = (
        limits[labels] if activation == "sigmoid" else torch.full_like(logits[:, 0], -torch.inf)
    )
    return logits.gather(1, columns) - logits.scatter(1, columns, lowest.unsqueeze(1))


def closest_boundary(
    leads: Tensor, images: Tensor, is_inside: Tensor, num_boundaries: int
) -> tuple[Tensor, Tensor]:
    """The shortest steps (B, 3, H, W) on which a linear model of a lead vanishes, and (B,) bool.

    leads (B, C), functions of the images (B, 3, H, W); is_inside (B, 1, H, W): 0 where nothing may
    be changed. The second is False where no lead depends on the image: there is no such step.
    """
    smallest = leads.topk(min(num_boundaries, leads.shape[1]), dim=1, largest=False).values
    best = torch.full_like(smallest[:, 0], torch.inf)
    step = torch.zeros_like(images)
    for column in range(smallest.shape[1]):
        # An image's lead depends on that image alone: the gradient of the sum is all of theirs.
        (gradient,) = torch.autograd.grad(
            smallest[:, column].sum(), images, retain_graph=column + 1 < smallest.shape[1]
        )
        gradient = gradient * is_inside
        square = gradient.flatten(1).square().sum(dim=1)
        lead = smallest[:, column].detach()
        distance = torch.where(square > 0, (lead.abs() + BEYOND) / square.sqrt(), torch.inf)
        is_closer = (distance < best).view(-1, 1, 1, 1)
        factor = torch.where(distance.isfinite(), -(lead.abs() + BEYOND) / square, 0.0)
        step = torch.where(is_closer, factor.view(-1, 1, 1, 1) * gradient, step)
        best = best.minimum(distance)
    return step.detach(), best.isfinite()


def class_boxes(stage: Predictions, image: int, label: int, box_weights: Sequence[float]) -> Tensor:
    """(A, 4): the box of each anchor of an image, for this class where each has its own."""
    anchors = stage.anchors[image] if stage.has_own_anchors else stage.anchors
    deltas = stage.deltas[image]
    return decode_boxes(deltas[:, label] if deltas.ndim == 3 else deltas, anchors, box_weights)


def anchors_of(stage: Predictions, aims: Sequence[Aim]) -> Tensor:
    """(N, 4): the boxes of the anchors that are aimed at."""
    numbers = [aim.anchor for aim in aims]
    if not stage.has_own_anchors:
        return stage.anchors[numbers]
    return stage.anchors[[aim.image for aim in aims], numbers]


def followed(stage: Predictions, numbers: Tensor, anchors: Tensor) -> Tensor:
    """(B,): the anchor of each image that has this number; RoIs: which overlaps this box most."""
    if not stage.has_own_anchors:
        return numbers
    overlaps = torch.stack(
        [box_iou(box.unsqueeze(0), own)[0] for box, own in zip(anchors, stage.anchors, strict=True)]
    )
    if stage.is_padding is not None:
        overlaps = overlaps.masked_fill(stage.is_padding, -1.0)
    return overlaps.argmax(dim=1)


def one_of_each_image(aims: Sequence[Aim]) -> list[list[Aim]]:
    """The aims in groups that have an image at most once, each as large as it can be.

    >>> aims = [Aim(0, 0, 5, 1), Aim(0, 1, 6, 1), Aim(1, 0, 7, 1)]
    >>> [[(aim.image, aim.object) for aim in group] for group in one_of_each_image(aims)]
    [[(0, 0), (1, 0)], [(0, 1)]]
    """
    groups: list[list[Aim]] = []
    counts: dict[int, int] = {}
    for aim in aims:
        position = counts.get(aim.image, 0)
        counts[aim.image] = position + 1
        if position == len(groups):
            groups.append([])
        groups[position].append(aim)
    return groups


def _together(parts: Sequence[Attempt], num_objects: int, num_detected: int) -> Fooled:
    def column(name: str, kind: torch.dtype) -> Tensor:
        tensors = (getattr(part, name).cpu() for part in parts)
        return torch.cat([torch.zeros(0, dtype=kind), *tensors])

    return Fooled(
        norms=column("norms", torch.float32),
        relative_norms=column("relative_norms", torch.float32),
        num_iterations=column("num_iterations", torch.int64),
        is_fooled=column("is_fooled", torch.bool),
        num_objects=num_objects,
        num_detected=num_detected,
    )
