"""A made-up ranking problem of Gaussian clusters, and how average precision is measured on it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rankdet.losses import binary_ap_loss


@dataclass(frozen=True)
class World:
    """Where samples come from: means (clusters, D) of clusters with unit covariance."""

    positive_means: Tensor
    hard_means: Tensor
    hard_fraction: float


@dataclass(frozen=True)
class Split:
    """positives (P, D) and negatives (N, D), float32."""

    positives: Tensor
    negatives: Tensor


def make_world(num_features: int, hard_fraction: float, generator: torch.Generator) -> World:
    """Three clusters of positives, 5 from the origin, and a hard-negative cluster 4 from each."""

    def directions() -> Tensor:
        vectors = torch.randn(3, num_features, generator=generator)
        return vectors / vectors.norm(dim=1, keepdim=True)

    positive_means = 5 * directions()
    return World(positive_means, positive_means + 4 * directions(), hard_fraction)


def draw_split(
    world: World, num_positives: int, num_negatives: int, generator: torch.Generator
) -> Split:
    """So many samples of each kind; most negatives lie around the origin, a part is hard.

    The negatives are in random order, so that any block of them is a fair sample.
    """
    num_clusters = len(world.positive_means)
    dimension = world.positive_means.shape[1]
    cluster = torch.randint(num_clusters, (num_positives,), generator=generator)
    positives = torch.randn(num_positives, dimension, generator=generator)
    positives += world.positive_means[cluster]
    negatives = torch.randn(num_negatives, dimension, generator=generator)
    is_hard = torch.rand(num_negatives, generator=generator) < world.hard_fraction
    hard = is_hard.nonzero()[:, 0]
    cluster = torch.randint(num_clusters, (len(hard),), generator=generator)
    negatives[hard] += world.hard_means[cluster]
    return Split(positives, negatives)


def likelihood_ratio(world: World, samples: Tensor) -> Tensor:
    """(samples,): log p(x | positive) - log p(x | negative), the best score that there is."""

    def log_density(means: Tensor) -> Tensor:
        squared = torch.cdist(samples.double(), means.double()) ** 2
        return torch.logsumexp(-0.5 * squared, dim=1) - math.log(len(means))

    origin = torch.zeros(1, samples.shape[1])
    hard = log_density(world.hard_means) + math.log(world.hard_fraction)
    easy = log_density(origin) + math.log1p(-world.hard_fraction)
    return log_density(world.positive_means) - torch.logaddexp(hard, easy)


def average_precision(positive_scores: Tensor, negative_scores: Tensor) -> float:
    """AP without interpolation: the mean of rank^+ / rank over the positives (Eq. 5)."""
    scores = torch.cat([positive_scores, negative_scores])
    targets = torch.zeros(len(scores), dtype=torch.long)
    targets[: len(positive_scores)] = 1
    return 1 - float(binary_ap_loss(scores, targets, step="heaviside", interpolate=False))


def precision_recall(positive_scores: Tensor, negative_scores: Tensor) -> tuple[Tensor, Tensor]:
    """recall and precision (P,) at each positive, from the highest score down."""
    positives = positive_scores.sort(descending=True).values
    negatives = negative_scores.sort().values
    num_found = torch.arange(1, len(positives) + 1)
    num_false = len(negatives) - torch.searchsorted(negatives, positives)
    return num_found / len(positives), num_found / (num_found + num_false)


def draw_batch(
    split: Split, num_positives: int, num_negatives: int, generator: torch.Generator
) -> Tensor:
    """(num_positives + num_negatives, D): random positives, then a random block of negatives."""
    chosen = torch.randperm(len(split.positives), generator=generator)[:num_positives]
    last_start = len(split.negatives) - num_negatives
    start = int(torch.randint(last_start + 1, (), generator=generator))
    return torch.cat([split.positives[chosen], split.negatives[start : start + num_negatives]])
