"""The recipe of `rankdet demo`."""

from __future__ import annotations

from dataclasses import replace

from rankdet.config import Config
from rankdet.recipes.small import small


def demo() -> Config:
    """The small network on the embedded set, in the few minutes that a newcomer will wait.

    Command: rankdet train synthetic --recipe demo (`rankdet demo` does it, and shows the results)

    Differs from `small` by what pays in few steps: objects of the embedded set are about as high as
    wide, and square anchors alone fit all of them; 128 pixels cost little more than half of 160;
    flips are all the augmentation, and twice the usual images take its place; the images stay in
    memory, because drawing them again would take a fifth of the time.

    Paper's number: none. Our number: in results/demo-cpu.json, beside those of other losses under
    the same settings, which were chosen by trials with AP-loss on the same validation images.
    Cost: in the same file.
    """
    base = small()
    return replace(
        base,
        data=replace(
            base.data,
            path="synthetic",
            train_split="train:4000",
            val_split="val",
            augmentation="flip",
            size=128,
            workers=0,
            hold=True,
        ),
        detector=replace(base.detector, anchor_scale=2.5, anchor_ratios=(1.0,)),
        training=replace(base.training, epochs=5, learning_rate=3e-3, clip_norm=1.0),
        evaluation=replace(base.evaluation, every=0, fixed_size=128),
    )
