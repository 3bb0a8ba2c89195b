"""Which samples stand in which batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdet.data.loading.order import (
    BatchOrder,
    aspect_groups,
    epoch_order,
    grouped_order,
    part_of,
)


def as_lists(batches: list[np.ndarray]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def test_without_shuffling_batches_follow_the_data_set() -> None:
    order = BatchOrder(5, batch_size=2, shuffle=False, drop_last=False)
    assert as_lists(order.batches(epoch=3)) == [[0, 1], [2, 3], [4]]
    assert len(order) == 3


def test_an_incomplete_last_batch_can_be_left_out() -> None:
    order = BatchOrder(5, batch_size=2, shuffle=False, drop_last=True)
    assert as_lists(order.batches(epoch=0)) == [[0, 1], [2, 3]]
    assert len(order) == 2


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_complete_last_batch_is_kept(drop_last: bool) -> None:
    order = BatchOrder(4, batch_size=2, shuffle=False, drop_last=drop_last)
    assert as_lists(order.batches(epoch=0)) == [[0, 1], [2, 3]]
    assert len(order) == 2


def test_an_empty_data_set_has_no_batches() -> None:
    assert BatchOrder(0, batch_size=2, drop_last=False).batches(epoch=0) == []
    grouped = BatchOrder(0, batch_size=2, drop_last=False, groups=np.zeros(0, dtype=np.int64))
    assert grouped.batches(epoch=0) == []


def test_the_order_is_a_shuffle_that_depends_on_seed_and_epoch_alone() -> None:
    first = epoch_order(50, seed=1, epoch=2)
    assert sorted(first) == list(range(50))
    assert first.tolist() != list(range(50))
    assert first.tolist() == epoch_order(50, seed=1, epoch=2).tolist()
    assert first.tolist() != epoch_order(50, seed=1, epoch=3).tolist()
    assert first.tolist() != epoch_order(50, seed=2, epoch=2).tolist()
    assert first.tolist() != epoch_order(50, seed=2, epoch=1).tolist()


def test_the_order_does_not_leave_global_randomness_changed() -> None:
    before = np.random.get_state()[1].tolist()
    epoch_order(50, seed=1, epoch=2)
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_order_does_not_share_random_numbers_with_a_sample(index: int) -> None:
    # The seeds [3, 4] and [3, 4, 0] are one and the same to numpy.
    # `uniforms` seeds a sample in this way.
    of_sample = np.random.default_rng([3, 4, index]).permutation(20)
    assert epoch_order(20, seed=3, epoch=4).tolist() != of_sample.tolist()


def test_every_place_is_equally_likely() -> None:
    places = np.array([epoch_order(4, seed=0, epoch=epoch)[0] for epoch in range(400)])
    assert np.bincount(places).min() > 70


def test_an_epoch_can_begin_at_any_batch() -> None:
    order = BatchOrder(20, batch_size=3, seed=5, drop_last=False)
    whole = as_lists(order.batches(epoch=1))
    for start in range(len(order) + 1):
        assert as_lists(order.batches(epoch=1, start=start)) == whole[start:]


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("length", [16, 17, 19, 23])
def test_the_processes_share_every_batch(world_size: int, length: int) -> None:
    groups = aspect_groups(np.array([(1, 2), (2, 1), (3, 4)] * 8)[:length])
    for chosen in (None, groups):
        alone = BatchOrder(length, 8, seed=1, drop_last=False, groups=chosen)
        orders = [
            BatchOrder(length, 8, 1, True, False, rank=rank, world_size=world_size, groups=chosen)
            for rank in range(world_size)
        ]
        assert {len(order) for order in orders} == {len(alone)}
        parts = zip(*(order.batches(epoch=2) for order in orders), strict=True)
        joined = [np.concatenate(part) for part in parts]
        assert as_lists(joined) == as_lists(alone.batches(epoch=2))


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [0, 5, 16, 17, 23])
@pytest.mark.parametrize("drop_last", [True, False])
def test_whole_batches_are_dealt_in_turn(world_size: int, length: int, drop_last: bool) -> None:
    alone = BatchOrder(length, 4, 1, True, drop_last)
    orders = [
        BatchOrder(length, 4, 1, True, drop_last, rank, world_size, is_dealt=True)
        for rank in range(world_size)
    ]
    hands = [order.batches(epoch=2) for order in orders]
    assert [len(hand) for hand in hands] == [len(order) for order in orders]
    assert len(set(map(len, orders))) == 1  # as many rounds for each
    dealt = [batch for turn in zip(*hands, strict=True) for batch in turn]
    assert as_lists(dealt[: len(alone)]) == as_lists(alone.batches(epoch=2))
    assert all(len(batch) == 0 for batch in dealt[len(alone) :])
    assert len(dealt) - len(alone) < world_size
    assert [as_lists(order.batches(2, start=1)) for order in orders] == [
        as_lists(hand[1:]) for hand in hands
    ]


def test_whole_batches_are_shared_evenly_and_in_order() -> None:
    assert [part_of(np.arange(8), rank, 2).tolist() for rank in range(2)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]


def test_a_small_last_batch_leaves_some_processes_without_images() -> None:
    parts = [part_of(np.arange(2), rank, 4) for rank in range(4)]
    assert as_lists(parts) == [[0], [1], [], []]


def test_upright_images_and_the_others_are_two_groups() -> None:
    sizes = np.array([[20, 10], [11, 10], [10, 10], [10, 11], [10, 500]])
    assert aspect_groups(sizes).tolist() == [0, 0, 1, 1, 1]


def test_more_groups_divide_the_ratios() -> None:
    # log2 of width / height: -1.3, -0.6, -0.2, 0, 0.4, 0.6, 3; edges at -0.5, 0 and 0.5
    ratios = 2 ** np.array([-1.3, -0.6, -0.2, 0, 0.4, 0.6, 3])
    sizes = np.stack([np.full(7, 1000), ratios * 1000], axis=1)
    assert aspect_groups(sizes, 4).tolist() == [0, 0, 1, 2, 2, 3, 3]
    assert aspect_groups(sizes, 1).tolist() == [0] * 7


def test_groups_stay_together_and_their_rests_are_merged() -> None:
    groups = np.array([0, 1, 0, 1, 0, 1, 1])
    order = grouped_order(groups, 2, seed=0, epoch=0, shuffle=False)
    assert order.tolist() == [0, 2, 1, 3, 5, 6, 4]


@given(
    groups=st.lists(st.integers(0, 3), max_size=60),
    batch_size=st.integers(1, 7),
    seed=st.integers(0, 3),
    shuffle=st.booleans(),
)
def test_grouping_uses_every_image_once_and_mixes_as_little_as_possible(
    groups: list[int], batch_size: int, seed: int, shuffle: bool
) -> None:
    of_image = np.array(groups, dtype=np.int64)
    order = grouped_order(of_image, batch_size, seed, 0, shuffle)
    assert sorted(order.tolist()) == list(range(len(groups)))
    assert order.tolist() == grouped_order(of_image, batch_size, seed, 0, shuffle).tolist()
    pure = mixed = 0
    for start in range(0, len(order) // batch_size * batch_size, batch_size):
        batch = of_image[order[start : start + batch_size]]
        pure += len(set(batch.tolist())) == 1
        mixed += len(set(batch.tolist())) > 1
    assert pure >= sum(int(count) // batch_size for count in np.bincount(of_image))
    assert mixed <= sum(int(count) % batch_size for count in np.bincount(of_image)) // batch_size


def test_grouped_batches_are_shuffled_within_and_among_each_other() -> None:
    groups = np.repeat([0, 1], 40)
    order = grouped_order(groups, 4, seed=0, epoch=0)
    kinds = groups[order.reshape(-1, 4)[:, 0]].tolist()
    assert kinds not in (sorted(kinds), sorted(kinds, reverse=True))
    assert (np.diff(order.reshape(-1, 4), axis=1) < 0).any()
    assert order.tolist() != grouped_order(groups, 4, seed=0, epoch=1).tolist()
    assert order.tolist() != grouped_order(groups, 4, seed=1, epoch=0).tolist()


def test_with_grouping_the_small_batch_stays_last() -> None:
    groups = np.array([0, 1] * 5)
    for epoch in range(20):
        order = BatchOrder(10, 4, 0, drop_last=False, groups=groups)
        assert [len(batch) for batch in order.batches(epoch)] == [4, 4, 2]
