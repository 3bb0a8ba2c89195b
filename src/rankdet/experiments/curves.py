"""Detection accuracy in the course of training, for the four losses: RetinaNet and SSD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rankdet.experiments.comparison import COLOURS, LOSSES, Comparison, Variant
from rankdet.experiments.experiment import Experiment
from rankdet.experiments.figures import label_axes, new_figure, save_figure
from rankdet.experiments.losses import RETINANET_VOC, SSD_VOC
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.tables import NO_NUMBER, markdown_table, missing_text, number, page

_METRICS = ("AP50", "AP")


@dataclass(frozen=True)
class Curves:
    """The evaluations on the way of the trainings that the table of losses has, too."""

    title: str
    variants: tuple[Variant, ...]

    def markdown(self, record: Record) -> str:
        results = results_of(record)
        tables = []
        for metric in _METRICS:
            curves = [_curve(results, variant, metric) for variant in self.variants]
            epochs = sorted({epoch for curve in curves for epoch in curve})
            missing = [missing_text(record, variant.key) for variant in self.variants]
            rows = [[f"{epoch:g}", *_texts(curves, missing, epoch)] for epoch in epochs]
            if not rows:
                rows = [[NO_NUMBER, *missing]]  # why there is none
            heading = ["epoch", *(variant.row for variant in self.variants)]
            tables.append(f"{metric} in percent:\n\n{markdown_table(heading, rows)}")
        note = "The paper shows these as curves alone; it has no numbers for them."
        return page(record, self.title, tables, [note])

    def figure(self, record: Record, path: Path) -> None:
        results = results_of(record)
        figure = new_figure(9, 3.8)
        for axes, metric in zip(figure.subplots(1, len(_METRICS)), _METRICS, strict=True):
            for variant in self.variants:
                curve = _curve(results, variant, metric)
                points = [(x, y) for x, y in sorted(curve.items()) if y is not None]
                axes.plot(
                    [x for x, _ in points],
                    [y for _, y in points],
                    color=COLOURS[LOSSES[variant.row]],
                    marker=".",
                    label=variant.row,
                )
            axes.set_ylim(bottom=0)
            label_axes(axes, metric, "epoch", "percent")
        axes.legend(frameon=False, fontsize=8)
        save_figure(figure, path)


def _curve(results: dict[str, dict], variant: Variant, metric: str) -> dict[float, float | None]:
    """The metric by epochs done; a training that ended within an epoch counts its part."""
    result = results.get(variant.key)
    if result is None:
        return {}
    return {row["epoch"]: row.get(metric) for row in result["curve"]}


def _texts(
    curves: Sequence[dict[float, float | None]], missing: Sequence[str], epoch: float
) -> list[str]:
    pairs = zip(missing, curves, strict=True)
    return [text or number(curve.get(epoch)) for text, curve in pairs]


def _experiment(name: str, curves: Curves, labels: Sequence[str]) -> Experiment:
    table = Comparison(curves.title, "training loss", curves.variants)
    return Experiment(
        name=name,
        summary=curves.title,
        labels=tuple(labels),
        plan=lambda request: table.plan(replace(request, seeds=None)),
        markdown=curves.markdown,
        figure=curves.figure,
    )


RETINANET = _experiment(
    "curves-retinanet",
    Curves("accuracy in the course of training, four losses, RetinaNet", RETINANET_VOC),
    labels=("fig-performance_curve",),
)
SSD = _experiment(
    "curves-ssd",
    Curves("accuracy in the course of training, four losses, SSD", SSD_VOC),
    labels=("fig-ssd_performance_curve",),
)
