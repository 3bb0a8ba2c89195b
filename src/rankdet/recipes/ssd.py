"""Trainings of SSD: the paper's on PASCAL VOC, for one's own data, and from torchvision's."""

from __future__ import annotations

from dataclasses import replace

from rankdet.config import Config, DetectorConfig
from rankdet.recipes.default import default
from rankdet.recipes.small import small
from rankdet.recipes.voc import voc


def voc_ssd512() -> Config:
    """The paper's SSD on VOC: VGG-16, trained on 2007 + 2012 and tested on 2007, all at 512.

    Command: rankdet train VOCdevkit --recipe voc-ssd512

    Paper's number: AP 45.2, AP50 77.3, AP75 47.3 on VOC 2007 test (table 2). With --loss ohem 43.6
    / 76.0 / 44.7, with --loss focal --set loss.settings.gamma=1 --set loss.settings.alpha=0.25 39.3
    / 69.9 / 38.0, with --loss auc 33.8 / 63.7 / 31.5. Our number: not run yet. Cost: 165,500 steps
    of 16 images; time not measured yet.

    As the recipe voc, but for what the paper leaves to SSD: a box is positive from an IoU of 0.5
    on and negative below, and no layer is frozen.

    Differs from the paper: as the recipe voc does; and conv6 and conv7 start fresh, where SSD's
    authors had thinned out the classifier of their VGG-16.
    """
    base = voc()
    return replace(
        base,
        detector=DetectorConfig(
            name="ssd",
            backbone="vgg16",
            ssd_layout="ssd512",
            weights="imagenet",
            frozen_stages=0,
            negative_iou=0.5,
        ),
        evaluation=replace(base.evaluation, fixed_size=512),
    )


def ssd300() -> Config:
    """SSD with VGG-16 and AP-loss at 300 x 300, for your own data; a GPU is needed.

    Command: rankdet train DATA --recipe ssd300 --weights imagenet

    Faster than the recipe default, and worse on small objects. Other sizes from 268 on will do
    (--set data.size=320 --set evaluation.fixed_size=320); for 512 there is detector.ssd_layout. The
    learning rate is the paper's: that of the recipe default was not tried with SSD.

    Paper's number: none. Our number: not run yet. Cost: not measured yet.
    """
    base = default()
    return replace(
        base,
        data=replace(base.data, size=300),
        detector=DetectorConfig(
            name="ssd", backbone="vgg16", ssd_layout="ssd300", negative_iou=0.5
        ),
        training=replace(base.training, learning_rate=0.001, clip_norm=None),
        evaluation=replace(base.evaluation, fixed_size=300),
    )


def torchvision_ssd300() -> Config:
    """To fine-tune from torchvision's SSD300 for COCO: its pixels, thresholds and suppression.

    Command: rankdet train DATA --recipe torchvision-ssd300 --weights ssd300_vgg16_coco-b556d3b4.pth

    Classes that COCO has too keep their weights; the others start fresh. The source is a softmax:
    with --loss ohem its background is taken over as well.

    Paper's number: none. Our number: not run yet. Cost: that of the recipe ssd300.
    """
    base = ssd300()
    return replace(
        base,
        detector=replace(base.detector, pixels="bytes"),
        evaluation=replace(
            base.evaluation,
            score_threshold=0.01,
            last_level_threshold=None,
            nms_iou=0.45,
            max_detections=200,
        ),
    )


def small_ssd() -> Config:
    """SSD on the small network at 160 x 160, trained from scratch on a CPU in minutes.

    Command: rankdet train synthetic --recipe small-ssd

    As the recipe small, without a feature pyramid: its default boxes suit objects of 15 to 90 % of
    the image.

    Paper's number: none. Our number: not run yet. Cost: not measured yet.
    """
    base = small()
    return replace(
        base,
        detector=DetectorConfig(name="ssd", backbone="small", norm="group", negative_iou=0.5),
    )
