"""A share of a data set that is held out of the training: chosen by the names of the images alone.

Neither the seed nor the other images have a say: an image is on the same side whenever and wherever
it is asked for, also after others were added. What a smaller share holds out, so does a larger one.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from rankdet.data.chosen import ChosenImages
from rankdet.data.dataset import DetectionDataset


def divide(dataset: DetectionDataset, share: float) -> tuple[ChosenImages, ChosenImages]:
    """The images to train on and those held out, each in the order of the data set.

    share: above 0 and below 1. Each image is held out with this probability; but of two or more
    images at least one is held out, the first in the order of `place`, and the last one is not.
    """
    places = np.array([place(dataset.name(index)) for index in range(len(dataset))])
    is_held = places < share
    if len(places) > 1:
        is_held[places.argmin()] = True
        is_held[places.argmax()] = False
    return (
        ChosenImages(dataset, np.flatnonzero(~is_held)),
        ChosenImages(dataset, np.flatnonzero(is_held)),
    )


def place(name: str) -> float:
    """A number from 0 to 1 for the image of this name: those below the share are held out.

    Of a path only the last part counts, without its ending: the data may lie elsewhere, or be in
    another format, some day.

    >>> round(place("cat.jpg"), 4), place("elsewhere/cat.png") == place("cat.jpg")
    (0.4675, True)
    """
    digest = hashlib.sha256(os.fsencode(Path(name).stem)).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
