"""Shapes, patterns and paint, by hand."""

import math
from typing import get_args

import numpy as np
import pytest

from rankdet.data.synthetic import drawing
from rankdet.data.synthetic.drawing import Pattern, Shape

SHAPES = get_args(Shape)
GRID = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)


def polar(radius, degrees):
    return radius * math.cos(math.radians(degrees)), radius * math.sin(math.radians(degrees))


def distance(shape, point, form):
    u, v = np.array([point[0]]), np.array([point[1]])
    return drawing.shape_distance(shape, u, v, form).item()


@pytest.mark.parametrize(
    ("shape", "inside", "outside"),
    [
        ("disc", [(0, 0), (0.99, 0), polar(0.99, 40)], [(1.01, 0), polar(1.01, 200)]),
        ("ring", [(0.8, 0), polar(0.98, 70)], [(0, 0), (0.39, 0), (0, -1.01)]),
        ("crescent", [(-0.9, 0), (-0.4, 0)], [(0.5, 0), (-0.2, 0), (0.9, 0), (-1.01, 0)]),
        ("triangle", [(0.97, 0), (-0.48, 0), polar(0.97, 120)], [(-0.52, 0), polar(0.6, 60)]),
        ("square", [(0.7, 0.7), (-0.7, 0.7)], [(0.72, 0), (0, 0.72)]),
        ("pentagon", [(0.97, 0), polar(0.97, 72), polar(0.8, 36)], [polar(0.82, 36), (-0.82, 0)]),
        ("star", [polar(0.7, 36), polar(0.7, 108), (0.37, 0)], [(0.6, 0), polar(1.01, 36)]),
        ("cross", [(0.9, 0), (0, -0.9), (0.2, 0.2)], [(0.5, 0.5), (0.95, 0), (0.9, 0.4)]),
        ("bar", [(0.9, 0), (-0.9, 0.1)], [(0, 0.3), (0.97, 0)]),
        ("half disc", [(-0.9, 0), (-0.05, 0.9)], [(0.05, 0), (-1.01, 0)]),
        ("lens", [(0, 0.9), (0.4, 0)], [(0.7, 0), (0, 1.01)]),
        ("arc", [(-0.8, 0), (-0.05, 0.9)], [(0, 0), (0.5, 0.8), (-0.5, 0)]),
    ],
)
@pytest.mark.parametrize("form", [0.0, 1.0])
def test_a_shape_has_the_points_it_should_have(shape, inside, outside, form):
    for point in inside:
        assert distance(shape, point, form) < 0, point
    for point in outside:
        assert distance(shape, point, form) > 0, point


@pytest.mark.parametrize(("form", "notch"), [(0.0, 0.382), (1.0, 0.553)])
def test_a_star_has_five_tips_on_the_unit_circle_and_notches_between(form, notch):
    for i in range(5):
        assert distance("star", polar(0.99, 36 + 72 * i), form) < 0
        assert distance("star", polar(notch - 0.001, 72 * i), form) < 0
        assert distance("star", polar(notch + 0.001, 72 * i), form) > 0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", [0.0, 0.5, 1.0])
def test_a_shape_fits_into_the_unit_circle_and_nearly_reaches_it(shape, form):
    steps = np.linspace(-1.5, 1.5, 301)
    u, v = np.meshgrid(steps, steps)
    values = drawing.shape_distance(shape, u, v, form)
    reach = np.sqrt(u * u + v * v)[values <= 0].max()
    assert 0.93 < reach < 1 + 1e-5
    # Distances never grow faster than the way: edges are at least a pixel soft.
    for axis in (0, 1):
        assert np.abs(np.diff(values, axis=axis)).max() <= 0.01 * (1 + 1e-5)


def test_the_form_varies_a_shape():
    steps = np.linspace(-1, 1, 101)
    u, v = np.meshgrid(steps, steps)
    for shape in ("ring", "crescent", "star", "cross", "bar", "lens", "arc"):
        first = drawing.shape_distance(shape, u, v, 0.0) <= 0
        last = drawing.shape_distance(shape, u, v, 1.0) <= 0
        assert np.count_nonzero(first != last) > 50, shape


