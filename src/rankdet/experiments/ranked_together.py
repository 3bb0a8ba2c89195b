"""Is ranking over more images worth it? AP-loss with 1 to 16 images ranked together.

Unlike in `batch_size`, a step has 16 images and the same learning rate in every row, and the box
loss is that of all 16: the ranking alone is divided, into 16, 8, 4, 2 parts or one, whose mean is
taken.
"""

from __future__ import annotations

from rankdet.experiments.comparison import Comparison, Variant, experiment

SIZES = (1, 2, 4, 8, 16)
STEP = 16

EXPERIMENT = experiment(
    "ranked-together",
    Comparison(
        title="AP-loss with 1 to 16 images ranked together, 16 in every step",
        row_title="images ranked together",
        reference=str(STEP),
        variants=tuple(
            Variant(
                row=str(size),
                changes={
                    "loss": {"name": "ap", "settings": {"scope": size}},
                    "training": {"batch_size": STEP, "accumulate": 1},
                },
            )
            for size in SIZES
        ),
        notes=(
            "Every step has 16 images, and all rows have the same learning rate. The class loss is "
            "the mean over the rankings of a step that have objects; the box loss is that of all "
            "16 images.",
        ),
    ),
    labels=(),
)
