"""Random changes of images and their boxes: one by one, and whole batches where the pixels are."""
