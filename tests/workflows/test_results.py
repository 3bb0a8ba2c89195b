"""results.json: how it is written, and what a training leaves in it."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from rankdet.config import Config
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.metrics.thresholds import usual_thresholds
from rankdet.workflows.evaluate import evaluate
from rankdet.workflows.results import write_results
from rankdet.workflows.train import train

KINDS = ("correct", "localisation", "duplicate", "class", "background")


def written(tmp_path: Path, content: dict[str, Any]) -> list[str]:
    write_results(tmp_path / "results.json", content)
    text = (tmp_path / "results.json").read_text()
    assert json.loads(text) == content
    assert list(json.loads(text)) == list(content)  # in the same order
    assert text.endswith("}\n")
    return text.splitlines()


def test_rows_of_tables_and_long_lists_have_one_line_each(tmp_path: Path) -> None:
    content = {
        "rankdet_results": 1,
        "curves": [{"score": [0.5, 0.25], "recall": [50.0, 100.0]}, None],
        "confusion": {"iou": 0.5, "counts": [[1, 0], [0, 2]]},
        "anchors": {"bins": 100, "cells": [[0, 1, 2], [3, 4, 5]]},
        "pictures": [{"name": "a", "objects": [{"box": [0, 1, 2, 3]}], "kinds": ["best"]}],
        "notes": ["One.", "Two."],
        "config": {"data": {"size": 3, "scales": [400, 500]}, "seed": 0},
    }
    assert written(tmp_path, content) == [
        "{",
        '  "rankdet_results": 1,',
        '  "curves": [',
        '    {"score": [0.5, 0.25], "recall": [50.0, 100.0]},',
        "    null",
        "  ],",
        '  "confusion": {',
        '    "iou": 0.5,',
        '    "counts": [',
        "      [1, 0],",
        "      [0, 2]",
        "    ]",
        "  },",
        '  "anchors": {',
        '    "bins": 100,',
        '    "cells": [[0, 1, 2], [3, 4, 5]]',
        "  },",
        '  "pictures": [',
        '    {"name": "a", "objects": [{"box": [0, 1, 2, 3]}], "kinds": ["best"]}',
        "  ],",
        '  "notes": [',
        '    "One.",',
        '    "Two."',
        "  ],",
        '  "config": {',
        '    "data": {',
        '      "size": 3,',
        '      "scales": [400, 500]',
        "    },",
        '    "seed": 0',
        "  }",
        "}",
    ]


def test_what_is_empty_strange_or_missing_is_written_too(tmp_path: Path) -> None:
    name = 'a "b"\n</script>\u2028ü'
    content = {
        "pictures": [],
        "thresholds": {name: None, "": 0.5},
        "nothing": {},
        "classes": [{"name": name, "ap": None, "is": True}],
        "empty": "",
        "cells": [],
    }
    written(tmp_path, content)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [0.5, float("nan")]])
@pytest.mark.parametrize("key", ["x", "cells"])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, value: Any, key: str) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_results(tmp_path / "results.json", {"a": {key: value}})
    assert not (tmp_path / "results.json").exists()


# A small training


def with_evaluation(config: Config, **changes: Any) -> Config:
    return replace(config, evaluation=replace(config.evaluation, **changes))


def trained(out: Path, config: Config) -> dict[str, Any]:
    torch.set_num_threads(1)
    assert train(out, make_config=lambda _: config, device="cpu") == 0
    content = json.loads((out / "results.json").read_text())
    assert isinstance(content, dict)
    return content


def test_a_training_leaves_errors_confusion_anchors_and_pictures(
    tmp_path: Path, tiny_config: Config
) -> None:
    content = trained(tmp_path / "run", tiny_config)
    dataset = SyntheticDataset("val", 3)
    targets = [dataset.target(index) for index in range(3)]
    num_objects = sum(int((~target.is_ignored).sum()) for target in targets)
    errors = content["errors"]
    assert errors["num_objects"] == num_objects == content["data"]["num_objects"]
    assert errors["correct"] + errors["missed"] == num_objects
    assert sum(errors[kind] for kind in KINDS) == errors["num_detections"] > 0
    assert [row["name"] for row in errors["classes"]] == list(dataset.classes)
    counts = torch.tensor(content["confusion"]["counts"])
    assert counts.shape == (7, 7)
    assert counts[:6].sum() == num_objects
    assert counts[:, :6].sum() == errors["num_detections"]
    assert counts[:6, :6].diagonal().sum() == errors["correct"]
    for row, result in zip(errors["classes"], content["classes"], strict=True):
        if result["threshold"] is not None:
            num_kept = sum(row[kind] for kind in KINDS)
            assert 100 * row["correct"] / num_kept == pytest.approx(result["precision"])

    anchors = content["anchors"]
    assert anchors["num_images"] == sum(not bool(t.is_ignored.all()) for t in targets)
    # The small network has maps of 8, 4 and 2 cells a side, with six anchors in each cell.
    assert anchors["num_anchors"] == anchors["num_images"] * 6 * (64 + 16 + 4)
    assert anchors["num_anchors"] == sum(count for _, _, count in anchors["cells"])

    thresholds = usual_thresholds(list(content["thresholds"].values()), 0.01)
    lowest = dict(zip(dataset.classes, thresholds, strict=True))
    assert any("sample" in picture["kinds"] for picture in content["pictures"])
    for picture in content["pictures"]:
        index = picture["index"]
        assert picture["name"] == dataset.name(index)
        assert (picture["height"], picture["width"]) == dataset.size(index) == (160, 160)
        shown = torch.tensor([row["box"] for row in picture["objects"]]).reshape(-1, 4)
        assert torch.equal(shown, targets[index].boxes)  # drawn objects have whole pixels
        image = Image.open(io.BytesIO(base64.b64decode(picture["jpeg"])))
        assert image.size == (160, 160)
        for row in picture["detections"]:
            assert row["score"] >= lowest[row["class"]] * 0.9999
            assert 0 <= row["box"][0] < row["box"][2] <= 160


def test_an_evaluation_of_the_run_comes_to_the_same(tmp_path: Path, tiny_config: Config) -> None:
    content = trained(tmp_path / "run", tiny_config)
    evaluate(tmp_path / "run", device="cpu")
    again = json.loads((tmp_path / "run" / "results.json").read_text())
    for name in ("errors", "confusion", "anchors", "pictures", "classes"):
        assert again[name] == content[name]


def test_a_training_without_pictures_has_all_else(tmp_path: Path, tiny_config: Config) -> None:
    content = trained(tmp_path / "run", with_evaluation(tiny_config, pictures=False))
    assert content["pictures"] == []
    assert content["errors"]["num_objects"] > 0
    assert content["config"]["evaluation"]["pictures"] is False


def test_a_run_from_before_there_were_pictures_goes_on_and_is_evaluated(
    tmp_path: Path, tiny_config: Config
) -> None:
    run = tmp_path / "run"
    trained(run, tiny_config)
    file = run / "config.yaml"
    lines = file.read_text().splitlines(keepends=True)
    assert "  pictures: true\n" in lines
    lines.remove("  pictures: true\n")
    file.write_text("".join(lines))
    longer = replace(tiny_config, training=replace(tiny_config.training, epochs=2))
    assert train(run, make_config=lambda _: longer, is_resumed=True, device="cpu") == 0
    evaluate(run, device="cpu")
    assert json.loads((run / "results.json").read_text())["pictures"]


def test_a_run_goes_on_with_or_without_pictures(tmp_path: Path, tiny_config: Config) -> None:
    run = tmp_path / "run"
    trained(run, tiny_config)
    longer = replace(
        with_evaluation(tiny_config, pictures=False),
        training=replace(tiny_config.training, epochs=2),
    )
    assert train(run, make_config=lambda _: longer, is_resumed=True, device="cpu") == 0
