"""Reading the entries for losses that judge each on its own, differentiated by plain autograd.

An ignored entry, be it of an ignored anchor or False in `mask`, is replaced before any arithmetic,
so its value (NaN and inf included) changes nothing and its gradient is exactly 0. A score that
counts and is not finite, or a wrong label where values are not read, makes value and gradient NaN.

Two rewritings keep the dense part short. With y = -logit at a positive and y = logit at a negative,
binary cross-entropy is softplus(y) = log(1 + exp(y)), and |sigmoid(logit) - target| is sigmoid(y).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional as F

from rankdet.losses.collectives import raised_by_all
from rankdet.losses.labels import (
    check_inputs,
    counted_entries,
    labels_are_valid,
    positive_entries,
    raise_if_not_finite,
    reads_values,
)

# Stands for the score of an ignored entry. As a negative it has loss 0, gradient 0 and sigmoid 0
# in every dtype, and it is finite, so that it does not disturb the search for non-finite scores.
_IGNORED_SCORE = -1e4


def read_entries(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    check_finite: bool | None,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores with ignored entries replaced, is_positive, is_counted (..., K), soundness ().

    With a group, what is wrong with the entries of one process is raised by all; the soundness is
    that of the own ones.
    """
    if group is not None:
        with raised_by_all(group, logits.device):
            return read_entries(logits, labels, mask, check_finite)
    check_inputs(logits, labels, mask)
    labels = labels.long()
    num_classes = logits.shape[-1]
    is_counted = counted_entries(labels, mask, num_classes)
    is_positive = positive_entries(labels, num_classes) & is_counted
    scores = torch.where(is_counted, logits, _IGNORED_SCORE).to(working_dtype(logits))
    soundness = soundness_factor(logits, labels, scores, is_counted, check_finite, num_classes)
    return scores, is_positive, is_counted, soundness


def working_dtype(logits: Tensor) -> torch.dtype:
    """float32, or float64 for float64 logits."""
    return torch.promote_types(logits.dtype, torch.float32)


def soundness_factor(
    logits: Tensor,
    labels: Tensor,
    scores: Tensor,
    is_counted: Tensor,
    check_finite: bool | None,
    num_classes: int,
) -> Tensor:
    """Factor of the loss: 1, or NaN if a counted score is not finite or a label is wrong.

    Some losses would return a finite number otherwise: sigmoid(inf) is 1. Multiplying by NaN also
    makes the gradient NaN, except at ignored entries.
    """
    one = scores.new_ones(())
    if scores.numel() == 0:
        return one
    lowest, highest = scores.detach().aminmax()  # one fast pass; NaN comes through
    is_finite = torch.isfinite(lowest) & torch.isfinite(highest)
    if check_finite is None:
        check_finite = reads_values(logits)
    if check_finite and not bool(is_finite):
        raise_if_not_finite(logits.detach(), is_counted)
    return one.masked_fill(~(is_finite & labels_are_valid(labels, num_classes)), math.nan)


def either(condition: Tensor, yes: float, no: float, like: Tensor) -> Tensor:
    """One number where the condition holds and another elsewhere, with the dtype of `like`.

    Plain torch.where would round the numbers to float32. As factors they cost fewer passes over
    the entries, backward above all, than torch.where between two tensors.
    """
    return torch.where(condition, like.new_full((), yes), like.new_full((), no))


def softplus(scores: Tensor) -> Tensor:
    """log(1 + exp(scores)), exact to the last digits of float64 too (torch's default is not)."""
    return F.softplus(scores, threshold=40.0)