def test_directions_are_near_and_on_a_grid():
    for angle in np.linspace(0, 7, 50).tolist():
        cosine, sine = drawing.direction(angle)
        assert (cosine, sine) == pytest.approx((math.cos(angle), math.sin(angle)), abs=1e-6)
        assert (cosine * 2**20).is_integer()
        assert (sine * 2**20).is_integer()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        # at (0, 0), (4, 0), (0, 4), (4, 4), (2, 0) with a period of 8
        ("plain", [0, 0, 0, 0, 0]),
        ("stripes", [1, 0, 1, 0, 0.5]),
        ("checks", [1, 0, 0, 1, 0.5]),
        ("dots", [0, 0, 0, 1, 0]),
        ("gradient", [0.5, 0.625, 0.5, 0.625, 0.5625]),
    ],
)
def test_patterns_by_hand(pattern, expected):
    x, y = np.array([[0.0, 4.0, 2.0]]), np.array([[0.0], [4.0]])
    weight = drawing.pattern_weight(pattern, x, y, 0.0, 8.0, GRID)
    found = [weight[0, 0], weight[0, 1], weight[1, 0], weight[1, 1], weight[0, 2]]
    assert found == pytest.approx(expected)


def test_stripes_turn_with_the_angle():
    x, y = np.array([[0.0, 4.0]]), np.array([[0.0], [4.0]])
    weight = drawing.pattern_weight("stripes", x, y, math.pi / 2, 8.0, GRID)
    assert weight == pytest.approx(np.array([[1, 1], [0, 0]]), abs=1e-5)


def test_noise_has_the_values_of_its_grid_and_repeats_it():
    steps = np.arange(8, dtype=np.float32) * 5
    weight = drawing.pattern_weight("noise", steps[None, :], steps[:, None], 1.0, 5.0, GRID)
    np.testing.assert_array_equal(weight, np.tile(GRID, (2, 2)))
    middle = drawing.pattern_weight("noise", np.array([[2.5]]), np.array([[0.0]]), 1.0, 5.0, GRID)
    assert middle.item() == pytest.approx((GRID[0, 0] + GRID[0, 1]) / 2)
    between = drawing.pattern_weight("noise", np.array([[0.0]]), np.array([[7.5]]), 1.0, 5.0, GRID)
    assert between.item() == pytest.approx((GRID[1, 0] + GRID[2, 0]) / 2)


@pytest.mark.parametrize("pattern", get_args(Pattern))
def test_weights_are_shares(pattern):
    steps = np.arange(-30, 30, dtype=np.float32)
    weight = drawing.pattern_weight(pattern, steps[None, :], steps[:, None], 0.7, 6.3, GRID)
    assert weight.shape == (60, 60)
    assert weight.dtype == np.float32
    assert weight.min() >= 0
    assert weight.max() <= 1
    assert weight.max() > weight.min() or pattern == "plain"


def test_coverage_is_a_half_on_the_edge():
    distances = np.array([-2.0, -0.5, 0.0, 0.25, 0.5, 2.0])
    assert drawing.coverage(distances).tolist() == [1, 1, 0.5, 0.25, 0, 0]
    assert drawing.coverage(distances, 4).tolist() == [1, 0.625, 0.5, 0.4375, 0.375, 0]


def test_mixing_and_painting():
    mixed = drawing.mix((0, 100, 200), (100, 100, 0), np.array([[0.0, 0.25, 1.0]]))
    assert mixed[:, 0].tolist() == [[0, 25, 100], [100, 100, 100], [200, 150, 0]]
    canvas = np.full((3, 1, 2), 100.0)
    drawing.paint(canvas, np.full((3, 1, 2), 200.0), np.array([[0.0, 0.25]]))
    assert canvas[0, 0].tolist() == [100, 125]


def test_blur_spreads_a_point_and_keeps_the_border():
    canvas = np.zeros((3, 5, 5))
    canvas[:, 2, 2] = 16
    canvas[1, 0, 0] = 9
    soft = drawing.blur(canvas)
    assert soft[0, 1:4, 1:4].tolist() == [[1, 2, 1], [2, 4, 2], [1, 2, 1]]
    assert soft[1, 0, 0] == 9
    assert canvas[0, 2, 2] == 16
