"""The meaning of labels and the checks of inputs."""

import math

import pytest
import torch
from torch import Tensor

from rankdet.losses.labels import (
    BACKGROUND,
    IGNORED,
    check_inputs,
    counted_entries,
    labels_are_valid,
    positive_entries,
    raise_if_not_finite,
    reads_values,
)

SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]


def test_constants_are_those_of_torchvision_matcher() -> None:
    from torchvision.models.detection._utils import Matcher

    assert (BACKGROUND, IGNORED) == (Matcher.BELOW_LOW_THRESHOLD, Matcher.BETWEEN_THRESHOLDS)


def test_an_anchor_is_positive_in_its_own_column_only() -> None:
    labels = torch.tensor([[1, 0], [BACKGROUND, IGNORED]])
    expected = torch.zeros(2, 2, 3, dtype=torch.bool)
    expected[0, 0, 1] = expected[0, 1, 0] = True
    assert torch.equal(positive_entries(labels, 3), expected)


def test_ignored_anchors_and_masked_entries_do_not_count() -> None:
    labels = torch.tensor([0, BACKGROUND, IGNORED])
    assert counted_entries(labels, None, 2).tolist() == [[True] * 2, [True] * 2, [False] * 2]
    mask = torch.tensor([[True, False], [False, False], [True, True]])
    assert counted_entries(labels, mask, 2).tolist() == [[True, False], [False] * 2, [False] * 2]


@pytest.mark.parametrize("dtype", SIGNED)
def test_labels_of_every_signed_dtype_mean_the_same(dtype: torch.dtype) -> None:
    labels = torch.tensor([2, BACKGROUND, IGNORED, 0])
    check_inputs(torch.zeros(4, 3), labels.to(dtype))
    assert torch.equal(positive_entries(labels.to(dtype), 3), positive_entries(labels, 3))
    assert torch.equal(counted_entries(labels.to(dtype), None, 3), counted_entries(labels, None, 3))


def test_unsigned_labels_can_hold_classes() -> None:
    labels = torch.tensor([2, 0], dtype=torch.uint8)
    check_inputs(torch.zeros(2, 3), labels)
    assert positive_entries(labels, 3).nonzero().tolist() == [[0, 2], [1, 0]]


def test_unsigned_labels_do_not_wrap_into_background_or_ignored() -> None:
    labels = torch.tensor([254, 255], dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"expected 0\.\.2 .* got values from 254 to 255"):
        check_inputs(torch.zeros(2, 3), labels)
    assert counted_entries(labels, None, 300).all()


def test_labels_of_a_narrow_dtype_go_with_more_classes_than_it_can_count() -> None:
    for num_classes in (128, 200, 300):
        check_inputs(
            torch.zeros(3, num_classes), torch.tensor([BACKGROUND, IGNORED, 127], dtype=torch.int8)
        )


@pytest.mark.parametrize(
    ("labels", "is_valid"),
    [([0, 2, -1, -2], True), ([], True), ([3], False), ([0, -3], False), ([1000], False)],
)
def test_a_label_is_valid_from_ignored_up_to_the_last_class(
    labels: list[int], is_valid: bool
) -> None:
    assert bool(labels_are_valid(torch.tensor(labels, dtype=torch.int64), 3)) is is_valid


LOGITS = torch.zeros(4, 3)
LABELS = torch.zeros(4, dtype=torch.int64)
MASK = torch.ones(4, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("logits", "labels", "mask", "message"),
    [
        (LOGITS.long(), LABELS, None, r"logits: expected a floating .*, got torch\.int64"),
        (LOGITS[0], LABELS, None, r"logits: expected shape .*, got \(3,\).*binary_ap_loss"),
        (LOGITS[0, 0], LABELS, None, r"logits: expected shape .*, got \(\)"),
        (LOGITS[None, None], LABELS, None, r"logits: expected shape .*, got \(1, 1, 4, 3\)"),
        (LOGITS, LABELS.float(), None, r"labels: expected an integer .*, got torch\.float32"),
        (LOGITS, LABELS.bool(), None, r"labels: expected an integer .*, got torch\.bool"),
        (LOGITS, LABELS[:3], None, r"labels: expected shape \(4,\), .*, got \(3,\)"),
        (LOGITS, LABELS[:, None], None, r"labels: expected shape \(4,\), .*, got \(4, 1\)"),
        (LOGITS, LABELS, MASK.float(), r"mask: expected torch\.bool .*, got torch\.float32"),
        (LOGITS, LABELS, MASK[:, :1], r"mask: expected .*\(4, 3\), got .*\(4, 1\)"),
        (LOGITS, LABELS.to("meta"), None, r"labels: expected on cpu .*, got meta"),
        (LOGITS, LABELS, MASK.to("meta"), r"mask: expected on cpu .*, got meta"),
        (LOGITS, LABELS + 3, None, r"labels: expected 0\.\.2 .*, got values from 3 to 3"),
        (LOGITS, LABELS - 3, None, r"labels: expected .* -2 for ignored, got values from -3 to -3"),
    ],
)
def test_wrong_inputs_are_refused_with_expected_and_got(
    logits: Tensor, labels: Tensor, mask: Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_inputs(logits, labels, mask)


@pytest.mark.parametrize("shape", [(4, 3), (2, 5, 3), (0, 3), (2, 0, 3), (4, 1)])
def test_inputs_that_fit_together_are_taken(shape: tuple[int, ...]) -> None:
    labels = torch.full(shape[:-1], BACKGROUND)
    check_inputs(torch.zeros(shape), labels, torch.ones(shape, dtype=torch.bool))


def test_the_number_of_classes_can_be_other_than_the_number_of_columns() -> None:
    check_inputs(LOGITS, LABELS + 1, num_classes=2)
    with pytest.raises(ValueError, match=r"expected 0\.\.1 .*, got values from 2 to 2"):
        check_inputs(LOGITS, LABELS + 2, num_classes=2)


def test_label_values_are_not_read_on_an_accelerator() -> None:
    assert reads_values(LOGITS)
    assert not reads_values(LOGITS.to("meta"))
    check_inputs(LOGITS.to("meta"), (LABELS + 99).to("meta"))


def test_the_error_on_scores_that_are_not_finite_says_how_many_and_where() -> None:
    logits = torch.tensor([[0.0, math.nan], [math.inf, -math.inf], [math.nan, 0.0]])
    counted = torch.tensor([[True, False], [True, True], [True, True]])
    message = (
        r"^logits: 3 of 5 scores are not finite \(1 NaN, 2 infinite\), "
        r"the first at index \(1, 0\): inf\."
    )
    with pytest.raises(FloatingPointError, match=message):
        raise_if_not_finite(logits, counted)
    with pytest.raises(FloatingPointError, match=r"^scores: 1 of 1 .* \(1 NaN, 0 infinite\)"):
        raise_if_not_finite(torch.tensor([math.nan]), torch.tensor([True]), "scores")


def test_entries_that_do_not_count_may_be_anything() -> None:
    raise_if_not_finite(torch.tensor([math.nan, 1.0]), torch.tensor([False, True]))
    raise_if_not_finite(torch.empty(0, 3), torch.empty(0, 3, dtype=torch.bool))
