"""Losses."""

from rankdet.losses.ap import APLoss as APLoss
from rankdet.losses.ap import ap_loss as ap_loss
from rankdet.losses.ap import binary_ap_loss as binary_ap_loss
from rankdet.losses.ap_reference import ap_loss_reference as ap_loss_reference
from rankdet.losses.auc import AUCLoss as AUCLoss
from rankdet.losses.auc import auc_loss as auc_loss
from rankdet.losses.labels import BACKGROUND as BACKGROUND
from rankdet.losses.labels import IGNORED as IGNORED
