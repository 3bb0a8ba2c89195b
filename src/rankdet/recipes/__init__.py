"""Recipes: functions that return a whole Config, by the names that `rankdet train --recipe` takes.

A recipe's docstring gives the command, the paper's number, ours, and what it costs. A variant is
`dataclasses.replace(...)` of another one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from rankdet.config import Config, closest
from rankdet.errors import ConfigError
from rankdet.recipes.coco import coco, coco_resnet101_500, coco_resnet101_800
from rankdet.recipes.default import default
from rankdet.recipes.demo import demo
from rankdet.recipes.faster_rcnn import (
    small_faster_rcnn,
    torchvision_faster_rcnn,
    voc_faster_rcnn,
)
from rankdet.recipes.light import light
from rankdet.recipes.quick import quick
from rankdet.recipes.small import small
from rankdet.recipes.ssd import small_ssd, ssd300, torchvision_ssd300, voc_ssd512
from rankdet.recipes.torchvision import torchvision_coco
from rankdet.recipes.voc import voc, voc_resnet101_500

RECIPES: dict[str, Callable[[], Config]] = {
    "default": default,
    "quick": quick,
    "light": light,
    "small": small,
    "demo": demo,
    "voc": voc,
    "voc-resnet101-500": voc_resnet101_500,
    "coco": coco,
    "coco-resnet101-500": coco_resnet101_500,
    "coco-resnet101-800": coco_resnet101_800,
    "torchvision-coco": torchvision_coco,
    "voc-ssd512": voc_ssd512,
    "ssd300": ssd300,
    "torchvision-ssd300": torchvision_ssd300,
    "small-ssd": small_ssd,
    "voc-faster-rcnn": voc_faster_rcnn,
    "torchvision-faster-rcnn": torchvision_faster_rcnn,
    "small-faster-rcnn": small_faster_rcnn,
}


def recipe(name: str) -> Config:
    """The settings of a recipe; ConfigError with the closest name if there is none.

    >>> recipe("voc").training.epochs
    160
    """
    if name not in RECIPES:
        hint = closest(name, RECIPES)
        known = ", ".join(RECIPES)
        raise ConfigError(f"recipe {name}: expected one of {known}." + (f" {hint}" if hint else ""))
    return RECIPES[name]()


def summary(name: str) -> str:
    """One line about a recipe: the first of its docstring."""
    return (inspect.getdoc(RECIPES[name]) or "").partition("\n")[0]
