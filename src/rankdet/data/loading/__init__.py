"""Batches for training and evaluation, loaded by worker processes."""

from rankdet.data.loading.collate import Batch
from rankdet.data.loading.loader import Loader, make_loader

__all__ = ["Batch", "Loader", "make_loader"]
