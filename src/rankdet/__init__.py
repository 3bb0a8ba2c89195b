"""Ranking losses for object detection.

The names below are imported when they are first used, so that `import rankdet` (and with it the
command line's `--help`) does not wait for torch.

>>> import rankdet
>>> rankdet.BACKGROUND, rankdet.IGNORED
(-1, -2)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as in _HOME, for type checkers and editors
    from rankdet import losses
    from rankdet.losses import (
        BACKGROUND,
        IGNORED,
        APLoss,
        AUCLoss,
        FocalLoss,
        ap_loss,
        ap_loss_reference,
        auc_loss,
        binary_ap_loss,
        focal_loss,
        hinge_ap_loss,
        smooth_ap_loss,
    )
    from rankdet.workflows.load import TrainedDetector, load

__version__ = "0.1.0"

__all__ = [
    "BACKGROUND",
    "IGNORED",
    "APLoss",
    "AUCLoss",
    "FocalLoss",
    "TrainedDetector",
    "__version__",
    "ap_loss",
    "ap_loss_reference",
    "auc_loss",
    "binary_ap_loss",
    "focal_loss",
    "hinge_ap_loss",
    "load",
    "losses",
    "smooth_ap_loss",
]

# Where a public name lives. `losses` is a module itself and not in here.
_HOME = dict.fromkeys(set(__all__) - {"__version__", "losses"}, "rankdet.losses") | {
    "TrainedDetector": "rankdet.workflows.load",
    "load": "rankdet.workflows.load",
}


def __getattr__(name: str) -> Any:
    """The public name, imported now and kept."""
    if name == "losses":
        return importlib.import_module("rankdet.losses")
    if name not in _HOME:
        raise AttributeError(f"module 'rankdet' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The names that can be asked for, imported already or not."""
    return sorted(set(globals()) | set(__all__))
