from __future__ import annotations

import json

from rankdet.metrics.curves import Curve
from rankdet.metrics.evaluation import ClassResult, Evaluation, assemble, mean_of_known
from rankdet.metrics.matching import match

CAT = ClassResult(
    "cat", 4, 9, 30.26, 50.0, 25.04, 51.0, threshold=0.012345, precision=80.0, recall=99.96, f1=88.9
)
DOG = ClassResult("dog", 0, 1)


def test_the_table_has_a_row_for_each_class_and_the_mean() -> None:
    evaluation = Evaluation("voc", {"AP": 30.26, "AP50": None, "AP75": 25.04}, (CAT, DOG))
    heading, cat, dog, mean = evaluation.table()
    assert dict(zip(heading, cat, strict=True)) == {
        "class": "cat",
        "objects": "4",
        "detections": "9",
        "AP": "30.3",
        "AP50": "50.0",
        "AP75": "25.0",
        "threshold": "0.0123",
        "precision": "80.0",
        "recall": "100.0",
        "F1": "88.9",
    }
    assert dog == ("dog", "0", "1", *["n/a"] * 7)
    assert mean == ("mean", "4", "10", "30.3", "n/a", "25.0", "", "", "", "")


def test_the_dictionary_has_everything_unrounded() -> None:
    curve = Curve((0.5,), (25.0,), (100.0,))
    evaluation = Evaluation("coco", {"AP": 30.26}, (CAT, DOG), ("A note.",), (curve, None))
    content = json.loads(json.dumps(evaluation.to_dict()))
    assert content["protocol"] == "coco"
    assert content["metrics"] == {"AP": 30.26}
    assert content["notes"] == ["A note."]
    assert content["curves"] == [{"score": [0.5], "recall": [25.0], "precision": [100.0]}, None]
    assert content["classes"][0] == {
        "name": "cat",
        "num_objects": 4,
        "num_detections": 9,
        "ap": 30.26,
        "ap50": 50.0,
        "ap75": 25.04,
        "ap50_11point": 51.0,
        "threshold": 0.012345,
        "precision": 80.0,
        "recall": 99.96,
        "f1": 88.9,
    }
    assert content["classes"][1]["threshold"] is None


def test_the_thresholds_are_in_the_order_of_the_classes() -> None:
    assert Evaluation("voc", {}, (DOG, CAT)).thresholds == (None, 0.012345)


def test_the_mean_leaves_out_what_is_not_available() -> None:
    assert mean_of_known([0.0, None, 3.0]) == 1.5
    assert mean_of_known([]) is None


def test_the_note_on_classes_without_objects_lists_the_first_ten() -> None:
    for count, end in ((10, "c8, c9."), (11, "c8, c9 and 1 more.")):
        classes = [f"c{k}" for k in range(count)]
        evaluation = assemble("voc", {}, [{}] * count, match([], [], count), classes, ["First."])
        first, second = evaluation.notes
        assert first == "First."
        assert second.startswith(f"{count} of {count} classes have no objects (not in the mean)")
        assert second.endswith(end)
