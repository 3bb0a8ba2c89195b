"""Faster R-CNN: the paper's two-stage experiment, torchvision's published one, and a small one."""

from __future__ import annotations

from dataclasses import replace

from rankdet.config import Config
from rankdet.recipes.default import default
from rankdet.recipes.small import small
from rankdet.recipes.voc import voc


def voc_faster_rcnn() -> Config:
    """The paper's Faster R-CNN: ResNet-50 with AP-loss over all RoIs, tested at 800 on VOC 2007.

    Command: rankdet train VOCdevkit --recipe voc-faster-rcnn

    The number of RoIs is `--set detector.rois=4096`; the proposals then grow along. The paper's
    other arm is `--loss ce`. There is no quota of positives in either.

    Paper's number: with 512 RoIs of an image AP 54.62, AP50 82.04, AP75 59.85 on VOC 2007 test, and
    with --loss ce 54.09 / 81.94 / 59.86; with 4096 RoIs 54.83 / 82.23 / 60.23, and with --loss ce
    48.36 / 75.69 / 52.15 (table two-stage of appendix A4.3). Our number: not run yet. Cost: 18,000
    steps of 16 images; time not measured yet.

    The paper does not give the length of the training: these are the settings of Detectron2
    (configs/PascalVOC-Detection/faster_rcnn_R_50_FPN.yaml, on Base-RCNN-FPN.yaml), as its
    augmentation is: 18,000 steps of 16 images at 0.02, a tenth of it after 12,000 and 16,000, a
    warm-up of 100 steps; shorter sides of 480, 512, ... 800 in training and 800 in tests, longer
    ones of up to 1333. Differs from Detectron2:

    - the weights are torchvision's, with the stride on the 3x3 convolution;
    - difficult objects are background, in both arms;
    - the box loss is smooth L1 with beta 1/9, as torchvision's; Detectron2's default is 0: L1;
    - the second stage chooses from 2000 proposals of an image, not 1000, and RoIAlign is
      torchvision's: not shifted by half a pixel, and two samples a bin;
    - there is no quota of a quarter positive RoIs. As in Detectron2 the box loss is divided by all
      RoIs, so that it shrinks about 8-fold from 512 to 4096 RoIs, in both arms;
    - anchors and RoIs are chosen at random by a hash of seed, epoch and image, not by a generator
      with a state, so that a resumed run and any number of processes choose the same;
    - a score has no meaning by itself where scores are ranked: the threshold is 0, not 0.05, and
      the best 1000 pairs of RoI and class are looked at.
    """
    base = voc()
    return replace(
        base,
        data=replace(base.data, augmentation="jitter"),
        detector=replace(
            base.detector, name="faster_rcnn", anchor_scale=8.0, anchor_octaves=1, rois=512
        ),
        training=replace(
            base.training,
            epochs=18,
            max_steps=18_000,
            learning_rate=0.02,
            milestones=(11.6, 15.47),  # after 12,000 and 16,000 steps
            warmup_steps=100,
            warmup_start=0.001,
        ),
        evaluation=replace(base.evaluation, shorter=800, longest=1333, score_threshold=0.0),
    )


def torchvision_faster_rcnn() -> Config:
    """To fine-tune from torchvision's Faster R-CNN for COCO: its anchors and thresholds.

    Command: rankdet train DATA --recipe torchvision-faster-rcnn --weights
    fasterrcnn_resnet50_fpn_coco.pth

    Classes that COCO has too keep their weights; the others start fresh. `--loss ce` trains as
    torchvision does, but for its quota of positive RoIs.

    Paper's number: none. Our number: not run yet. Cost: not measured yet.
    """
    base = default()
    return replace(
        base,
        data=replace(base.data, augmentation="jitter"),
        detector=replace(
            base.detector,
            name="faster_rcnn",
            norm_epsilon=1e-12,  # 0 there, which trainable norms refuse
            anchor_scale=8.0,
            anchor_octaves=1,
            anchor_grid="torchvision",
        ),
        training=replace(base.training, learning_rate=0.001, clip_norm=None),
        evaluation=replace(
            base.evaluation,
            shorter=800,
            longest=1333,
            score_threshold=0.05,
            last_level_threshold=None,
            candidates=100_000,  # torchvision has no limit
        ),
    )


def small_faster_rcnn() -> Config:
    """A small Faster R-CNN with GroupNorm at 160 x 160, trained from scratch on a CPU in minutes.

    Command: rankdet train synthetic --recipe small-faster-rcnn

    As the recipe small, with few RoIs: their maps are most of the work of a CPU.

    Paper's number: none. Our number: not run yet. Cost: not measured yet.
    """
    base = small()
    return replace(
        base,
        detector=replace(
            base.detector, name="faster_rcnn", rois=64, proposals=200, test_proposals=100
        ),
        evaluation=replace(base.evaluation, score_threshold=0.0),
    )
