"""Reading runs for the report: what is taken, what is refused, and how runs are named."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rankdet.errors import RankdetError
from rankdet.report.contents import checked_row
from rankdet.report.fields import FieldError, strict_json
from rankdet.report.reading import read_report_run, read_report_runs

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def content(make_results: Callable[..., Any]) -> Any:
    """What a good results.json says; not to be changed."""
    return make_results()


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the content with another value at one place."""
    if not path:
        return value
    key, *rest = path
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[key] = changed(copy[key], tuple(rest), value)
    return copy


def refused(folder: Path) -> str:
    """The message with which the run is refused."""
    with pytest.raises(RankdetError) as caught:
        read_report_run(folder)
    return str(caught.value)


def test_a_run_folder_is_read(make_run: Make, tmp_path: Path) -> None:
    run = read_report_run(make_run(tmp_path / "photos", loss="focal", num_steps=80))
    assert (run.label, run.loss) == ("photos", "focal")
    assert run.path == tmp_path / "photos" / "results.json"
    assert run.results["protocol"] == "voc"
    assert [row["name"] for row in run.results["classes"]][:2] == ["disc", "ring"]
    assert len(run.results["pictures"]) == 13
    assert [row["step"] for row in run.rows if row["kind"] == "evaluation"] == [80]
    assert run.rows[1]["seconds"]["forward"] > 0


def test_a_results_file_is_read_with_the_metrics_beside_it(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "photos")
    (folder / "results.json").rename(folder / "results-2007_test.json")
    run = read_report_run(folder / "results-2007_test.json")
    assert run.label == "photos 2007_test"
    assert run.rows


def test_a_run_without_metrics_has_no_rows(make_run: Make, tmp_path: Path) -> None:
    assert read_report_run(make_run(tmp_path / "a", has_metrics=False)).rows == []


def test_parts_that_older_files_lack_are_none(make_run: Make, tmp_path: Path) -> None:
    parts = ("errors", "confusion", "anchors", "pictures")
    results = read_report_run(make_run(tmp_path / "a", is_old=True)).results
    assert [results[name] for name in parts] == [None] * 4


def test_unknown_parts_are_left_out(make_run: Make, tmp_path: Path) -> None:
    results = read_report_run(make_run(tmp_path / "a", changes={"later": [1, 2]})).results
    assert "later" not in results


def test_without_results_the_message_says_what_to_run(tmp_path: Path) -> None:
    text = refused(tmp_path)
    assert f"rankdet evaluate {tmp_path}" in text
    assert "other results" not in text
    (tmp_path / "results-val.json").write_text("{}")
    assert f"{tmp_path / 'results-val.json'}" in refused(tmp_path)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "no such file or folder" in refused(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not the JSON"),
        ("{", "not the JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": -Infinity}', "Infinity is not a number"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' stands twice"),
        ('{"a": ' + "9" * 5000 + "}", "not the JSON"),
        ("[]", "rankdet_results: the field is missing"),
        ("{}", "rankdet_results: the field is missing"),
        ('{"rankdet_results": 2}', "rankdet_results = 2: expected 1"),
        ('{"rankdet_results": true}', "rankdet_results = True: expected 1"),
        ('{"rankdet_results": 1}', "protocol: the field is missing"),
    ],
)
def test_what_is_no_results_file_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "results.json").write_text(text)
    found = refused(tmp_path)
    assert reason in found
    assert found.startswith(str(tmp_path / "results.json"))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes(b"\x80\x81 not text")
    assert "not the JSON" in refused(tmp_path)


def image_code(format: str, size: tuple[int, int] = (8, 8)) -> str:
    stream = io.BytesIO()
    Image.new("RGB", size).save(stream, format)
    return base64.b64encode(stream.getvalue()).decode()


def huge_code() -> str:
    """A JPEG that claims 65,000 x 65,000 pixels."""
    content = bytearray(base64.b64decode(image_code("JPEG")))
    frame = content.index(b"\xff\xc0")  # then length, precision, height and width
    content[frame + 5 : frame + 9] = (65_000).to_bytes(2, "big") * 2
    return base64.b64encode(content).decode()


