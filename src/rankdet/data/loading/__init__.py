"""Batches for training and evaluation, loaded by worker processes."""
