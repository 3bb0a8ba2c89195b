"""Where shapes lie, what of them is to be seen, and that their boxes are tight."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from rankdet.data.synthetic import painting, scenes
from rankdet.data.synthetic.scenes import Stream

SIZE = 160


@pytest.fixture(scope="module")
def many():
    return [scenes.arrange([7, 0, index], SIZE) for index in range(400)]


def full_mask(item, size=SIZE):
    """(size, size) bool: the pixels of an item, and none beyond the image's edge."""
    mask = np.zeros((size, size), dtype=bool)
    for row, column in np.argwhere(item.mask):
        mask[item.top + row, item.left + column] = True
    return mask


def objects(scene):
    return [item for item in scene.items if item.label is not None]


def test_a_stream_depends_on_its_key_alone():
    first, again, other = Stream([1, 2]), Stream([1, 2]), Stream([1, 3])
    values = [first.uniform() for _ in range(5)]
    assert values == [again.uniform() for _ in range(5)]
    assert values != [other.uniform() for _ in range(5)]


def test_a_stream_is_the_one_of_numpy_s_bit_generator():
    raw = np.random.PCG64(np.random.SeedSequence([1, 2])).random_raw(3).tolist()
    stream = Stream([1, 2])
    assert [stream.uniform() for _ in raw] == [(value >> 11) / 2**53 for value in raw]
    assert Stream([1, 2]).bytes(3).tolist() == [raw[0] >> (8 * i) & 255 for i in range(3)]
    assert Stream([1, 2]).bytes(2, 2, 3).shape == (2, 2, 3)


def test_draws_of_a_stream_stay_in_their_range_and_reach_all_of_it():
    stream = Stream([5])
    numbers = [stream.uniform(-2, 3) for _ in range(2000)]
    assert -2 <= min(numbers) < -1.9
    assert 2.9 < max(numbers) < 3
    assert {stream.below(4) for _ in range(200)} == {0, 1, 2, 3}
    assert {stream.choice("abc") for _ in range(200)} == {"a", "b", "c"}
    assert 0.2 < sum(stream.chance(0.3) for _ in range(1000)) / 1000 < 0.4


def test_boxes_are_tight_around_the_mask_within_the_image(many):
    num_cut = 0
    for scene in many[:80]:
        for item, box in zip(objects(scene), scene.boxes.tolist(), strict=True):
            rows, columns = np.nonzero(full_mask(item))
            assert box == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            num_cut += item.num_pixels > len(rows)
    assert num_cut > 10


def test_the_visible_share_is_that_of_the_pixels_on_top(many):
    for scene in many[:80]:
        top = np.full((SIZE, SIZE), -1)
        for i, item in enumerate(scene.items):
            top[full_mask(item)] = i
        expected = [
            np.count_nonzero(top == i) / item.num_pixels
            for i, item in enumerate(scene.items)
            if item.label is not None
        ]
        assert scene.visible.tolist() == pytest.approx(expected)


def test_the_whole_shape_is_counted_beyond_the_edge_too():
    for index in range(200):
        for item in objects(scenes.arrange([3, 0, index], SIZE)):
            if scenes.CLASSES[item.label] == "disc" and not item.mask[0].any():
                # pi times the half-axes; the shorter one is at least 0.78 of the longer.
                left, top, right, bottom = item.box()
                if min(left, top) > 0 and max(right, bottom) < SIZE:
                    area = np.pi / 4 * (right - left) * (bottom - top)
                    assert 0.85 * area < item.num_pixels < 1.1 * area
                    assert item.num_pixels == np.count_nonzero(item.mask)


def test_enough_of_every_object_is_to_be_seen(many):
    visible = np.concatenate([scene.visible for scene in many])
    assert visible.min() >= scenes.SMALLEST_VISIBLE
    assert visible.max() == 1
    # Occlusion and the image's edge matter for many objects.
    assert 0.2 < (visible < 0.9).mean() < 0.5


def test_objects_are_ignored_exactly_if_hidden_or_tiny(many):
    for scene in many:
        sides = (scene.boxes[:, 2:] - scene.boxes[:, :2]).min(axis=1, initial=SIZE)
        expected = (scene.visible < 0.4) | (sides < 10)
        assert scene.is_ignored.tolist() == expected.tolist()
    share = np.concatenate([scene.is_ignored for scene in many]).mean()
    assert 0.01 < share < 0.07


def test_images_have_0_to_8_objects(many):
    counts = Counter(len(scene.labels) for scene in many)
    assert set(counts) == set(range(9))
    assert 0.03 < counts[0] / len(many) < 0.12


def test_classes_are_balanced(many):
    counts = np.bincount(np.concatenate([scene.labels for scene in many]), minlength=6)
    assert counts.min() > 0.75 * counts.mean()
    assert counts.max() < 1.25 * counts.mean()


def test_sizes_reach_from_an_eighth_to_over_half_of_the_image(many):
    boxes = np.concatenate([scene.boxes for scene in many])
    longer = (boxes[:, 2:] - boxes[:, :2]).max(axis=1)
    assert longer.max() <= 0.6 * SIZE + 1
    assert longer.max() > 0.55 * SIZE
    assert 0.1 < (longer < 28).mean() < 0.3
    assert boxes.min() == 0
    assert boxes.max() == SIZE


def test_there_are_shapes_of_no_class_below_and_above_objects(many):
    kinds = [[item.label is None for item in scene.items] for scene in many]
    assert any(kind and kind[0] and not all(kind) for kind in kinds)
    assert any(kind and kind[-1] and not all(kind) for kind in kinds)


