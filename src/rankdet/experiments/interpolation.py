"""AP-loss with and without interpolated precision (section 3.4.3)."""

from __future__ import annotations

from rankdet.experiments.comparison import Comparison, Variant, experiment

EXPERIMENT = experiment(
    "interpolation",
    Comparison(
        title="AP-loss with and without interpolated precision",
        row_title="interpolated",
        reference="Yes",
        variants=(
            Variant(
                row="No",
                changes={"loss": {"settings": {"interpolate": False}}},
                paper=("voc-interpolated-ap", "No"),
            ),
            Variant(row="Yes", paper=("voc-interpolated-ap", "Yes")),
        ),
    ),
    labels=("voc-interpolated-ap",),
)
