"""The half width delta of the piecewise step function (Eq. 21)."""

from __future__ import annotations

from rankdet.experiments.comparison import Comparison, Variant, experiment

DELTAS = (0.25, 0.5, 1.0, 2.0, 4.0)

EXPERIMENT = experiment(
    "delta",
    Comparison(
        title="AP-loss with piecewise steps of different half width delta",
        row_title="delta",
        reference="1",
        variants=tuple(
            Variant(
                row=f"{delta:g}",
                # The default is not written out: other tables share this training.
                changes={} if delta == 1 else {"loss": {"settings": {"delta": delta}}},
                paper=("voc-smoothing", f"{delta:g}"),
            )
            for delta in DELTAS
        ),
    ),
    labels=("voc-smoothing",),
)
