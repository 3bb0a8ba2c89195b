"""Opening a split of the user's data: how far it is, and what is left out of it."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from rankdet import build
from rankdet.config import DataConfig
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.workflows import opening
from rankdet.workflows.opening import notes_on_left_out, open_with_progress


def test_a_split_is_opened_with_its_classes_and_its_progress_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[object] = []

    class Meter:
        def __init__(self, what: str) -> None:
            told.append(what)

        def __enter__(self) -> Meter:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def expect(self, num_images: int) -> None:
            told.append(num_images)

        def advance(self, num_images: int = 1) -> None:
            told.append("image")

    def open_split(*arguments: Any, on_start: Any, on_image: Any, **keywords: Any) -> object:
        on_start(2)
        on_image()
        told.append((arguments, keywords))
        return "the split"

    monkeypatch.setattr(opening, "progress", Meter)
    monkeypatch.setattr(build, "open_split", open_split)
    config = DataConfig(path="photos")
    assert open_with_progress(config, "val", ("cat",)) == "the split"
    call = ((config, "val"), {"classes": ("cat",)})
    assert told == ["Reading val", 2, "image", call]


@pytest.mark.parametrize(
    ("num_images", "num_objects", "expected"),
    [
        (0, 0, []),
        (2, 0, ["val: 2 images and 0 objects cannot be used"]),
        (0, 1, ["val: 0 images and 1 object cannot be used"]),
        (1, 3000, ["val: 1 image and 3,000 objects cannot be used"]),
    ],
)
def test_what_is_left_out_is_counted(
    num_images: int, num_objects: int, expected: list[str]
) -> None:
    findings = SimpleNamespace(
        images=SimpleNamespace(dropped=Counter(broken=num_images)),
        objects=SimpleNamespace(dropped=Counter(outside=num_objects)),
    )
    dataset: Any = SimpleNamespace(findings=findings)
    notes = notes_on_left_out("val", dataset)
    assert [note.partition(" and are left out")[0] for note in notes] == expected
    assert all("`rankdet check` says why" in note for note in notes)


def test_nothing_is_left_out_of_the_embedded_data() -> None:
    assert notes_on_left_out("val", SyntheticDataset("val", 1)) == []