def test_texture_and_colour_do_not_tell_the_class(many):
    items = [item for scene in many for item in objects(scene)]
    table = np.zeros((6, len(scenes.PATTERNS)))
    red = [[] for _ in range(6)]
    for item in items:
        table[item.label, scenes.PATTERNS.index(item.style.pattern)] += 1
        red[item.label].append(item.style.colour[0])
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    chi_square = ((table - expected) ** 2 / expected).sum()
    assert chi_square < 53  # 25 degrees of freedom: 1 in 1000
    assert np.ptp([np.mean(values) for values in red]) < 40


def test_an_image_without_objects_is_a_scene_like_others(many):
    scene = next(scene for scene in many if not len(scene.labels))
    assert scene.boxes.shape == (0, 4)
    assert scene.is_ignored.shape == (0,)


def test_the_painted_shape_fills_its_box():
    num_tried = 0
    for index in range(12):
        key = [11, 0, index]
        scene = scenes.arrange(key, SIZE)
        for item in objects(scene)[:2]:
            style = dataclasses.replace(
                item.style, pattern="plain", opacity=1.0, shade=0.0, outline=0.0, shadow=0.0
            )
            alone = dataclasses.replace(scene, items=(dataclasses.replace(item, style=style),))
            empty = dataclasses.replace(scene, items=())
            with_item = painting.render(alone, key).astype(int)
            difference = np.abs(with_item - painting.render(empty, key)).sum(axis=0)
            rows, columns = np.nonzero(difference > 0.5 * np.median(difference[full_mask(item)]))
            found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert np.abs(np.subtract(found, item.box())).max() <= 2
            num_tried += 1
    assert num_tried > 8


def test_a_shadow_darkens_what_lies_below():
    scene = scenes.arrange([0, 0, 1], SIZE)
    item = scene.items[0]

    def mean(shadow):
        style = dataclasses.replace(item.style, shadow=shadow)
        changed = dataclasses.replace(scene, items=(dataclasses.replace(item, style=style),))
        return painting.render(changed, [0, 0, 1]).mean()

    assert mean(0.4) < mean(0.0)


def test_every_part_of_the_style_changes_the_picture():
    scene = scenes.arrange([0, 0, 1], SIZE)
    item = scene.items[0]
    plain = dataclasses.replace(
        item.style,
        pattern="stripes",
        colour=(200.0, 80.0, 60.0),
        second=(60.0, 80.0, 200.0),
        angle=0.3,
        period=6.0,
        opacity=0.9,
        shade=0.0,
        outline=0.0,
        shadow=0.0,
    )
    changes = {
        "pattern": "dots",
        "colour": (90.0, 80.0, 60.0),
        "second": (60.0, 200.0, 200.0),
        "angle": 1.0,
        "period": 9.0,
        "opacity": 1.0,
        "shade": 0.3,
        "outline": 0.5,
        "shadow": 0.3,
    }

    def picture(style):
        changed = dataclasses.replace(scene, items=(dataclasses.replace(item, style=style),))
        return painting.render(changed, [0, 0, 1])

    first = picture(plain)
    for name, value in changes.items():
        assert (picture(dataclasses.replace(plain, **{name: value})) != first).any(), name


def test_objects_often_cover_each_other(many):
    covered = [
        1 - visible * item.num_pixels / np.count_nonzero(item.mask) > 0.1
        for scene in many
        for item, visible in zip(objects(scene), scene.visible.tolist(), strict=True)
    ]
    assert 0.15 < np.mean(covered) < 0.35


def test_a_shape_s_colour_stands_out_from_the_background(many):
    for scene in many:
        for item in scene.items:
            for ground in scene.ground:
                # 100 in all before each channel is varied by up to 14
                assert np.abs(np.subtract(item.style.colour, ground)).sum() >= 100 - 3 * 14


def photographs(canvas, count=60):
    """The same canvas under many lights, (count, 3, size, size)."""
    return np.stack([painting._photograph(Stream([i]), canvas) for i in range(count)])


def test_light_and_noise_vary():
    flat = photographs(np.full((3, 64, 64), 128, dtype=np.float32)).astype(float)
    quarters = flat.reshape(60, 3, 2, 32, 2, 32).mean((1, 3, 5)).reshape(60, 4)
    slopes = np.ptp(quarters, axis=1)
    assert slopes.min() < 8
    assert slopes.max() > 20
    grain = np.abs(np.diff(flat, axis=3)).mean((1, 2, 3))
    assert grain.min() < 1
    assert grain.max() > 4


def test_brightness_and_contrast_vary_and_some_pictures_are_blurred():
    canvas = np.full((3, 64, 64), 88, dtype=np.float32)
    canvas[:, :, 32:] = 168
    columns = photographs(canvas).astype(float).mean((1, 2))
    step = columns[:, 34:44].mean(1) - columns[:, 20:30].mean(1)
    assert step.min() < 68
    assert step.max() > 88
    means = columns.mean(1)
    assert means.min() < 118
    assert means.max() > 138
    is_blurred = (columns[:, 32] - columns[:, 31]) / step < 0.75
    assert 0.1 < is_blurred.mean() < 0.4


def test_pictures_vary_in_light_contrast_and_noise(many):
    pictures = [painting.render(scene, [7, 0, index]) for index, scene in enumerate(many[:60])]
    means = [picture.mean() for picture in pictures]
    assert min(means) < 80
    assert max(means) > 180
    grain = [np.abs(np.diff(p.astype(int), axis=2)).mean() for p in pictures]
    assert max(grain) > 4 * min(grain)