HUGE_JPEG = huge_code()
CUT_JPEG = image_code("JPEG", (640, 640))[:4000]  # with all of its headers, not all of its pixels
WRONG = [
    (("protocol",), "kitti", "protocol = 'kitti': expected voc or coco"),
    (("protocol",), ["voc"], "protocol"),
    (("metrics",), [], "metrics"),
    (("metrics", "AP50"), "high", "metrics.AP50 = 'high': expected a number"),
    (("metrics", "AP50"), True, "metrics.AP50"),
    (("metrics", "AP50"), 101, "metrics.AP50 = 101: expected a number from 0 to 100"),
    (("metrics", "AP50"), -0.5, "metrics.AP50"),
    (("classes",), [], "classes: expected 1 to 2000 entries, got 0"),
    (("classes", 2), 5, "classes[2] = 5: expected an object"),
    (("classes", 2, "name"), None, "classes[2].name: expected text"),
    (("classes", 2, "num_objects"), 1.5, "classes[2].num_objects = 1.5: expected a whole number"),
    (("classes", 2, "num_objects"), -1, "classes[2].num_objects"),
    (("classes", 2, "num_objects"), True, "classes[2].num_objects"),
    (("classes", 2, "threshold"), 1.5, "classes[2].threshold"),
    (("notes",), ["x"] * 1001, "notes: expected 0 to 1000 entries, got 1001"),
    (("curves",), [], "curves: expected 6 entries, got 0"),
    (("curves", 0, "recall"), [1.0], "curves[0].recall: expected 40 entries, got 1"),
    (("curves", 0, "score"), [0.5] * 1_000_000, "curves[0].score"),
    (("data", "path"), 3, "data.path"),
    (("data", "num_images"), "many", "data.num_images"),
    (("checkpoint",), "best", "checkpoint"),
    (("config",), [], "config"),
    (("config",), None, "config: expected an object"),
    (("config", "loss"), None, "config.loss.name"),
    (("config", "seed"), [[[[[[[[[[1]]]]]]]]]], "expected at most 8 levels"),
    (("config", "seed"), [0] * 5001, "config.seed: expected at most 5000 entries"),
    (("provenance",), "here", "provenance"),
    (("training", "provenance"), [1], "training.provenance"),
    (("training", "data", "train"), 7, "training.data.train"),
    (("training", "wall_time_seconds"), -1, "training.wall_time_seconds"),
    (("inference", "images_per_second"), "fast", "inference.images_per_second"),
    (("errors", "missed"), None, "errors.missed"),
    (("errors", "classes"), [], "errors.classes: expected 6 entries, got 0"),
    (("confusion", "counts"), [[0]], "confusion.counts: expected 7 entries, got 1"),
    (("confusion", "counts", 3), [0], "confusion.counts[3]: expected 7 entries, got 1"),
    (("confusion", "counts", 3, 1), -1, "confusion.counts[3][1]"),
    (("anchors", "cells", 4), [0, 1], "anchors.cells[4]: expected 3 entries, got 2"),
    (("anchors", "cells", 4, 1), 100, "anchors.cells[4][1] = 100: expected a whole number"),
    (("anchors", "cells", 4, 0), 100, "anchors.cells[4][0]"),
    (("anchors", "bins"), 10**9, "anchors.bins"),
    (("pictures", 0, "kinds"), ["nice"], "pictures[0].kinds[0]"),
    (("pictures", 0, "kinds"), [], "pictures[0].kinds"),
    (("pictures", 0, "width"), 0, "pictures[0].width"),
    (("pictures", 0, "objects", 0, "box"), [1, 2, 3], "pictures[0].objects[0].box"),
    (("pictures", 0, "objects", 0, "state"), "lost", "pictures[0].objects[0].state"),
    (("pictures", 0, "detections", 0, "score"), 1.5, "pictures[0].detections[0].score"),
    (("pictures", 0, "detections", 0, "kind"), "x", "pictures[0].detections[0].kind"),
    (("pictures", 0, "jpeg"), 5, "pictures[0].jpeg"),
    (("pictures", 0, "jpeg"), "", "pictures[0].jpeg"),
    (("pictures", 0, "jpeg"), image_code("PNG"), "pictures[0].jpeg"),
    (("pictures", 0, "jpeg"), image_code("JPEG", (5000, 1)), "sides up to 4096 pixels"),
    (("pictures", 0, "jpeg"), image_code("JPEG")[:200], "expected the base64 of a JPEG"),
    (("pictures", 0, "jpeg"), CUT_JPEG, "expected the base64 of a JPEG"),
    (("pictures", 0, "jpeg"), HUGE_JPEG, "expected the base64 of a JPEG"),
    (("pictures", 0, "jpeg"), '" onload="x', "pictures[0].jpeg"),
    (("pictures", 0, "jpeg"), image_code("JPEG") + "\n", "pictures[0].jpeg"),
    (("pictures", 0, "jpeg"), "é" * 8, "pictures[0].jpeg"),
]


@pytest.mark.parametrize(("path", "value", "expected"), WRONG, ids=[str(row[0]) for row in WRONG])
def test_a_wrong_value_is_named(
    content: Any, tmp_path: Path, path: tuple[Any, ...], value: Any, expected: str
) -> None:
    (tmp_path / "results.json").write_text(json.dumps(changed(content, path, value)))
    text = refused(tmp_path)
    assert expected in text
    assert text.startswith(f"{tmp_path / 'results.json'}: ")
    assert text.endswith("run `rankdet evaluate RUN` again.")
    assert len(text) < 1000


