"""The paper's trainings on COCO."""

from __future__ import annotations

from dataclasses import replace

from rankdet.config import Config
from rankdet.recipes.voc import voc


def coco() -> Config:
    """The paper's comparison on COCO: ResNet-50 at 512 on train2017, tested at 600 on val2017.

    Command: rankdet train coco --recipe coco

    train2017 and val2017 are the paper's trainval35k and minival.

    Paper's number: AP 35.0, AP50 57.2, AP75 36.6 on minival (table 2). With --loss focal 33.9 /
    55.0 / 35.7, with --loss ohem 30.8 / 50.9 / 32.6, with --loss auc 25.5 / 44.9 / 26.0.
    Our number: not run yet. Cost: 739,000 steps of 16 images; time not measured yet.

    Differs from the paper: as the recipe voc does.
    """
    base = voc()
    return replace(
        base,
        data=replace(base.data, format="coco", train_split="train2017", val_split="val2017"),
        training=replace(base.training, epochs=100, milestones=(60.0, 80.0)),
        evaluation=replace(base.evaluation, protocol="coco"),
    )


def coco_resnet101_500() -> Config:
    """The paper's AP-loss500 on COCO: ResNet-101 at 512, tested at 500.

    Command: rankdet train coco --recipe coco-resnet101-500

    Paper's number: AP 37.4, AP50 58.6, AP75 40.5, small 17.3, medium 40.8, large 51.9 on test-dev;
    AP 42.1 with multi-scale testing. Our number: not run yet. Cost: not measured yet.
    """
    base = coco()
    return replace(
        base,
        detector=replace(base.detector, backbone="resnet101"),
        evaluation=replace(base.evaluation, shorter=500, longest=833),
    )


def coco_resnet101_800() -> Config:
    """The paper's AP-loss800 on COCO: ResNet-101 trained and tested at 800.

    Command: rankdet train coco --recipe coco-resnet101-800

    Paper's number: AP 40.8, AP50 63.7, AP75 43.7, small 25.4, medium 43.9, large 50.6 on test-dev.
    Our number: not run yet. Cost: not measured yet.
    """
    base = coco_resnet101_500()
    return replace(
        base,
        data=replace(base.data, size=800),
        evaluation=replace(base.evaluation, shorter=800, longest=1333),
    )
