"""Random choices among the boxes of an image, new in each epoch and the same wherever it is seen.

A run that is resumed, and any number of processes, on any device, must choose the same boxes. So
nothing is drawn from a generator with a state: a box's number in the lottery is a hash of its
place, of its image and of the image's `draw`, which comes from seed and epoch.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from rankdet.structures import Target

# The finaliser of SplitMix64 (Steele, Lea, Flood 2014): shifts, and multipliers as signed numbers.
_STEPS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64), (31, 1))
_NUM_BITS = 61  # of a number: never negative, and there is room for a higher class of numbers
PREFERRED = 2**_NUM_BITS  # added to a number, it is higher than all others


def lots(targets: Sequence[Target], num_boxes: int, device: torch.device, purpose: str) -> Tensor:
    """(B, A) int64, 0 to PREFERRED - 1: a random number for each of A boxes of each image.

    It is always the same for the same purpose, image (its image_id, size and draw) and place of the
    box.
    """
    seeds = torch.tensor([_seed(target, purpose) for target in targets], dtype=torch.int64)
    seeds = seeds.to(device, non_blocking=True)  # so few bytes are copied without a wait
    numbers: Tensor = (seeds.unsqueeze(1) << 32) + torch.arange(num_boxes, device=device)
    for shift, factor in _STEPS:
        # `>>` copies the sign into the upper bits, which are to be 0.
        numbers = (numbers ^ ((numbers >> shift) & (2 ** (64 - shift) - 1))) * factor
    return numbers.bitwise_and(PREFERRED - 1)


def drawn(numbers: Tensor, num_drawn: int) -> tuple[Tensor, Tensor]:
    """Places (B, D) of the highest numbers (B, A) of each image, and which of them count (B, D).

    A number below 0 is not to be drawn. D is num_drawn, or A if that is less. Highest first.

    >>> drawn(torch.tensor([[5, -1, 7]]), 3)
    (tensor([[2, 0, 1]]), tensor([[ True,  True, False]]))
    """
    best, places = numbers.topk(min(num_drawn, numbers.shape[1]), dim=1)
    return places, best >= 0


def _seed(target: Target, purpose: str) -> int:
    """32 bits."""
    return zlib.crc32(f"{purpose} {target.image_id} {target.size} {target.draw}".encode())
