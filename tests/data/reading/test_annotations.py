"""The rules for boxes, the counts, and the arrays that annotations are packed into."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from rankdet.data.reading import images
from rankdet.data.reading.annotations import Annotations, RawImage, RawObject, assemble, judge_box
from rankdet.data.reading.findings import Findings, data_error

NAN, INFINITY = float("nan"), float("inf")
SIZE = (100, 50)


# ---- one box


@pytest.mark.parametrize(
    ("corners", "expected"),
    [
        ((0.0, 0.0, 100.0, 50.0), (None, (0.0, 0.0, 100.0, 50.0))),
        ((99.0, 49.0, 100.0, 50.0), (None, (99.0, 49.0, 100.0, 50.0))),
        ((10.0, 10.0, 10.5, 10.5), (None, (10.0, 10.0, 10.5, 10.5))),
        # over each edge, with at least half inside
        ((-10.0, 10.0, 10.0, 20.0), ("box-clipped", (0.0, 10.0, 10.0, 20.0))),
        ((10.0, -10.0, 20.0, 10.0), ("box-clipped", (10.0, 0.0, 20.0, 10.0))),
        ((90.0, 10.0, 110.0, 20.0), ("box-clipped", (90.0, 10.0, 100.0, 20.0))),
        ((10.0, 40.0, 20.0, 60.0), ("box-clipped", (10.0, 40.0, 20.0, 50.0))),
        # two hundredths of a pixel come from decimals
        ((0.0, 0.0, 100.019, 50.0), (None, (0.0, 0.0, 100.0, 50.0))),
        ((0.0, 0.0, 100.021, 50.0), ("box-clipped", (0.0, 0.0, 100.0, 50.0))),
        # less than half inside
        ((-10.1, 10.0, 10.0, 20.0), ("box-outside", None)),
        ((-10.0, -10.0, 10.0, 10.0), ("box-outside", None)),
        ((200.0, 10.0, 210.0, 20.0), ("box-outside", None)),
        ((100.0, 10.0, 110.0, 20.0), ("box-outside", None)),
        ((-1e308, -1e308, 1e308, 1e308), ("box-outside", None)),
        # corners
        ((20.0, 10.0, 10.0, 30.0), ("box-swapped", None)),
        ((10.0, 30.0, 20.0, 10.0), ("box-swapped", None)),
        ((10.0, 10.0, 10.0, 20.0), ("box-zero-area", None)),
        ((10.0, 20.0, 20.0, 20.0), ("box-zero-area", None)),
        ((10.0, 10.0, 10.0 + 1e-9, 20.0), ("box-zero-area", None)),
        ((0.0, 0.0, 1e-20, 1e-20), ("box-zero-area", None)),
        ((0.0, 0.0, 1e-300, 1e-300), ("box-zero-area", None)),
        # not numbers
        ((NAN, 0.0, 1.0, 1.0), ("box-not-finite", None)),
        ((0.0, NAN, 1.0, 1.0), ("box-not-finite", None)),
        ((0.0, 0.0, INFINITY, 1.0), ("box-not-finite", None)),
        ((0.0, -INFINITY, 1.0, INFINITY), ("box-not-finite", None)),
    ],
)
def test_a_box_is_judged(corners, expected):
    assert judge_box(corners, SIZE) == expected


sizes = st.tuples(st.integers(1, 10_000), st.integers(1, 10_000))
coordinates = st.one_of(st.floats(-200, 300), st.floats(), st.integers(-50, 150).map(float))
extents = st.one_of(st.floats(0, 200), st.floats(0, 1e-6), st.integers(1, 100).map(float))
likely_boxes = st.builds(
    lambda left, top, width, height: (left, top, left + width, top + height),
    st.floats(-20, 150),
    st.floats(-20, 150),
    extents,
    extents,
)
any_boxes = st.one_of(likely_boxes, st.tuples(*[coordinates] * 4))


@given(any_boxes, sizes)
@example((-5e-324, 0.0, 1.0, 1.0), (1, 1))
def test_a_kept_box_lies_in_the_image_and_has_an_area_as_it_is_stored(corners, size):
    code, box = judge_box(corners, size)
    if box is None:
        assert code in ("box-not-finite", "box-swapped", "box-zero-area", "box-outside")
        return
    assert code in (None, "box-clipped")
    left, top, right, bottom = np.array(box, dtype=np.float32)
    assert 0 <= left < right <= size[0]
    assert 0 <= top < bottom <= size[1]
    assert (right - left) * (bottom - top) > 0
    inside = (box[2] - box[0]) * (box[3] - box[1])
    assert inside >= 0.5 * (corners[2] - corners[0]) * (corners[3] - corners[1])
    if code is None:
        assert np.abs(np.subtract(box, corners)).max() <= 0.02


@given(likely_boxes, sizes)
def test_judging_a_kept_box_again_changes_nothing(corners, size):
    _, box = judge_box(corners, size)
    if box is not None:
        assert judge_box(box, size) == (None, box)


@given(likely_boxes, sizes, st.integers(0, 500))
def test_a_larger_image_never_loses_a_box(corners, size, more):
    if judge_box(corners, size)[1] is not None:
        assert judge_box(corners, (size[0] + more, size[1] + more))[1] is not None


# ---- a whole split


def header_from_name(path: Path, max_pixels: int) -> images.Header:
    """A header without a file: the name is `width x height`, or a code of the error to raise."""
    if "x" not in path.stem:
        raise data_error(path.stem, file=path)
    width, height = map(int, path.stem.split("x"))
    return images.Header(width, height, "JPEG", "RGB", 1, is_animated=False)


@pytest.fixture
def fake_header(monkeypatch):
    monkeypatch.setattr(images, "read_header", header_from_name)


def raw_image(name: str, *corners: tuple[float, float, float, float], **options) -> RawImage:
    objects = [
        RawObject(box, label, is_ignored=label % 2 == 1, where=f"object[{label}]")
        for label, box in enumerate(corners)
    ]
    return RawImage(Path(name), "list.txt", image_id=7, objects=objects, **options)


GOOD, CLIPPED, OUTSIDE = (1.0, 2.0, 11.0, 22.0), (-1.0, 0.0, 9.0, 10.0), (-90.0, 0.0, 5.0, 5.0)


@pytest.mark.usefixtures("fake_header")
def test_images_are_packed_in_order_with_their_boxes_and_counts():
    findings = Findings()
    seen = []
    result = assemble(
        [
            raw_image("100x50.jpg", GOOD, CLIPPED, OUTSIDE),
            raw_image("image-empty.jpg", GOOD, GOOD),
            raw_image("60x80.jpg"),
            raw_image("30x30.jpg", GOOD),
        ],
        findings,
        on_image=lambda: seen.append(1),
    )
    assert [str(result.path(i)) for i in range(3)] == ["100x50.jpg", "60x80.jpg", "30x30.jpg"]
    assert result.sizes.tolist() == [[100, 50], [60, 80], [30, 30]]
    assert result.offsets.tolist() == [0, 2, 2, 3]
    assert result.boxes.tolist() == [list(GOOD), [0, 0, 9, 10], list(GOOD)]
    assert result.labels.tolist() == [0, 1, 0]
    assert result.is_ignored.tolist() == [False, True, False]
    assert result.areas.tolist() == [200, 90, 200]
    assert result.rows(1) == slice(2, 2)
    assert len(seen) == 4
    assert findings.counts == {
        "box-clipped": 1,
        "box-outside": 1,
        "image-empty": 1,
        "no-objects": 1,
    }
    assert findings.images.as_dict() == {"seen": 4, "used": 3, "dropped": {"image-empty": 1}}
    assert findings.objects.as_dict() == {
        "seen": 6,
        "used": 3,
        "dropped": {"box-outside": 1, "image-empty": 2},
    }
    assert (findings.num_clipped, findings.num_ignored) == (1, 1)
    finding = findings.examples["box-outside"][0]
    assert (finding.file, finding.where, finding.field) == ("list.txt", "object[2]", "box")
    assert finding.value == "(-90.0, 0.0, 5.0, 5.0)"


@pytest.mark.usefixtures("fake_header")
def test_types_are_the_same_with_and_without_content():
    for raw in ([], [raw_image("9x9.jpg")], [raw_image("100x50.jpg", GOOD)]):
        result = assemble(raw, Findings())
        assert result.paths.dtype.kind == "S"
        assert result.image_ids.dtype == np.int64
        assert result.sizes.dtype == np.int32
        assert result.sizes.shape == (len(raw), 2)
        assert result.offsets.dtype == np.int64
        assert len(result.offsets) == len(raw) + 1
        assert result.boxes.dtype == np.float32
        assert result.boxes.shape[1] == 4
        assert result.labels.dtype == np.int64
        assert result.is_ignored.dtype == np.bool_
        assert result.areas.dtype == np.float32
        result.boxes[:] = 0  # the arrays are our own


@pytest.mark.usefixtures("fake_header")
def test_fractions_are_of_the_real_size():
    raw = raw_image("200x50.jpg", (0.1, 0.2, 0.5, 0.6), is_fraction=True)
    assert assemble([raw], Findings()).boxes.tolist() == [[20, 10, 100, 30]]


@pytest.mark.usefixtures("fake_header")
def test_an_area_that_the_file_gives_is_kept():
    raw = raw_image("100x50.jpg", GOOD, GOOD)
    raw.objects[0].area = 17.5
    assert assemble([raw], Findings()).areas.tolist() == [17.5, 200]


@pytest.mark.usefixtures("fake_header")
def test_an_image_of_another_size_than_declared_is_skipped_and_both_sizes_are_named():
    findings = Findings()
    raw = raw_image("100x50.jpg", GOOD, declared_size=(50, 100), where=3)
    assert len(assemble([raw], findings)) == 0
    (finding,) = findings.examples["image-size-differs"]
    assert (finding.file, finding.where, finding.value) == ("list.txt", 3, "(50, 100)")
    assert "100 x 50" in finding.detail
    assert "EXIF" not in finding.detail
    assert findings.objects.dropped == {"image-size-differs": 1}
    same = raw_image("100x50.jpg", GOOD, declared_size=(100, 50))
    assert len(assemble([same], Findings())) == 1


def test_a_size_that_differs_by_the_exif_rotation_is_explained(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (64, 48)).save(tmp_path / "a.jpg", exif=exif)
    raw = RawImage(tmp_path / "a.jpg", "a.xml", 1, declared_size=(64, 48))
    findings = Findings()
    assemble([raw], findings)
    (finding,) = findings.examples["image-size-differs"]
    assert "48 x 64" in finding.detail
    assert "EXIF orientation 6" in finding.detail


@pytest.mark.usefixtures("fake_header")
def test_an_image_that_loses_all_its_boxes_is_kept_and_noted():
    findings = Findings()
    assert len(assemble([raw_image("100x50.jpg", OUTSIDE)], findings)) == 1
    assert findings.counts == {"box-outside": 1, "all-objects-dropped": 1}


@pytest.mark.usefixtures("fake_header")
def test_what_a_reader_has_dropped_is_not_taken_for_nothing():
    findings = Findings()
    assemble([replace(raw_image("100x50.jpg"), num_dropped=2)], findings)
    assert findings.counts == {"all-objects-dropped": 1}
    findings = Findings()
    assemble([raw_image("100x50.jpg")], findings)
    assert findings.counts == {"no-objects": 1}


@pytest.mark.usefixtures("fake_header")
def test_a_message_rounds_the_edges_of_a_box():
    findings = Findings()
    box = (10.0, 20.0, 240.01000000000002, 30.1)
    assemble([raw_image("100x50.jpg", box)], findings)
    assert findings.examples["box-outside"][0].value == "(10.0, 20.0, 240.01, 30.1)"


@pytest.mark.usefixtures("fake_header")
@pytest.mark.parametrize(("count", "is_noted"), [(1000, False), (1001, True)])
def test_over_1000_boxes_are_noted(count, is_noted):
    findings = Findings()
    assert len(assemble([raw_image("100x50.jpg", *[GOOD] * count)], findings).boxes) == count
    assert findings.counts["box-count"] == is_noted


def test_notes_on_images_and_the_limit_of_pixels_arrive(tmp_path):
    Image.new("RGBA", (20, 10)).save(tmp_path / "a.jpg", "PNG")
    raw = [RawImage(tmp_path / "a.jpg", "a.xml", 1)]
    findings = Findings()
    assert len(assemble(raw, findings)) == 1
    assert findings.counts == {"image-extension": 1, "image-converted": 1, "no-objects": 1}
    findings = Findings()
    assert len(assemble(raw, findings, max_pixels=199)) == 0
    assert findings.counts == {"image-too-large": 1}


mixed_images = st.lists(
    st.tuples(
        st.sampled_from(["100x50.jpg", "3x3.jpg", "image-empty.jpg", "image-truncated.jpg"]),
        st.lists(st.sampled_from([GOOD, CLIPPED, OUTSIDE, (5.0, 5.0, 5.0, 6.0)]), max_size=6),
        st.sampled_from([None, (100, 50)]),
    ),
    max_size=8,
)


@given(mixed_images)
def test_counts_reconcile_whatever_comes(mixed):
    findings = Findings()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "read_header", header_from_name)
        raw = [raw_image(name, *boxes, declared_size=size) for name, boxes, size in mixed]
        result = assemble(iter(raw), findings)
    assert findings.images.reconciles()
    assert findings.objects.reconciles()
    assert findings.images.seen == len(mixed)
    assert findings.objects.seen == sum(len(boxes) for _, boxes, _ in mixed)
    assert findings.images.used == len(result)
    assert findings.objects.used == len(result.boxes) == result.offsets[-1]
    assert findings.num_ignored == result.is_ignored.sum()
    assert findings.num_clipped == findings.counts["box-clipped"]


# ---- arrays


@pytest.mark.usefixtures("fake_header")
@pytest.mark.parametrize(
    "name",
    [
        b"1x1.jpg",
        b"1x1.jp\xff\xfe",
        b"1x1. ",
        "1x1.日本".encode(),
        b"1x1.a\nb",
        b"d/e f/1x1.j",
        b"/1x1",
    ],
)
def test_paths_survive_the_packing(name):
    path = Path(os.fsdecode(name))
    short = RawImage(Path("1x1"), "", 0)
    result = assemble([RawImage(path, "", 0), short], Findings())
    assert result.path(0) == path
    assert result.path(1) == Path("1x1")


def packed(lengths: list[int], first_id: int = 0) -> Annotations:
    total = sum(lengths)
    values = np.arange(total) + 100 * first_id
    return Annotations(
        paths=np.array([b"%d" % (first_id + i) for i in range(len(lengths))], dtype=np.bytes_),
        image_ids=np.arange(len(lengths)) + first_id,
        sizes=(np.arange(2 * len(lengths), dtype=np.int32) + first_id).reshape(-1, 2),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        boxes=np.repeat(values[:, None], 4, axis=1).astype(np.float32),
        labels=values.astype(np.int64),
        is_ignored=values % 2 == 1,
        areas=values.astype(np.float32),
    )


def as_list(annotations: Annotations) -> list[tuple]:
    """Everything about each image, one by one."""
    return [
        (
            annotations.path(i),
            int(annotations.image_ids[i]),
            annotations.sizes[i].tolist(),
            *(
                getattr(annotations, name)[annotations.rows(i)].tolist()
                for name in ("boxes", "labels", "is_ignored", "areas")
            ),
        )
        for i in range(len(annotations))
    ]


lengths_lists = st.lists(st.integers(0, 5), max_size=8)


@given(lengths_lists, st.data())
def test_taking_images_takes_their_objects(lengths, data):
    whole = packed(lengths)
    indices = data.draw(
        st.lists(st.integers(-len(lengths), len(lengths) - 1), max_size=10)
        if lengths
        else st.just([])
    )
    taken = whole.take(np.array(indices, dtype=np.int64))
    everything = as_list(whole)
    assert as_list(taken) == [everything[i] for i in indices]
    assert taken.offsets.dtype == np.int64
    mask = np.array([i in indices for i in range(len(lengths))], dtype=bool)
    assert as_list(whole.take(mask)) == [everything[i] for i in sorted(set(indices)) if i >= 0]


@given(st.lists(lengths_lists, min_size=1, max_size=4))
def test_concatenating_and_taking_apart_gives_the_parts_back(many):
    parts = [packed(lengths, 10 * number) for number, lengths in enumerate(many)]
    joined = Annotations.concatenate(parts)
    assert as_list(joined) == [image for part in parts for image in as_list(part)]
    start = 0
    for part in parts:
        again = joined.take(np.arange(start, start + len(part)))
        assert as_list(again) == as_list(part)
        start += len(part)


def test_ids_are_numbered_anew_only_if_two_images_share_one():
    assert Annotations.concatenate([packed([1], 5), packed([1], 6)]).image_ids.tolist() == [5, 6]
    assert Annotations.concatenate([packed([1], 5), packed([2], 5)]).image_ids.tolist() == [0, 1]


def test_paths_of_different_length_can_be_joined():
    one, other = packed([1], 1), packed([1], 1_000_000)
    assert Annotations.concatenate([one, other]).paths.tolist() == [b"1", b"1000000"]


def test_annotations_pickle_as_arrays():
    copy = pickle.loads(pickle.dumps(packed([2, 0, 3])))
    assert as_list(copy) == as_list(packed([2, 0, 3]))
