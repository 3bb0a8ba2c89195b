"""What a detector asks of a class loss beside calling it."""

from __future__ import annotations

from torch import nn
from torch.distributed import ProcessGroup


class ClassLoss(nn.Module):
    """Base of the loss modules: keeps the settings of a function of (logits, labels).

    `activation` turns the trained logits into scores at test time: "sigmoid" over K columns, or
    "softmax" over K + 1 columns, column 0 background and class c in column c + 1.

    Args:
        synchronize: whether the loss is that of the global batch of all processes.
        process_group: these processes; None: all of them.
    """

    activation: str = "sigmoid"

    def __init__(
        self, synchronize: bool = False, process_group: ProcessGroup | None = None
    ) -> None:
        super().__init__()
        self.synchronize = synchronize
        self.process_group = process_group

    def num_logits(self, num_classes: int) -> int:
        """How many columns the detector's head has to give for `num_classes` classes."""
        return num_classes + 1 if self.activation == "softmax" else num_classes

    def extra_repr(self) -> str:
        unsaid = {"training": self.training, "synchronize": False, "process_group": None}
        settings = {
            name: value
            for name, value in vars(self).items()
            if not name.startswith("_") and not (name in unsaid and value == unsaid[name])
        }
        return ", ".join(f"{name}={value!r}" for name, value in settings.items())
