"""Faster R-CNN with more and more regions for its second stage: cross-entropy and AP-loss (A4.3).

No ratio of positives to negatives is kept up in either column. An image may have fewer regions than
asked for, because the first stage leaves out those that overlap others: how many there were, the
training counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rankdet.experiments.comparison import Variant, experiment
from rankdet.experiments.experiment import Request, Row
from rankdet.experiments.rates import FASTER_RCNN
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.scales import Training
from rankdet.experiments.tables import markdown_table, number
from rankdet.experiments.tuned import TunedComparison

NUM_ROIS = (512, 1024, 1536, 2048, 3072, 4096)
GROUPS = {"Faster": "ce", "Faster+AP-Loss": "ap"}
# Small images have few anchors: there, so many times fewer regions.
DIVISORS = {"smoke": 64, "tiny": 8, "voc320": 1, "paper": 1}
_COUNTS = ("roi.boxes_per_image", "roi.positives_per_image")


@dataclass(frozen=True)
class RoIComparison(TunedComparison):
    """The table, and below it how many regions there were."""

    def row(self, variant: Variant, request: Request) -> Row:
        num_rois = int(variant.row) // DIVISORS[request.scale]
        changes = {**variant.changes, "detector": {"rois": num_rois, "proposals": None}}
        return super().row(replace(variant, changes=changes), request)

    def body(self, record: Record) -> list[str]:
        rows = []
        for key, result in results_of(record).items():
            asked = record["rows"][key]["settings"]["config"]["detector"]["rois"]
            used = [result["training"]["counts"].get(name) for name in _COUNTS]
            rows.append([key, str(asked), *map(number, used)])
        heading = ["mean over the training", "asked for", "regions of an image", "positive ones"]
        return [*super().body(record), markdown_table(heading, rows)]

    def notes_on(self, record: Record) -> list[str]:
        divisor = DIVISORS[record["request"]["scale"]]
        fewer = f"At this scale, {divisor} times fewer regions than the rows say."
        notes = super().notes_on(record)
        return [*notes, fewer] if divisor > 1 else notes


COMPARISON = RoIComparison(
    title="Faster R-CNN with 512 to 4,096 regions in its second stage",
    row_title="regions of an image",
    variants=tuple(
        Variant(
            row=str(num_rois),
            group=group,
            changes={"loss": {"name": loss}},
            training=Training(detector="faster_rcnn"),
            paper=("two-stage", str(num_rois)),
        )
        for group, loss in GROUPS.items()
        for num_rois in NUM_ROIS
    ),
    notes=(
        "The box loss of the second stage is a mean over all its regions: with more of them it "
        "weighs less, in either column.",
    ),
    decimals=2,
    tuning=FASTER_RCNN,
)
EXPERIMENT = experiment("rois", COMPARISON, labels=("two-stage", "fig-two-stage"))
