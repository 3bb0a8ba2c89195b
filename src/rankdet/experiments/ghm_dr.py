"""GHM-C and DR loss, made against imbalance too, beside AP-loss: ResNet-101 at 500."""

from __future__ import annotations

from rankdet.experiments.comparison import METRICS, Variant, experiment
from rankdet.experiments.rates import GHM_DR
from rankdet.experiments.scales import Training
from rankdet.experiments.tuned import TunedComparison

_ROWS = {
    "RetinaNet500+GHM-C": "ghm",
    "RetinaNet500+DR-loss_fixed": "dr",
    "RetinaNet500+AP-loss": "ap",
}

EXPERIMENT = experiment(
    "ghm-dr",
    TunedComparison(
        title="GHM-C, DR loss and AP-loss on VOC2007 and VOC2012",
        row_title="method",
        reference="RetinaNet500+AP-loss",
        variants=tuple(
            Variant(
                row=row,
                group=group,
                changes={"loss": {"name": loss}},
                training=Training(data=data, backbone="resnet101", side=500),
                paper=("GHM-DRLOSS", row),
                metrics=metrics,
            )
            for group, data, metrics in (
                ("VOC2007", "voc", METRICS),
                ("VOC2012", "voc12", ("AP50",)),
            )
            for row, loss in _ROWS.items()
        ),
        tuning=GHM_DR,
    ),
    labels=("GHM-DRLOSS",),
)
