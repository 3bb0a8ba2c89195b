"""The recipe for one's own data."""

from __future__ import annotations

from rankdet.config import Config


def default() -> Config:
    """RetinaNet with ResNet-50 and AP-loss at 512 x 512, for your own data; a GPU is needed.

    Command: rankdet train DATA --weights imagenet

    Every setting is the default of its section: 60 epochs of 16 images a step, the learning rate
    divided by 10 after 40 and 53. Nothing is downloaded unless weights are asked for; without
    them nothing is frozen, and the training needs much more data or time.

    Paper's number: none. Our number: not run yet. Cost: not measured yet.
    """
    return Config()
