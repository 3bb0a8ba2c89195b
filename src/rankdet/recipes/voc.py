"""The paper's trainings on PASCAL VOC."""

from __future__ import annotations

from dataclasses import replace

from rankdet.config import Config, DataConfig, DetectorConfig, EvaluationConfig, TrainingConfig


def voc() -> Config:
    """The paper's ablations: ResNet-50 at 512 on VOC 2007 + 2012, tested at 600 on VOC 2007.

    Command: rankdet train VOCdevkit --recipe voc

    Paper's number: AP 53.1, AP50 82.3, AP75 58.1 on VOC 2007 test (tables 1 and 2). With --loss
    focal 51.3 / 80.9 / 55.3, with --loss ohem 49.1 / 81.5 / 51.5, with --loss auc 49.3 / 79.7 /
    51.8. Our number: not run yet. Cost: 165,500 steps of 16 images; time not measured yet.

    Differs from the paper: all 16 images of a step are ranked together, where the paper's two
    devices rank 8 each (`--accumulate 2` does that). The weights are torchvision's, with the stride
    on the 3x3 convolution; for the original weights, give their file with --weights and `--set
    detector.stride_on=1x1`.
    """
    return Config(
        data=DataConfig(
            format="voc",
            train_split="2007_trainval+2012_trainval",
            val_split="2007_test",
            augmentation="ssd",
            size=512,
            drop_ignored=True,
        ),
        detector=DetectorConfig(backbone="resnet50", weights="imagenet"),
        training=TrainingConfig(
            epochs=160,
            batch_size=16,
            learning_rate=0.001,
            reference_batch_size=16,
            momentum=0.9,
            weight_decay=1e-4,
            milestones=(110.0, 140.0),
            warmup_steps=500,
            warmup_start=1 / 3,
            clip_norm=None,
        ),
        evaluation=EvaluationConfig(protocol="voc", shorter=600, longest=1000),
    )


def voc_resnet101_500() -> Config:
    """The paper's AP-loss500 on VOC: ResNet-101 at 512, tested at 500.

    Command: rankdet train VOCdevkit --recipe voc-resnet101-500

    Paper's number: AP50 83.9 on VOC 2007 test, 84.9 with multi-scale testing (which scales, it does
    not say). On VOC 2012 test 83.1 and 84.5, trained with `--train-split
    2007_trainval+2007_test+2012_trainval`; its evaluation server needs `rankdet evaluate RUN
    --split 2012_test --submission FOLDER`. Our number: not run yet. Cost: not measured yet.
    """
    base = voc()
    return replace(
        base,
        detector=replace(base.detector, backbone="resnet101"),
        evaluation=replace(base.evaluation, shorter=500, longest=833),
    )
