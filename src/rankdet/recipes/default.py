"""The recipe for one's own data."""

from __future__ import annotations

from rankdet.config import Config


def default() -> Config:
    """RetinaNet with ResNet-50 and AP-loss at 512 x 512, for your own data; a GPU is needed.

    Command: rankdet train DATA --weights imagenet

    Every setting is the default of its section: 60 epochs of 16 images a step, the learning rate
    divided by 10 after 40 and 53. Nothing is downloaded unless weights are asked for; without
    them nothing is frozen, and the training needs much more data or time.

    The learning rate is five times the paper's: 0.01 for 32 images, which is 0.005 for 16, was the
    best of four for AP-loss in 6 epochs on VOC2012 at 320 pixels, and the better of two in 18
    (results/voc320, rates-retinanet and rates-retinanet-long, one training each). Other losses have
    other best rates: in 18 epochs 0.02 for focal loss, 0.005 for OHEM, for 32 images. Whoever
    compares losses tunes each. The limit of the gradient's norm is that of those trainings; without
    it nothing went wrong there (trials).

    Paper's number: none. Our number: not run yet. Cost: not measured yet.
    """
    return Config()