def test_numbers_beyond_all_bounds_are_refused(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    text = (folder / "results.json").read_text().replace('"iou": 0.5', '"iou": 1e999')
    (folder / "results.json").write_text(text)
    assert "errors.iou = inf" in refused(folder)


def test_text_is_made_printable_and_cut(content: Any, tmp_path: Path) -> None:
    content = changed(content, ("classes", 0, "name"), "a\nb\u202e\ud800" + "x" * 500)
    content = changed(content, ("classes", 1, "name"), "  ")
    (tmp_path / "results.json").write_text(json.dumps(content))
    first, second = read_report_run(tmp_path).results["classes"][:2]
    assert first["name"].startswith("a\\nb\\u202e\\ud800xxx")
    assert (len(first["name"]), first["name"][-1]) == (200, "…")
    assert second["name"] == "(empty)"


def test_a_torn_last_line_of_the_metrics_is_ignored(make_run: Make, tmp_path: Path) -> None:
    whole = read_report_run(make_run(tmp_path / "a"))
    torn = read_report_run(make_run(tmp_path / "b", is_torn=True))
    assert torn.rows == whole.rows


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"kind": "step", "ste', "expected a JSON object"),
        ("[1]", "expected a JSON object"),
        ('{"kind": "step"}', "step: expected a whole number"),
        ('{"step": 3}', "kind: expected text"),
        ('{"kind": "step", "step": 3, "class_loss": "x"}', "class_loss = 'x': expected a number"),
        ('{"kind": "step", "step": 3, "class_loss": NaN}', "expected a JSON object"),
        ('{"kind": "step", "step": 3, "seconds": {"data": []}}', "seconds.data = []"),
        ('{"kind": "step", "step": -3}', "step = -3"),
    ],
)
def test_a_bad_line_of_the_metrics_is_named(
    make_run: Make, tmp_path: Path, line: str, expected: str
) -> None:
    folder = make_run(tmp_path)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([*lines[:2], line, *lines[2:]]) + "\n")
    text = refused(folder)
    assert text.startswith(f"{folder / 'metrics.jsonl'}:3: ")
    assert expected in text


def test_rows_of_later_kinds_are_left_out(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    num_rows = len(read_report_run(folder).rows)
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"kind": "weather", "rain": "heavy"}\n')
    assert len(read_report_run(folder).rows) == num_rows


def test_a_row_keeps_its_numbers() -> None:
    row = {"kind": "step", "step": 3, "loss": None, "rate": 1e-3, "seconds": {"data": 0.5}}
    assert checked_row(row) == row
    with pytest.raises(FieldError):
        checked_row({"kind": "step", "step": 3, "loss": [1]})


def test_labels_are_those_of_the_folders(make_run: Make, tmp_path: Path) -> None:
    paths = [make_run(tmp_path / name) for name in ("one", "two")]
    assert [run.label for run in read_report_runs(paths)] == ["one", "two"]


def test_the_loss_stands_in_the_label_where_the_folder_does_not_say_it(
    make_run: Make, tmp_path: Path
) -> None:
    names = {"snapshot": "ap", "focal-2": "focal", "x": "ohem"}
    paths = [make_run(tmp_path / name, loss=loss) for name, loss in names.items()]
    labels = [run.label for run in read_report_runs(paths)]
    assert labels == ["snapshot (ap)", "focal-2", "x (ohem)"]


def test_folders_of_the_same_name_are_told_apart(make_run: Make, tmp_path: Path) -> None:
    paths = [make_run(tmp_path / name / "run") for name in ("one", "two")]
    assert [run.label for run in read_report_runs(paths)] == ["one/run", "two/run"]


def test_long_names_are_cut_and_still_told_apart(make_run: Make, tmp_path: Path) -> None:
    paths = [make_run(tmp_path / ("x" * 50 + middle + "y" * 50)) for middle in "ab"]
    labels = [run.label for run in read_report_runs(paths)]
    assert len(set(labels)) == 2
    assert max(map(len, labels)) < 50


def test_the_same_run_twice_is_refused(make_run: Make, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    (tmp_path / "link").symlink_to(folder)
    for other in (folder, folder / "results.json", tmp_path / "link"):
        with pytest.raises(RankdetError, match="given twice"):
            read_report_runs([folder, other])
    (tmp_path / "other").symlink_to(folder)
    with pytest.raises(RankdetError, match="given twice"):
        read_report_runs([tmp_path / "link", tmp_path / "other"])


def test_no_run_and_too_many_are_refused(tmp_path: Path) -> None:
    for paths in ([], [tmp_path] * 17):
        expected = rf"^{len(paths)} runs: expected 1 to 16\. Give fewer, or write several pages\.$"
        with pytest.raises(RankdetError, match=expected):
            read_report_runs(paths)


def test_a_folder_of_runs_is_told_from_a_run(make_run: Make, tmp_path: Path) -> None:
    (tmp_path / "demo" / "images").mkdir(parents=True)
    (tmp_path / "demo" / "auc").mkdir()
    runs = [make_run(tmp_path / "demo" / name) for name in ("ap", "focal")]
    text = refused(tmp_path / "demo")
    assert text.endswith(
        f"demo: there is no results.json in this folder. Give the runs in it: {runs[0]}, {runs[1]}."
    )


def test_a_file_that_is_too_large_is_not_read(
    make_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(tmp_path)
    monkeypatch.setattr("rankdet.report.reading._LARGEST_FILE", 1000)
    assert "expected at most 1,000" in refused(folder)


def test_strict_json_takes_what_json_has() -> None:
    assert strict_json(b'[1, -2.5e3, true, null, "\\u00e9"]') == [1, -2500.0, True, None, "é"]
