"""Choosing negatives by score and at random."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankdet.losses import focal_loss, sampling
from rankdet.losses.ap import ap_loss
from rankdet.losses.labels import BACKGROUND, IGNORED, counted_entries, positive_entries
from rankdet.losses.sampling import (
    hard_negatives,
    hardest_negatives,
    negative_quota,
    random_negatives,
)

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
BOTH = pytest.mark.parametrize("sample", [hard_negatives, random_negatives])

# No deadline: the machine may be busy, and the first call of torch is slow.
BRIEFLY = settings(max_examples=40, deadline=None)


def problem(seed: int, *shape: int) -> tuple[Tensor, Tensor]:
    """Logits with many ties, and labels of every kind."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-3, 4, shape, generator=generator).float()
    kinds = torch.tensor([IGNORED, BACKGROUND, BACKGROUND, BACKGROUND, 0, shape[-1] - 1])
    return logits, kinds[torch.randint(0, 6, shape[:-1], generator=generator)]


def split(mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where the mask keeps positives, negatives and ignored entries."""
    is_positive = positive_entries(labels, mask.shape[-1])
    is_counted = counted_entries(labels, None, mask.shape[-1])
    return mask & is_positive, mask & is_counted & ~is_positive, mask & ~is_counted


# By hand.


def test_hard_negatives_are_the_highest_scores_that_are_not_positives() -> None:
    logits = torch.tensor([[9.0, 1.0], [5.0, 0.0], [8.0, 8.0], [2.0, 3.0]])
    labels = torch.tensor([0, BACKGROUND, IGNORED, BACKGROUND])
    expected = torch.tensor([[True, False], [True, False], [False, False], [False, True]])
    assert torch.equal(hard_negatives(logits, labels, ratio=2.0), expected)


def test_an_other_class_of_a_positive_anchor_is_a_negative() -> None:
    mask = hard_negatives(torch.tensor([[0.0, 7.0], [6.0, 5.0]]), torch.tensor([0, BACKGROUND]))
    assert mask.tolist() == [[True, True], [True, True]]
    mask = hard_negatives(torch.tensor([[0.0, 7.0], [6.0, 5.0]]), torch.tensor([0, -1]), ratio=1)
    assert mask.tolist() == [[True, True], [False, False]]


def test_images_share_the_quota_in_scope_batch_and_have_their_own_in_scope_image() -> None:
    logits = torch.tensor([[[0.0], [1.0], [2.0]], [[5.0], [6.0], [7.0]]])
    labels = torch.tensor([[0, -1, -1], [-1, -1, -1]])
    batch = hard_negatives(logits, labels, ratio=2.0, scope="batch")
    assert batch.squeeze(-1).tolist() == [[True, False, False], [False, True, True]]
    image = hard_negatives(logits, labels, ratio=1.0, scope="image")
    assert image.squeeze(-1).tolist() == [[True, False, True], [False, False, False]]


def test_some_images_share_a_quota_and_the_last_may_be_fewer() -> None:
    logits = torch.tensor([[[0.0], [1.0], [2.0]], [[5.0], [6.0], [7.0]], [[8.0], [3.0], [4.0]]])
    labels = torch.tensor([[0, -1, -1], [-1, -1, -1], [0, -1, -1]])
    mask = hard_negatives(logits, labels, ratio=1.0, scope=2)
    first = [[True, False, False], [False, False, True]]
    assert mask.squeeze(-1).tolist() == [*first, [True, False, True]]


def test_the_quota_is_rounded_down_but_not_by_rounding_errors() -> None:
    num_positives = torch.tensor([0, 1, 2, 3, 100])
    assert negative_quota(num_positives, 0.5).tolist() == [0, 0, 1, 1, 50]
    assert negative_quota(num_positives, 0.29).tolist() == [0, 0, 0, 0, 29]
    assert negative_quota(num_positives, 3.0).tolist() == [0, 3, 6, 9, 300]
    assert negative_quota(torch.tensor([199]), ratio=0.005).tolist() == [0]  # 0.995


def test_hardest_anchors_are_chosen_image_by_image_with_ties_in_order() -> None:
    loss = torch.tensor([[3.0, 1.0, 1.0, 1.0], [9.0, 8.0, 7.0, 6.0], [1.0, 2.0, 3.0, 4.0]])
    is_positive = torch.tensor([[True, False, False, False]] * 2 + [[False] * 4])
    is_negative = torch.tensor([[False, True, True, True], [False, False, True, True], [True] * 4])
    chosen = hardest_negatives(loss, is_positive, is_negative, ratio=2.0)
    assert chosen.tolist() == [[False, True, True, False], [False, False, True, True], [False] * 4]
    one_image = hardest_negatives(loss[0], is_positive[0], is_negative[0], ratio=2.0)
    assert torch.equal(one_image, chosen[0])


@BOTH
def test_without_positives_nothing_is_kept(sample: Callable[..., Tensor]) -> None:
    assert not sample(torch.randn(3, 4), torch.tensor([-1, -2, -1])).any()


@BOTH
def test_with_too_few_negatives_all_are_kept(sample: Callable[..., Tensor]) -> None:
    mask = sample(torch.randn(3, 2), torch.tensor([0, -2, -1]), ratio=1e6)
    assert mask.tolist() == [[True, True], [False, False], [True, True]]


@BOTH
def test_ratio_zero_keeps_the_positives_alone(sample: Callable[..., Tensor]) -> None:
    mask = sample(torch.randn(3, 2), torch.tensor([0, -2, -1]), ratio=0)
    assert mask.tolist() == [[True, False], [False, False], [False, False]]


# Properties.


@BRIEFLY
@given(st.integers(0, 10**6), st.floats(0, 4), st.sampled_from(["batch", "image"]))
def test_exactly_the_quota_is_kept_also_among_ties(seed: int, ratio: float, scope: str) -> None:
    logits, labels = problem(seed, 3, 7, 2)
    generator = torch.Generator().manual_seed(seed)
    for mask in (
        hard_negatives(logits, labels, ratio=ratio, scope=scope),
        random_negatives(logits, labels, ratio=ratio, scope=scope, generator=generator),
    ):
        positives, negatives, ignored = split(mask, labels)
        assert torch.equal(positives, positive_entries(labels, 2))
        assert not ignored.any()
        axes = (0, 1, 2) if scope == "batch" else (1, 2)
        num_negatives = split(torch.ones_like(mask), labels)[1].sum(axes)
        quota = negative_quota(positives.sum(axes), ratio)
        assert torch.equal(negatives.sum(axes), quota.minimum(num_negatives))


@pytest.mark.parametrize("block", [1, 3, 16, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_hard_negatives_agree_with_a_full_sort(
    block: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "_BLOCK", block)
    for seed in range(5):
        logits, labels = problem(seed, 40, 3)
        logits = logits.to(dtype)
        mask = hard_negatives(logits, labels, ratio=1.5)
        negatives = split(torch.ones_like(mask), labels)[1]
        kept = split(mask, labels)[1]
        highest = logits[negatives].sort(descending=True).values[: int(kept.sum())]
        assert torch.equal(logits[kept].sort(descending=True).values, highest)


def test_every_subset_of_the_negatives_is_equally_likely() -> None:
    labels = torch.tensor([0, BACKGROUND, IGNORED, BACKGROUND])
    generator = torch.Generator().manual_seed(0)
    draws = 3000
    seen: dict[tuple[int, ...], int] = {}
    for _ in range(draws):
        mask = random_negatives(torch.zeros(4, 2), labels, ratio=2.0, generator=generator)
        subset = tuple(split(mask, labels)[1].flatten().nonzero().flatten().tolist())
        seen[subset] = seen.get(subset, 0) + 1
    assert len(seen) == math.comb(5, 2)
    spread = 5 * math.sqrt(draws * 0.1 * 0.9)
    assert all(abs(times - draws * 0.1) < spread for times in seen.values())


def test_a_generator_decides_the_choice_and_the_scores_do_not() -> None:
    logits, labels = problem(0, 500, 3)
    first = random_negatives(logits, labels, generator=torch.Generator().manual_seed(7))
    again = random_negatives(logits.neg(), labels, generator=torch.Generator().manual_seed(7))
    other = random_negatives(logits, labels, generator=torch.Generator().manual_seed(8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_nan_counts_as_the_hardest_negative_and_stays_out_of_ignored_anchors() -> None:
    logits = torch.tensor([[0.0], [math.nan], [9.0], [math.nan]])
    mask = hard_negatives(logits, torch.tensor([0, -1, -1, IGNORED]), ratio=1.0)
    assert mask.squeeze(-1).tolist() == [True, True, False, False]


def test_minus_infinity_never_lets_an_ignored_entry_in() -> None:
    logits = torch.tensor([[math.inf], [0.0], [-math.inf]])
    mask = hard_negatives(logits, torch.tensor([IGNORED, 0, -1]))
    assert mask.squeeze(-1).tolist()[:2] == [False, True]


# In front of a loss.


def test_a_loss_with_the_mask_is_the_loss_of_the_chosen_entries_alone() -> None:
    logits = torch.tensor([[0.0], [5.0], [-9.0], [-9.5]], requires_grad=True)
    labels = torch.tensor([0, -1, -1, -1])
    mask = hard_negatives(logits, labels, ratio=1.0)
    assert not mask.requires_grad
    chosen = focal_loss(logits[:2], labels[:2])
    torch.testing.assert_close(focal_loss(logits, labels, mask=mask), chosen)
    # The negatives left out stand below min p - delta, where AP-loss does not see them anyway.
    loss = ap_loss(logits, labels, mask=mask)
    assert loss.item() == ap_loss(logits, labels).item() == 0.5
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.flatten().tolist() == [-0.5, 0.5, 0.0, 0.0]


# Shapes, dtypes, errors.


@BOTH
@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (0, 5, 3), (4, 0)])
def test_an_empty_batch_has_an_empty_mask(
    sample: Callable[..., Tensor], shape: tuple[int, ...]
) -> None:
    scopes = ["batch", "image"] if len(shape) == 3 else ["batch"]
    for scope in scopes:
        mask = sample(torch.empty(shape), torch.full(shape[:-1], BACKGROUND), scope=scope)
        assert mask.shape == shape
        assert mask.dtype == torch.bool


@pytest.mark.parametrize("scope", ["batch", "image"])
def test_non_contiguous_logits_and_narrow_labels_are_fine(scope: str) -> None:
    logits, labels = problem(3, 2, 20, 3)
    strided = logits.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert not strided.is_contiguous()
    expected = hard_negatives(logits, labels, scope=scope)
    assert torch.equal(hard_negatives(strided, labels.to(torch.int8), scope=scope), expected)


@BOTH
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": -1.0}, r"ratio: expected a finite number >= 0, got -1\.0"),
        ({"ratio": math.nan}, r"ratio: expected a finite number >= 0, got nan"),
        ({"ratio": math.inf}, r"ratio: expected a finite number >= 0, got inf"),
        ({"scope": "class"}, r"scope: expected 'batch', 'image' or .*, got 'class'"),
        ({"scope": "image"}, r"logits: expected shape \(B, A, K\) .*, got \(4, 3\)"),
    ],
)
def test_wrong_settings_are_refused(
    sample: Callable[..., Tensor], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sample(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), **settings)


@BOTH
def test_wrong_labels_are_refused(sample: Callable[..., Tensor]) -> None:
    with pytest.raises(ValueError, match="got values from 3 to 3"):
        sample(torch.zeros(1, 3), torch.tensor([3]))
