"""torchvision's published RetinaNet, to go on training it."""

from __future__ import annotations

from dataclasses import replace

from rankdet.config import Config
from rankdet.recipes.default import default


def torchvision_coco() -> Config:
    """To fine-tune from torchvision's RetinaNet for COCO: its anchors, box coding and thresholds.

    Command: rankdet train DATA --recipe torchvision-coco --weights retinanet_resnet50_fpn_coco.pth

    Classes that COCO has too keep their weights; the others start fresh. The learning rate is the
    paper's: that of the recipe default was not tried from such a start.

    Paper's number: none. Our number: not run yet. Cost: that of the recipe default.
    """
    base = default()
    return replace(
        base,
        detector=replace(
            base.detector,
            norm_epsilon=1e-12,  # 0 there, which trainable norms refuse
            p6_from="p5",
            anchor_octaves=3,
            anchor_grid="torchvision",
            box_weights=(1.0, 1.0, 1.0, 1.0),
        ),
        training=replace(base.training, learning_rate=0.001, clip_norm=None),
        evaluation=replace(
            base.evaluation,
            shorter=800,
            longest=1333,
            score_threshold=0.05,
            last_level_threshold=None,
            max_detections=300,
        ),
    )
