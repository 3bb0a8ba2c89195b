"""The four losses under the same settings: RetinaNet on VOC, RetinaNet on COCO, SSD on VOC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from rankdet.config import Config, merge, to_dict
from rankdet.experiments.comparison import LOSSES, Comparison, Variant, experiment
from rankdet.experiments.experiment import Request, Row
from rankdet.experiments.scales import Training, base_config, with_changes


def loss_changes(loss: str, detector: str = "retinanet") -> dict[str, Any]:
    """The settings of a loss in the comparison of losses.

    The paper found gamma 1 and alpha 0.25 better for SSD than the focal loss's own gamma 2.
    """
    if loss == "focal" and detector == "ssd":
        return {"loss": {"name": loss, "settings": {"gamma": 1.0, "alpha": 0.25}}}
    return {"loss": {"name": loss}}


def loss_variants(group: str, training: Training, label: str = "base-loss") -> tuple[Variant, ...]:
    """A variant for each of the four losses, in the paper's order."""
    return tuple(
        Variant(
            row=row,
            group=group,
            changes=loss_changes(loss, training.detector),
            training=training,
            paper=(label, row),
        )
        for row, loss in LOSSES.items()
    )


def measured_rows(
    request: Request,
    measure: Callable[[Config, Request], Mapping[str, Any]],
    **training: Any,
) -> list[Row]:
    """A row for each loss, whose result is what `measure` finds in some steps of its training.

    training: settings of that section, such as max_steps. There is no evaluation.
    """
    rows = []
    for name, loss in LOSSES.items():
        config = merge(base_config(request, Training(), loss), loss_changes(loss))
        config = replace(
            config,
            data=replace(config.data, val_split=None),
            training=replace(config.training, **training),
        )
        config = with_changes(request, config)
        run = partial(measure, config, request)
        rows.append(Row(key=name, settings={"config": to_dict(config)}, run=run))
    return rows


RETINANET_VOC = loss_variants("RetinaNet + PASCAL VOC", Training())
RETINANET_COCO = loss_variants("RetinaNet + COCO", Training(data="coco"))
SSD_VOC = loss_variants("SSD + PASCAL VOC", Training(detector="ssd"))

VOC = experiment(
    "losses-voc",
    Comparison("four losses, RetinaNet on PASCAL VOC", "training loss", RETINANET_VOC),
    labels=("base-loss",),
)
COCO = experiment(
    "losses-coco",
    Comparison("four losses, RetinaNet on COCO", "training loss", RETINANET_COCO),
    labels=("base-loss",),
)
SSD = experiment(
    "losses-ssd",
    Comparison(
        "four losses, SSD on PASCAL VOC",
        "training loss",
        SSD_VOC,
        notes=("Focal loss with gamma 1 and alpha 0.25, as the paper chose for SSD.",),
    ),
    labels=("base-loss",),
)
