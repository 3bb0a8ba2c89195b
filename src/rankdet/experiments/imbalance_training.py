"""The trainings of the study on imbalance: proposal network, snapshot, and the detector itself.

Proposal network and snapshots are trained once and kept in OUT/runs, for the rows that share them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from rankdet import build
from rankdet.config import Config, to_dict
from rankdet.detectors.assign import IoUAssigner
from rankdet.detectors.criterion import Criterion, Losses
from rankdet.detectors.detector import Detector, freeze
from rankdet.errors import TrainingError
from rankdet.experiments.experiment import Request
from rankdet.experiments.imbalance import Study
from rankdet.experiments.optimisations import summary_of
from rankdet.experiments.proposals import ProposalCriterion, WithProposals, one_class, proposal_loss
from rankdet.experiments.short_training import Curve, train_curve
from rankdet.losses import IGNORED
from rankdet.output import write_whole
from rankdet.structures import Predictions, Target
from rankdet.workflows.initial import load_initial_weights
from rankdet.workflows.parts import Parts, prepare
from rankdet.workflows.train import count_steps

_POINTS = 500  # of a curve that are kept


class Counted:
    """A criterion that counts what it is given; the device is not waited for."""

    def __init__(self, criterion: Callable[..., Losses]) -> None:
        self.criterion = criterion
        self.num_anchors = 0  # of an image, valid or not
        self._num_positives = torch.tensor(0)
        self._num_entries = torch.tensor(0)  # positives and negatives: each class of each anchor

    def __call__(self, stages: Sequence[Predictions], targets: Sequence[Target]) -> Losses:
        losses = self.criterion(stages, targets)
        labels, num_columns = losses.assignments[-1].labels, stages[-1].logits.shape[-1]
        self.num_anchors = labels.shape[1]
        self._num_positives = (labels >= 0).sum() + self._num_positives
        self._num_entries = (labels != IGNORED).sum() * num_columns + self._num_entries
        return losses

    @property
    def imbalance(self) -> float | None:
        """Negatives to a positive, over all batches."""
        num_positives = int(self._num_positives)
        return (int(self._num_entries) / num_positives - 1) if num_positives else None


def train_with_proposals(
    config: Config, study: Study, number: int | None, request: Request
) -> dict[str, Any]:
    """The row of one optimisation and one number of proposals (None: every anchor), for JSON."""
    parts = prepare(config, request.device)
    with closing(parts.loader):
        start = _copied(parts.detector)
        proposer = partial(_proposer, parts, config, study, request)
        counted, curve = _train(parts, config, proposer, number)
        from_start = _described(curve)
        from_snapshot = None
        # With no more proposals than the snapshot has, it would be of the same training.
        if number is None or number > study.snapshot_proposals:
            weights = _snapshot(parts, start, config, proposer, study, request)
            parts.detector.load_state_dict(weights)
            _, curve = _train(parts, config, proposer, number)
            from_snapshot = _described(curve, from_start["initial_ap_loss"])
    return {
        "anchors": counted.num_anchors,
        "imbalance": counted.imbalance,
        "from_start": from_start,
        "from_snapshot": from_snapshot,
    }


def _train(
    parts: Parts, config: Config, proposer: Callable[[], Detector], number: int | None
) -> tuple[Counted, Curve]:
    """Train `parts.detector` from the weights that it has.

    proposer: makes the proposal network; config may be of a shorter training than that one's.
    """
    criterion: Callable[..., Losses] = parts.criterion
    detector: nn.Module = parts.detector
    if number is not None:
        detector = WithProposals(proposer(), parts.detector)
        criterion = ProposalCriterion(_assigner(config), build.class_loss(config.loss), number)
    counted = Counted(criterion)
    name = f"{config.loss.name}, {'all anchors' if number is None else f'{number} proposals'}"
    return counted, train_curve(detector, counted, parts, name=name, config=config)


def _proposer(parts: Parts, config: Config, study: Study, request: Request) -> Detector:
    """The proposal network, trained if it was not yet."""
    torch.manual_seed(config.seed)
    proposer = build.detector(config.detector, 1, "sigmoid")
    load_initial_weights(proposer, config.detector, ("object",), "sigmoid")
    freeze(proposer, build.num_frozen_stages(config.detector))
    proposer = build.placed(proposer, config.training, parts.device)
    shortened = _shortened(config, parts, study.proposal_part)

    def train() -> dict[str, Tensor]:
        criterion = Criterion(
            one_class(_assigner(config)),
            proposal_loss,
            box_weights=config.detector.box_weights,
            box_weight=0.0,
        )
        curve = train_curve(proposer, criterion, parts, name="proposal network", config=shortened)
        if curve.error:
            raise TrainingError(f"the proposal network: {curve.error}")
        return proposer.state_dict()

    # All optimisations have the same proposals: the loss is none of its settings.
    settings = {name: part for name, part in to_dict(shortened).items() if name != "loss"}
    proposer.load_state_dict(_kept(request, "proposals", settings, train, parts.device))
    return proposer.eval()


def _snapshot(
    parts: Parts,
    start: dict[str, Tensor],
    config: Config,
    proposer: Callable[[], Detector],
    study: Study,
    request: Request,
) -> dict[str, Tensor]:
    """The weights after a short training with few proposals, which is run if it was not yet."""

    def train() -> dict[str, Tensor]:
        parts.detector.load_state_dict(start)
        shortened = _shortened(config, parts, study.snapshot_part)
        _, curve = _train(parts, shortened, proposer, study.snapshot_proposals)
        if curve.error:
            raise TrainingError(f"the snapshot: {curve.error}")
        return parts.detector.state_dict()

    settings = {"config": to_dict(config), "proposals": study.snapshot_proposals}
    settings["part"] = study.snapshot_part
    return _kept(request, "snapshot", settings, train, parts.device)


def _assigner(config: Config) -> IoUAssigner:
    return IoUAssigner(config.detector.positive_iou, config.detector.negative_iou)


def _shortened(config: Config, parts: Parts, part: float) -> Config:
    """The settings of a training that is a part as long."""
    num_steps = max(1, round(part * count_steps(config.training, parts.steps_per_epoch)))
    return replace(config, training=replace(config.training, max_steps=num_steps))


def _kept(
    request: Request,
    kind: str,
    settings: Any,
    train: Callable[[], dict[str, Tensor]],
    device: torch.device,
) -> dict[str, Tensor]:
    """The weights that were trained with these settings; they are trained now if there are none."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
    file: Path = request.out / "runs" / f"imbalance-{kind}-{digest}.safetensors"
    if not file.exists():
        weights = {name: tensor.contiguous() for name, tensor in train().items()}
        write_whole(file, safetensors.torch.save(weights))
    return safetensors.torch.load_file(file, device=str(device))


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def _described(curve: Curve, initial: float | None = None) -> dict[str, Any]:
    """A curve for JSON: where it began and ended, and the means of at most 500 stretches of it.

    initial: the AP-loss that it is compared with; None: that of its own first steps.
    """
    if all(value is None for value in curve.ap_losses):
        raise TrainingError(curve.error or "no batch has an object")
    size = -(-len(curve.ap_losses) // _POINTS)
    means = []
    for first in range(0, len(curve.ap_losses), size):
        stretch = [v for v in curve.ap_losses[first : first + size] if v is not None]
        means.append(round(sum(stretch) / len(stretch), 6) if stretch else None)
    described = {
        **summary_of(curve.ap_losses, initial),
        "steps_of_a_mean": size,
        "ap_losses": means,
    }
    if curve.error:
        described |= {"error": curve.error, "has_converged": False}
    return described
