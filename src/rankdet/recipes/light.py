"""The recipe for photographs on a computer without a GPU."""

from __future__ import annotations

from dataclasses import replace

from rankdet.config import Config
from rankdet.recipes.default import default


def light() -> Config:
    """RetinaNet with MobileNetV2 and AP-loss at 128 x 128, 6 epochs: minutes on a CPU.

    Command: rankdet train DATA --recipe light --weights imagenet

    A pyramid and heads of 64 channels, whose first weights make their maps little smaller; flips
    are all the augmentation. The images are kept in memory; where they are too many, `--set
    data.hold=false`. Larger images show smaller objects and take longer: `--size 192`. For some
    thousand images: fewer need more epochs, so that there are a thousand steps: `--epochs 60` for
    500.

    The training of results/light-cpu/evidence-retinanet-flips.json in its short schedule. Paper's
    number: none. Our number: AP 16.9, AP50 36.5, AP75 13.6, trained on VOC2012 train and tested on
    2,000 images of val, the mean of seven seeds. Those are with difficult objects as background
    (`--set data.drop_ignored=true`). Cost: 178 steps of 32 images an epoch there.
    """
    base = default()
    return replace(
        base,
        data=replace(base.data, size=128, augmentation="flip", hold=True),
        detector=replace(
            base.detector,
            backbone="mobilenet_v2",
            pyramid_channels=64,
            pyramid_start="torchvision",
            head_start="kaiming",
        ),
        training=replace(
            base.training,
            epochs=6,
            batch_size=32,
            learning_rate=0.005,
            reference_batch_size=32,
            milestones=(4.2, 5.4),
            warmup_steps=200,
            channels_last=True,
        ),
        evaluation=replace(base.evaluation, every=2, fixed_size=128, batch_size=32),
    )
