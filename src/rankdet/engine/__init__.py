"""Loops over batches: training and detection; and what a run keeps on disk."""
