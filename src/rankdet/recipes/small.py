"""The recipe for a computer without a GPU."""

from __future__ import annotations

from rankdet.config import (
    Config,
    DataConfig,
    DetectorConfig,
    EvaluationConfig,
    TrainingConfig,
)


def small() -> Config:
    """A small network with GroupNorm at 160 x 160, trained from scratch on a CPU in minutes.

    Command: rankdet train synthetic --recipe small

    Its anchors suit objects of 18 pixels and more: 2.2 strides wide, and sqrt 2 times that.

    Paper's number: none. Our number: not run yet. Cost: not measured yet.
    """
    return Config(
        data=DataConfig(augmentation="ssd", size=160),
        detector=DetectorConfig(
            backbone="small",
            norm="group",
            head_norm="group",
            anchor_scale=2.2,
            anchor_octaves=2,
            anchor_ratios=(0.6, 1.0, 1.67),
        ),
        training=TrainingConfig(
            epochs=30,
            batch_size=16,
            optimizer="adamw",
            learning_rate=2e-3,
            reference_batch_size=16,
            weight_decay=1e-2,
            schedule="one_cycle",
            milestones=(),
            warmup_steps=100,
            clip_norm=None,
            channels_last=True,  # faster on CPUs too
        ),
        evaluation=EvaluationConfig(every=5, fixed_size=160, batch_size=32),
    )
