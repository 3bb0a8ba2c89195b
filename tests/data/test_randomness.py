"""Random numbers of samples: a function of the key alone."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankdet.data.randomness import SampleKey, uniforms

parts = st.integers(0, 2**32 - 1)
keys = st.builds(SampleKey, parts, parts, parts)


def test_the_numbers_of_one_key_are_these_for_ever():
    # A run that is continued with another version must see the same samples.
    assert uniforms([SampleKey(1, 2, 3)], 3).tolist() == [
        [0.6704722626516632, 0.1110146366693816, 0.5115090823948739]
    ]


def test_numbers_are_float64_from_0_to_below_1_with_the_mean_and_spread_of_a_uniform():
    numbers = uniforms([SampleKey(0, 0, index) for index in range(200)], 100)
    assert numbers.dtype == torch.float64
    assert numbers.shape == (200, 100)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(numbers.std() - 12**-0.5) < 0.01


def test_close_keys_give_unrelated_numbers():
    near = [SampleKey(*key) for key in itertools.product(range(8), repeat=3)]
    rows = uniforms(near, 2)
    assert len({tuple(row) for row in rows.tolist()}) == 8**3
    series = uniforms([SampleKey(0, 0, index) for index in range(2000)], 1).ravel()
    assert abs(torch.corrcoef(torch.stack([series[:-1], series[1:]]))[0, 1]) < 0.1


@given(keys, keys)
def test_keys_that_differ_give_numbers_that_differ(one, other):
    is_same = torch.equal(uniforms([one], 2), uniforms([other], 2))
    assert is_same == (one == other)


@given(st.lists(keys, max_size=5), keys, st.integers(1, 5))
def test_a_row_does_not_depend_on_the_batch_nor_on_how_many_numbers_are_asked(others, key, count):
    row = uniforms([*others, key], count)[-1]
    assert torch.equal(row, uniforms([key], 7)[0, :count])


def test_no_keys_and_no_numbers_are_fine():
    assert uniforms([], 3).shape == (0, 3)
    assert uniforms([SampleKey(0, 0, 0)], 0).shape == (1, 0)


@pytest.mark.parametrize("key", [(-1, 0, 0), (0, 2**32, 0), (0, 0, -5), (2**40, 0, 0)])
def test_keys_out_of_range_are_refused(key):
    # (5 + 2**32, 2, 0) and (5, 1, 2) would give the same numbers.
    with pytest.raises(ValueError, match="expected integers from 0"):
        SampleKey(*key)


def test_the_draw_of_a_key_is_this_for_ever_and_another_for_every_other_key():
    assert SampleKey(1, 2, 3).draw == 4159356255  # CRC-32 of "1 2 3"
    near = [SampleKey(*key) for key in itertools.product(range(20), repeat=3)]
    assert len({key.draw for key in near}) == 20**3


@given(keys)
def test_a_draw_has_32_bits(key):
    assert 0 <= key.draw < 2**32
