"""How many images are ranked together: 1 to 8, with focal loss beside AP-loss.

The paper's two devices rank their images alone, so a step has twice as many images: two parts of
`training.accumulate`. The learning rate is scaled to the images of a step, and the number of epochs
is the same for all, as in the paper.
"""

from __future__ import annotations

from rankdet.experiments.comparison import Comparison, Variant, experiment

SIZES = (1, 2, 4, 8)

EXPERIMENT = experiment(
    "batch-size",
    Comparison(
        title="AP-loss and focal loss with 1, 2, 4 and 8 images ranked together",
        row_title="batch size",
        variants=tuple(
            Variant(
                row=str(size),
                group=group,
                changes={
                    "loss": {"name": loss},
                    "training": {"batch_size": 2 * size, "accumulate": 2},
                },
                paper=("focal-batch-size", str(size)),
            )
            for group, loss in (("Focal-Loss", "focal"), ("AP-Loss", "ap"))
            for size in SIZES
        ),
        notes=(
            "A step has two such batches, as on the paper's two devices; the learning rate is "
            "scaled linearly, the number of epochs fixed.",
        ),
    ),
    labels=("voc-minibatch-training", "focal-batch-size"),
)
