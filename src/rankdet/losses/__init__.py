"""The losses: functions of (logits, labels) and modules that keep their settings.

Depends on torch alone. Every loss takes logits (R, K) or (B, A, K) and compact integer labels (R,)
or (B, A): the class's column 0..K-1, BACKGROUND or IGNORED.
"""

from rankdet.losses.ap import APLoss, ap_loss, binary_ap_loss
from rankdet.losses.ap_reference import ap_loss_reference
from rankdet.losses.auc import AUCLoss, auc_loss
from rankdet.losses.cross_entropy import CrossEntropyLoss, cross_entropy_loss
from rankdet.losses.dr import DRLoss, dr_loss
from rankdet.losses.focal import FocalLoss, focal_loss
from rankdet.losses.ghm import GHMLoss, ghm_loss
from rankdet.losses.hinge_ap import HingeAPLoss, hinge_ap_loss
from rankdet.losses.labels import BACKGROUND, IGNORED
from rankdet.losses.module import ClassLoss
from rankdet.losses.ohem import OHEMLoss, ohem_loss
from rankdet.losses.sampling import hard_negatives, random_negatives
from rankdet.losses.smooth_ap import SmoothAPLoss, smooth_ap_loss

__all__ = [
    "BACKGROUND",
    "IGNORED",
    "APLoss",
    "AUCLoss",
    "ClassLoss",
    "CrossEntropyLoss",
    "DRLoss",
    "FocalLoss",
    "GHMLoss",
    "HingeAPLoss",
    "OHEMLoss",
    "SmoothAPLoss",
    "ap_loss",
    "ap_loss_reference",
    "auc_loss",
    "binary_ap_loss",
    "cross_entropy_loss",
    "dr_loss",
    "focal_loss",
    "ghm_loss",
    "hard_negatives",
    "hinge_ap_loss",
    "ohem_loss",
    "random_negatives",
    "smooth_ap_loss",
]
