"""The plots of the report: each gives an inline SVG, or None where there is nothing to draw.

Their colours are the page's CSS variables --ink, --grid and --series-1 to --series-8.
"""

from rankdet.report.evaluation_plots import (
    class_bars,
    confusion,
    error_bars,
    precision_recall,
    precision_recall_mean,
    score_against_iou,
)
from rankdet.report.training_plots import iteration_time, training_curves

__all__ = [
    "class_bars",
    "confusion",
    "error_bars",
    "iteration_time",
    "precision_recall",
    "precision_recall_mean",
    "score_against_iou",
    "training_curves",
]
