"""A few negatives chosen before AP-loss sees them: the hardest, or at random (A4.2.1)."""

from __future__ import annotations

from rankdet.experiments.comparison import Comparison, Variant, experiment

EXPERIMENT = experiment(
    "sampling",
    Comparison(
        title="AP-loss on the hardest, on random and on all negatives",
        row_title="method",
        reference="Original AP-Loss",
        variants=(
            Variant(
                row="OHEM + AP-loss",
                changes={"loss": {"settings": {"negatives": "hardest"}}},
                paper=("OHEM_Randomsampling", "OHEM + AP-loss"),
            ),
            Variant(
                row="Random Sampling + AP-loss",
                changes={"loss": {"settings": {"negatives": "random"}}},
                paper=("OHEM_Randomsampling", "Random Sampling + AP-loss"),
            ),
            Variant(row="Original AP-Loss", paper=("OHEM_Randomsampling", "Original AP-Loss")),
        ),
        notes=(
            "3 negatives for each positive are kept, out of all images that are ranked together; "
            "the paper does not say how many it kept.",
        ),
    ),
    labels=("OHEM_Randomsampling",),
)
