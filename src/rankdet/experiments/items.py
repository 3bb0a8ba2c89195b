"""All experiments that `rankdet reproduce` knows, in the order in which it names them.

A new one is a module with an `Experiment`, and a line here. Nothing here imports torch.
"""

from __future__ import annotations

from rankdet.config import closest
from rankdet.errors import ConfigError
from rankdet.experiments import (
    backbones,
    batch_size,
    benchmarks,
    coco_to_voc,
    convergence,
    curves,
    delta,
    evidence,
    ghm_dr,
    gradient_size,
    imbalance,
    interpolation,
    losses,
    memory,
    predictions,
    ranked_together,
    rates,
    robustness,
    rois,
    sampling,
    score_iou,
    sheets,
    sigmoid_step,
    time_curve,
    time_losses,
    time_share,
    trials,
)
from rankdet.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    batch_size.EXPERIMENT,
    delta.EXPERIMENT,
    interpolation.EXPERIMENT,
    sigmoid_step.EXPERIMENT,
    losses.VOC,
    losses.COCO,
    losses.SSD,
    curves.RETINANET,
    curves.SSD,
    score_iou.EXPERIMENT,
    robustness.EXPERIMENT,
    convergence.EXPERIMENT,
    imbalance.EXPERIMENT,
    memory.EXPERIMENT,
    time_curve.EXPERIMENT,
    time_losses.EXPERIMENT,
    time_share.EXPERIMENT,
    benchmarks.VOC07,
    benchmarks.VOC12,
    benchmarks.COCO,
    coco_to_voc.EXPERIMENT,
    sampling.EXPERIMENT,
    backbones.RESNET101,
    backbones.RESNEXT101,
    ghm_dr.EXPERIMENT,
    rois.EXPERIMENT,
    sheets.EXPERIMENT,
    *rates.EXPERIMENTS,
    *evidence.EXPERIMENTS,
    trials.EXPERIMENT,
    trials.LONG_EXPERIMENT,
    gradient_size.EXPERIMENT,
    predictions.EXPERIMENT,
    ranked_together.EXPERIMENT,
)


def experiment(name: str) -> Experiment:
    """The experiment of this name; ConfigError with the closest name if there is none."""
    for one in EXPERIMENTS:
        if one.name == name:
            return one
    hint = closest(name, [one.name for one in EXPERIMENTS])
    raise ConfigError(
        f"reproduce {name}: there is no such experiment."
        + (f" {hint}" if hint else "")
        + " `rankdet reproduce list` names them."
    )
