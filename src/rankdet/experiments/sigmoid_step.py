"""The sigmoid in place of the piecewise step: e^(x/k) / (1 + e^(x/k)) (appendix A4.2.2)."""

from __future__ import annotations

from rankdet.experiments.comparison import Comparison, Variant, experiment

WIDTHS = (0.25, 0.5, 1.0, 2.0)

EXPERIMENT = experiment(
    "sigmoid",
    Comparison(
        title="AP-loss with sigmoid steps of different width k",
        row_title="k",
        variants=tuple(
            Variant(
                row=f"{width:g}",
                changes={"loss": {"settings": {"step": "sigmoid", "delta": width}}},
                paper=("sigmoid", f"{width:g}"),
            )
            for width in WIDTHS
        ),
    ),
    labels=("sigmoid",),
)
