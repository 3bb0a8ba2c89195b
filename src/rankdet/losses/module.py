"""What a detector asks of a class loss beside calling it."""

from __future__ import annotations

from torch import nn


class ClassLoss(nn.Module):
    """Base of the loss modules: keeps the settings of a function of (logits, labels).

    `activation` turns the trained logits into scores at test time: "sigmoid" over K columns, or
    "softmax" over K + 1 columns, column 0 background and class c in column c + 1.
    """

    activation: str = "sigmoid"

    def num_logits(self, num_classes: int) -> int:
        """How many columns the detector's head has to give for `num_classes` classes."""
        return num_classes + 1 if self.activation == "softmax" else num_classes

    def extra_repr(self) -> str:
        settings = {
            k: v for k, v in vars(self).items() if not k.startswith("_") and k != "training"
        }
        return ", ".join(f"{name}={value!r}" for name, value in settings.items())
