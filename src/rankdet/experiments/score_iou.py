"""IoU and score of anchors under four losses: the paper's figure dist.

Each trained detector looks at the validation images; every anchor is counted by its IoU with the
object that it overlaps most, and by its score for that object's class.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rankdet.config import Config, to_dict
from rankdet.experiments.arms import last_results, trained
from rankdet.experiments.comparison import LOSSES, variant_config
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import label_axes, new_figure, save_figure
from rankdet.experiments.losses import RETINANET_VOC
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.tables import markdown_table, missing_text, number, page

POSITIVE_IOU = 0.5
NEGATIVE_IOU = 0.3
FIXED_SCORE = 0.5
KEPT = 0.5  # share of the positives above the score that keeps them

_NOTES = (
    f"Positives: anchors with IoU >= {POSITIVE_IOU:g}; negatives: IoU < {NEGATIVE_IOU:g}; touching "
    "no object: IoU < 0.01. IoU and scores are known to 0.01, the bins of the counts.",
    "A score of AP-loss or AUC-loss is no probability: a fixed score means something else for each "
    "loss. False positive rates at the score that keeps half of the positives, and rank "
    "correlations, do not depend on what scores mean.",
    "Paper: AP-loss has the least false positive rate; CE-loss+OHEM assigns very high confidence "
    "to the true positives, and does not perform well on negatives with IoU = 0.",
)

Cells = Sequence[Sequence[int]]  # [bin of the IoU, bin of the score, number of anchors]


def plan(request: Request) -> list[Row]:
    """A training for each loss: the same as for the comparison of losses."""
    rows = []
    for variant in RETINANET_VOC:
        config = variant_config(variant, request)
        rows.append(
            Row(
                key=variant.row,
                settings={"config": to_dict(config)},
                run=partial(_result, config, request),
                trainings=(config,),
            )
        )
    return rows


def _result(config: Config, request: Request) -> dict[str, Any]:
    run = trained(config, request)
    results = last_results(run, request)
    anchors = results["anchors"]
    return {
        "run": run.name,
        "metrics": results["metrics"],
        **numbers_of(anchors["cells"], anchors["bins"]),
        "anchors": anchors,
    }


def numbers_of(cells: Cells, bins: int) -> dict[str, Any]:
    """What the counts say in numbers; None where there is no such anchor.

    correlation and rank_correlation: of IoU and score among the positives (Pearson's of the middles
    of the bins, and Spearman's). The false positive rates are shares of the negatives, and of the
    anchors that touch no object, with scores above 0.5, and above the score that keeps half of the
    positives.
    """
    positives = [cell for cell in cells if cell[0] >= round(POSITIVE_IOU * bins)]
    negatives = [cell for cell in cells if cell[0] < round(NEGATIVE_IOU * bins)]
    touching_nothing = [cell for cell in cells if cell[0] == 0]
    own = score_that_keeps(positives, KEPT, bins)
    result: dict[str, Any] = {
        "num_positives": _total(positives),
        "num_negatives": _total(negatives),
        "correlation": correlation(positives),
        "rank_correlation": correlation(_with_ranks(positives)),
        "score_that_keeps_half": own,
    }
    for kind, chosen in (("negatives", negatives), ("touching_nothing", touching_nothing)):
        result[f"{kind}_above_fixed"] = share_above(chosen, FIXED_SCORE, bins)
        result[f"{kind}_above_own"] = None if own is None else share_above(chosen, own, bins)
    return result


def score_that_keeps(cells: Cells, share: float, bins: int) -> float | None:
    """The score above which this share of the anchors stands, as if they lay evenly in their bins.

    >>> score_that_keeps([[60, 9, 1], [60, 4, 2], [60, 1, 1]], 0.5, bins=10)  # half of the two
    0.45
    >>> score_that_keeps([], 0.5, bins=10)
    """
    counts: dict[int, int] = {}
    for _, score, count in cells:
        counts[score] = counts.get(score, 0) + count
    missing = share * _total(cells)
    for score in sorted(counts, reverse=True):
        if counts[score] >= missing:
            return (score + 1 - missing / counts[score]) / bins
        missing -= counts[score]
    return None


def share_above(cells: Cells, score: float, bins: int) -> float | None:
    """The share of the anchors with a higher score, as if they lay evenly in their bins.

    >>> share_above([[0, 0, 3], [0, 7, 1]], 0.5, bins=10), share_above([[0, 4, 2]], 0.475, bins=10)
    (0.25, 0.25)
    """
    total = _total(cells)
    if not total:
        return None
    return sum(min(1, max(0, own + 1 - score * bins)) * count for _, own, count in cells) / total


def correlation(cells: Iterable[Sequence[float]]) -> float | None:
    """Pearson's correlation of the first two columns, the third being how often they occur.

    None where one of the two does not vary.

    >>> correlation([[0, 0, 1], [1, 1, 1], [2, 2, 5]]), correlation([[0, 1, 1], [1, 1, 1]])
    (1.0, None)
    """
    cells = list(cells)
    total = sum(count for _, _, count in cells)
    if not total:
        return None
    mean_x, mean_y = (sum(c[i] * c[2] for c in cells) / total for i in (0, 1))
    spread_x, spread_y = (
        sum((c[i] - mean) ** 2 * c[2] for c in cells) for i, mean in ((0, mean_x), (1, mean_y))
    )
    if not spread_x or not spread_y:
        return None
    shared = sum((x - mean_x) * (y - mean_y) * count for x, y, count in cells)
    return shared / math.sqrt(spread_x * spread_y)


def _with_ranks(cells: Cells) -> list[list[float]]:
    """The cells with the mean rank of the anchors of its bin in place of each bin."""
    ranks = []
    for column in (0, 1):
        counts: dict[int, int] = {}
        for cell in cells:
            counts[cell[column]] = counts.get(cell[column], 0) + cell[2]
        before, of_bin = 0, {}
        for place in sorted(counts):
            of_bin[place] = before + (counts[place] + 1) / 2
            before += counts[place]
        ranks.append(of_bin)
    return [[ranks[0][iou], ranks[1][score], count] for iou, score, count in cells]


def _total(cells: Cells) -> int:
    return sum(count for _, _, count in cells)


def markdown(record: Record) -> str:
    """The numbers of each loss."""
    results = results_of(record)
    columns = {
        "correlation": ("correlation of IoU and score, positives", 1.0, 3),
        "rank_correlation": ("rank correlation", 1.0, 3),
        "negatives_above_fixed": ("negatives with score > 0.5, %", 100.0, 1),
        "touching_nothing_above_fixed": ("touching nothing > 0.5, %", 100.0, 1),
        "negatives_above_own": ("negatives above the score that keeps half, %", 100.0, 1),
        "touching_nothing_above_own": ("touching nothing above it, %", 100.0, 1),
    }
    rows = []
    for name in LOSSES:
        if text := missing_text(record, name):
            rows.append([name, *[text] * len(columns)])
            continue
        texts = [name]
        for column, (_, factor, decimals) in columns.items():
            value = results[name][column]
            texts.append(number(None if value is None else factor * value, decimals))
        rows.append(texts)
    heading = ["loss", *(words for words, _, _ in columns.values())]
    return page(record, SUMMARY, [markdown_table(heading, rows)], _NOTES)


def figure(record: Record, path: Path) -> None:
    """Four panels as in the paper: IoU to the right, score upwards; dark: many anchors."""
    import numpy as np
    from matplotlib.colors import LogNorm

    results = results_of(record)
    most = max(
        (count for result in results.values() for _, _, count in result["anchors"]["cells"]),
        default=1,
    )
    picture = new_figure(8.4, 7.2)
    shown = None
    for axes, name in zip(picture.subplots(2, 2).flat, LOSSES, strict=True):
        label_axes(axes, name, "IoU of anchor and object", "score for the object's class")
        if name not in results:
            axes.text(0.5, 0.5, missing_text(record, name), ha="center")
            continue
        anchors = results[name]["anchors"]
        counts = np.zeros((anchors["bins"], anchors["bins"]))
        for iou, score, count in anchors["cells"]:
            counts[score, iou] = count
        shown = axes.imshow(
            np.ma.masked_equal(counts, 0),
            origin="lower",
            extent=(0, 1, 0, 1),
            norm=LogNorm(1, max(2, most)),
            cmap="viridis_r",
            interpolation="nearest",
        )
    if shown is not None:
        picture.colorbar(shown, ax=picture.axes, label="anchors", shrink=0.7)
    save_figure(picture, path)


SUMMARY = "correlation of IoU and score of anchors, and false positives, for four losses"
EXPERIMENT = Experiment(
    name="score-iou", summary=SUMMARY, labels=("dist",), plan=plan, markdown=markdown, figure=figure
)
