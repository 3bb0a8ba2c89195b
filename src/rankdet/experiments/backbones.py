"""The four losses with stronger backbones: ResNet-101 and ResNeXt-101-32x8d (appendix A4.2.3)."""

from __future__ import annotations

from dataclasses import replace

from rankdet.experiments.comparison import LOSSES, Comparison, Variant, experiment
from rankdet.experiments.losses import loss_variants
from rankdet.experiments.scales import Training

_VOC07 = Training(backbone="resnet101", side=500)
_PAPER_ROWS = {row: row.replace(" + ", "+") for row in LOSSES}  # this table has no spaces there


def _resnet101(group: str, training: Training, metrics: tuple[str, ...]) -> list[Variant]:
    return [
        replace(variant, paper=("Resnet-101", _PAPER_ROWS[variant.row]), metrics=metrics)
        for variant in loss_variants(group, training)
    ]


RESNET101 = experiment(
    "resnet101",
    Comparison(
        title="four losses with ResNet-101 on VOC2007, VOC2012 and COCO",
        row_title="training loss",
        variants=(
            *_resnet101("VOC07", _VOC07, ("AP50",)),
            *_resnet101("VOC12", replace(_VOC07, data="voc12"), ("AP50",)),
            *_resnet101("COCO", replace(_VOC07, data="coco"), ("AP", "AP50", "AP75")),
        ),
    ),
    labels=("Resnet-101",),
)

_RESNEXT = Training(backbone="resnext101_32x8d", side=500)

RESNEXT101 = experiment(
    "resnext101",
    Comparison(
        title="four losses with ResNeXt-101-32x8d on VOC2007 and COCO",
        row_title="training loss",
        variants=(
            *loss_variants("PASCAL VOC2007", _RESNEXT, "resnext"),
            *loss_variants("COCO test-dev", replace(_RESNEXT, data="coco"), "resnext"),
        ),
    ),
    labels=("resnext",),
)
