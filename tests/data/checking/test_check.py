"""`rankdet check`: what it counts, what it finds, what it prints, and that it changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import rankdet
from rankdet import cli
from rankdet.bench.bad_data import fingerprint
from rankdet.data.checking import check as checking
from rankdet.data.checking import report as reports
from rankdet.data.checking import statistics
from rankdet.data.checking.check import check, find_overlaps, is_expected_overlap
from rankdet.data.reading.findings import Findings
from rankdet.data.reading.rules import RULES
from rankdet.data.reading.split import Split
from rankdet.errors import DataError, RankdetError

Box = tuple[int, float, float, float, float]  # category id, left, top, width, height


def png(path: Path, value: int, size: tuple[int, int] = (100, 50)) -> None:
    """An image of noise: (width, height), other pixels for each value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(value).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="PNG")


def truncate(path: Path) -> None:
    """Cut off the second half: the header can still be read."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def coco(
    folder: Path,
    split: str,
    boxes: Mapping[str, Sequence[Box]],
    classes: Sequence[str] = ("cat", "dog"),
    crowd: Sequence[int] = (),
) -> None:
    """A COCO JSON for images of 100 x 50 in folder / split. crowd: numbers of annotations."""
    annotations: list[dict[str, Any]] = []
    for image_id, (name, rows) in enumerate(boxes.items(), start=1):
        if not (folder / split / name).exists():
            png(folder / split / name, hash_of(split + name))
        for category_id, *box in rows:
            number = len(annotations)
            annotations.append(
                {
                    "id": number + 1,
                    "image_id": image_id,
                    "category_id": category_id,
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": int(number in crowd),
                }
            )
    content = {
        "images": [
            {"id": image_id, "file_name": name, "width": 100, "height": 50}
            for image_id, name in enumerate(boxes, start=1)
        ],
        "annotations": annotations,
        "categories": [{"id": i, "name": name} for i, name in enumerate(classes, start=1)],
    }
    (folder / "annotations").mkdir(exist_ok=True)
    (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))


def hash_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


def voc(folder: Path, lists: Mapping[str, Sequence[str]]) -> None:
    """A VOC data set of 100 x 50 images with one dog each; lists: ids of each split."""
    for part in ("Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for name, ids in lists.items():
        (folder / "ImageSets" / "Main" / f"{name}.txt").write_text("".join(f"{i}\n" for i in ids))
        for image_id in ids:
            path = folder / "JPEGImages" / f"{image_id}.jpg"
            if not path.exists():
                png(path, hash_of(image_id))
            box = "<xmin>11</xmin><ymin>11</ymin><xmax>30</xmax><ymax>40</ymax>"
            (folder / "Annotations" / f"{image_id}.xml").write_text(
                f"<annotation><filename>{image_id}.jpg</filename>"
                "<size><width>100</width><height>50</height><depth>3</depth></size>"
                f"<object><name>dog</name><bndbox>{box}</bndbox></object></annotation>"
            )


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """Two splits without any fault."""
    folder = tmp_path / "good"
    coco(folder, "train", {"a.png": [(1, 10, 10, 20, 20)], "b.png": [(2, 0, 0, 50, 50)]})
    coco(folder, "val", {"c.png": [(1, 10, 10, 20, 20), (2, 5, 5, 8, 8)]})
    return folder


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """train: of 4 images one is cut off, of 6 objects one is outside; val has one image of train.

    The cut image has two objects, one of them crowd.
    """
    folder = tmp_path / "faulty"
    train: dict[str, list[Box]] = {
        "a.png": [(1, 10, 10, 20, 20), (1, 90, 10, 15, 20)],
        "cut.png": [(1, 0, 0, 10, 10), (2, 5, 5, 10, 10)],
        "c.png": [(2, 300, 10, 20, 20), (2, 5, 5, 40, 40)],
        "d.png": [],
    }
    coco(folder, "train", train, crowd=[3])
    coco(folder, "val", {"e.png": [(1, 10, 10, 20, 20)], "f.png": [(2, 1, 1, 9, 9)]})
    truncate(folder / "train" / "cut.png")
    (folder / "val" / "f.png").write_bytes((folder / "train" / "c.png").read_bytes())
    return folder


def invoke(*arguments: str) -> Result:
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(cli.app, list(arguments), env=environment)


def lines(result: Result) -> list[str]:
    return [line for line in result.stdout.splitlines() if line.strip()]


def by_name(report: checking.Report) -> dict[str, Split]:
    return {split.name: split for split in report.splits}


# --- what is counted ---


def test_a_good_data_set_has_no_faults(good: Path) -> None:
    report = check(good)
    assert report.num_faults == 0
    assert report.format == "coco"
    assert {name: len(split) for name, split in by_name(report).items()} == {"train": 2, "val": 1}


def test_an_image_that_cannot_be_decoded_moves_to_skipped_with_its_objects(faulty: Path) -> None:
    train = by_name(check(faulty))["train"]
    found = train.findings
    assert (found.images.seen, found.images.used) == (4, 3)
    (code,) = found.images.dropped
    assert code in ("image-truncated", "image-corrupt")
    assert (found.objects.seen, found.objects.used) == (6, 3)
    assert found.objects.dropped == {code: 2, "box-outside": 1}
    assert found.num_ignored == 0  # the only crowd box went with its image
    assert found.num_clipped == 1
    assert found.images.reconciles()
    assert found.objects.reconciles()
    assert [train.annotations.path(i).name for i in range(3)] == ["a.png", "c.png", "d.png"]
    assert len(train.annotations.boxes) == 3


def test_the_findings_of_the_decoder_are_told_in_full(faulty: Path) -> None:
    found = by_name(check(faulty))["train"].findings
    (code,) = found.images.dropped
    (finding,) = found.examples[code]
    assert finding.file == str(faulty / "train" / "cut.png")
    assert finding.rule.hint in str(finding)


def test_workers_and_none_say_the_same(faulty: Path) -> None:
    alone, together = check(faulty, num_workers=0), check(faulty, num_workers=2)
    assert reports.as_json(alone, "") == reports.as_json(together, "")


def test_only_the_named_splits_are_read(faulty: Path) -> None:
    assert list(by_name(check(faulty, split_names=["val", "val"]))) == ["val"]
    assert check(faulty, split_names=["val"]).num_faults == 0


def test_a_split_that_cannot_be_read_is_reported_and_the_others_are_checked(good: Path) -> None:
    (good / "annotations" / "instances_train.json").write_text('{"images": [')
    report = check(good, format="coco", split_names=["train", "val"])
    assert list(by_name(report)) == ["val"]
    assert report.errors["train"].code == "json-malformed"
    assert report.num_faults == 1
    assert "1 split not read" in reports.verdict(report)


def test_data_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        check(tmp_path / "nowhere")
    assert caught.value.code == "data-missing"


def test_data_without_splits_are_refused(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankdet.data.reading.formats.split_names", lambda path, format: ())
    with pytest.raises(DataError, match="no usable image") as caught:
        check(good)
    assert caught.value.code == "data-empty"


# --- images that stand twice ---


def overlaps(report: checking.Report) -> int:
    return report.between.counts["image-in-two-splits"]


def test_the_same_content_in_two_splits_is_a_fault_with_both_names(faulty: Path) -> None:
    report = check(faulty)
    assert overlaps(report) == 1
    (finding,) = report.between.examples["image-in-two-splits"]
    assert finding.file == str(faulty / "train" / "c.png")
    assert f"It is in train, and in val as {faulty / 'val' / 'f.png'}." in str(finding)


def test_the_same_content_twice_in_a_split_is_a_note(good: Path) -> None:
    (good / "train" / "b.png").write_bytes((good / "train" / "a.png").read_bytes())
    report = check(good)
    assert report.num_faults == 0
    found = by_name(report)["train"].findings
    assert found.counts["image-twice"] == 1
    (finding,) = found.examples["image-twice"]
    assert finding.file == str(good / "train" / "b.png")
    assert str(good / "train" / "a.png") in finding.detail


def test_trainval_may_hold_train_and_val(tmp_path: Path) -> None:
    voc(tmp_path, {"train": ["a", "b"], "val": ["c"], "trainval": ["a", "b", "c"]})
    report = check(tmp_path)
    assert sorted(by_name(report)) == ["train", "trainval", "val"]
    assert report.num_faults == 0


def test_a_sum_may_hold_its_parts(tmp_path: Path) -> None:
    voc(tmp_path, {"train": ["a", "b"], "val": ["c"]})
    report = check(tmp_path, split_names=["train", "train+val", "val"])
    assert report.num_faults == 0


def test_a_file_in_train_and_val_is_a_fault_once(tmp_path: Path) -> None:
    voc(tmp_path, {"train": ["a", "b"], "val": ["b", "c"], "trainval": ["a", "b", "c"]})
    assert overlaps(check(tmp_path)) == 1


def test_a_copy_in_val_is_a_fault_even_if_trainval_has_both(tmp_path: Path) -> None:
    lists = {"train": ["a", "b"], "val": ["c"], "trainval": ["a", "b", "c"]}
    voc(tmp_path, lists)
    images = tmp_path / "JPEGImages"
    (images / "c.jpg").write_bytes((images / "a.jpg").read_bytes())
    report = check(tmp_path)
    assert overlaps(report) == 1
    assert by_name(report)["trainval"].findings.counts["image-twice"] == 1


@pytest.mark.parametrize(
    ("lists", "num_overlaps"),
    [
        ({"train": ["a", "b"], "val": ["a"]}, 1),  # training on the images of val
        ({"train": ["a", "b"], "val": ["a", "b"]}, 2),  # the same list twice
        ({"train": ["a", "b"], "test": ["b"]}, 1),
        ({"train": ["a", "b"], "debug": ["b"]}, 0),  # a list whose name says nothing
        ({"everything": ["a", "b"], "val": ["b"]}, 0),
        ({"train": ["a", "b"], "debug": ["b", "c"]}, 1),  # neither holds the other
        ({"val": ["a", "b"], "minival": ["b"]}, 0),
        ({"trainval": ["a", "b"], "test": ["b"]}, 1),
    ],
)
def test_an_overlap_is_expected_by_name_and_content(
    tmp_path: Path, lists: dict[str, list[str]], num_overlaps: int
) -> None:
    voc(tmp_path, lists)
    report = check(tmp_path, split_names=list(lists))
    assert report.errors == {}
    assert overlaps(report) == num_overlaps
    one, other = report.splits
    assert is_expected_overlap(one, other) == is_expected_overlap(other, one)


def test_images_that_cannot_be_decoded_are_no_twins(tmp_path: Path) -> None:
    voc(tmp_path, {"train": ["a", "b"], "val": ["c", "d"]})
    for name in ("a", "c"):
        path = tmp_path / "JPEGImages" / f"{name}.jpg"
        png(path, 1)
        truncate(path)
    report = check(tmp_path)
    assert overlaps(report) == 0
    assert report.num_faults == 2


def test_no_splits_have_no_overlaps() -> None:
    assert find_overlaps([], {}).counts == {}


# --- statistics ---


def test_statistics_by_hand(good: Path) -> None:
    train, val = (by_name(check(good))[name] for name in ("train", "val"))
    rows = [(r.name, r.num_objects, r.num_ignored, r.num_images) for r in class_rows(val)]
    assert rows == [("cat", 1, 0, 1), ("dog", 1, 0, 1)]
    sizes = statistics.image_sizes(train)
    assert sizes["width"] == statistics.Spread(100, 100, 100)
    assert sizes["height"] == statistics.Spread(50, 50, 50)
    assert sizes["objects"] == statistics.Spread(1, 1, 1)
    assert statistics.num_by_area(train) == {"small": 1, "medium": 1, "large": 0}  # 400, 2500
    boxes = statistics.box_sizes(train)
    assert boxes["pixels"] is not None
    assert boxes["fraction"] is not None
    assert boxes["pixels"][2] == 35.0  # the median of 20 and 50
    assert boxes["fraction"][2] == pytest.approx(35 / np.sqrt(5000), abs=1e-4)


def class_rows(split: Split) -> list[statistics.ClassCount]:
    return statistics.class_counts(split)


def test_ignored_objects_and_images_of_a_class_are_counted(tmp_path: Path) -> None:
    rows = {"a.png": [(1, 0, 0, 9, 9), (1, 5, 5, 9, 9)], "b.png": [(1, 0, 0, 9, 9)]}
    coco(tmp_path, "train", rows, crowd=[1])
    (split,) = check(tmp_path).splits
    assert class_rows(split) == [
        statistics.ClassCount("cat", 3, 1, 2),
        statistics.ClassCount("dog", 0, 0, 0),
    ]
    assert split.findings.num_ignored == 1


def test_areas_at_the_bounds_are_medium(tmp_path: Path) -> None:
    coco(tmp_path, "train", {"a.png": [(1, 0, 0, 32, 32), (1, 0, 0, 31.9, 32)]})
    (split,) = check(tmp_path).splits
    assert statistics.num_by_area(split) == {"small": 1, "medium": 1, "large": 0}


def test_a_split_without_boxes_has_statistics(tmp_path: Path) -> None:
    coco(tmp_path, "train", {"a.png": []})
    result = invoke("check", str(tmp_path), "--workers", "0")
    assert result.exit_code == 0, result.output
    (split,) = check(tmp_path).splits
    content = statistics.as_dict(split)
    assert content["box_size_percentiles"]["pixels"] is None
    assert content["sizes"]["objects"] == {"least": 0.0, "median": 0.0, "greatest": 0.0}


# --- the command ---


def test_the_command_ends_with_0_without_faults(good: Path) -> None:
    result = invoke("check", str(good))
    assert result.exit_code == 0, result.output
    assert lines(result)[-1] == "No faults. 3 images can be used."


def test_the_command_ends_with_1_and_a_verdict_on_faults(faulty: Path) -> None:
    result = invoke("check", str(faulty), "--workers", "0")
    assert result.exit_code == 1
    assert lines(result)[-1] == (
        "3 faults: 1 image skipped, 3 objects dropped, 1 image in two splits. By split: train 2."
    )
    text = result.stdout
    assert re.search(r"^ train +4 +3 +1 +6 +3 +3 +0 +1 $", text, re.MULTILINE)
    assert "train: images skipped: 1 image-" in text
    assert "1 box-outside" in text
    for code in ("box-outside", "image-in-two-splits", "box-clipped", "no-objects"):
        rule = RULES[code]
        heading = f"{rule.level} {code}: 1 ({rule.outcome}): {rule.rule}. {rule.hint}"
        assert heading in lines(result)
    assert text.index("fault box-outside") < text.index("note box-clipped")
    assert str(faulty / "train" / "cut.png") in text


def test_examples_are_limited_and_counted(tmp_path: Path) -> None:
    rows = {f"{i}.png": [(1, 300, 0, 9, 9), (1, 0, 0, 9, 9)] for i in range(4)}
    coco(tmp_path, "train", rows)
    result = invoke("check", str(tmp_path), "--workers", "0", "--limit-examples", "2")
    at = next(i for i, line in enumerate(lines(result)) if line.startswith("fault box-outside: 4"))
    examples = lines(result)[at + 1 : at + 4]
    assert [RULES["box-outside"].rule in line for line in examples] == [True, True, False]
    assert examples[2].strip() == "..."


def test_names_are_printed_as_they_stand(tmp_path: Path) -> None:
    name = "[red]x[/red] [/] :dog: \x1b[31m"
    coco(tmp_path, "train", {"[b]a.png": [(1, 300, 0, 9, 9), (1, 0, 0, 9, 9)]}, classes=[name])
    result = invoke("check", str(tmp_path), "--workers", "0")
    assert result.exit_code == 1
    assert "[red]x[/red] [/] :dog: \\x1b[31m" in result.stdout
    assert "\x1b" not in result.stdout


def test_the_width_of_a_pipe_does_not_fold_the_tables(good: Path) -> None:
    command = [sys.executable, "-m", "rankdet", "check", str(good), "--workers", "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if line.startswith(" train ")]
    assert len(rows) == 4  # counts, image sizes, areas, box sizes


def test_a_name_that_the_terminal_cannot_show_does_not_stop_the_command(tmp_path: Path) -> None:
    coco(tmp_path, "train", {"a.png": [(1, 0, 0, 9, 9)]}, classes=["größe"])
    command = [sys.executable, "-m", "rankdet", "check", str(tmp_path), "--workers", "0"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert result.returncode == 0, result.stderr
    assert "gr\\xf6\\xdfe" in result.stdout


def test_no_torch_is_loaded_by_the_command(good: Path) -> None:
    code = f"""
import sys
from rankdet.cli import main
sys.argv = ["rankdet", "check", {str(good)!r}, "--workers", "0"]
try:
    main()
except SystemExit as end:
    print("status", end.code)
print("heavy:", sorted(set(sys.modules) & {{"torch", "torchvision", "matplotlib"}}))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert result.stdout.splitlines()[-2:] == ["status 0", "heavy: []"], result.stderr


def test_nothing_of_the_user_is_changed(faulty: Path, tmp_path: Path) -> None:
    before = fingerprint(faulty)
    invoke("check", str(faulty), "--workers", "0", "--json", str(tmp_path / "report.json"))
    assert fingerprint(faulty) == before


def test_the_embedded_data_set_needs_no_check() -> None:
    result = invoke("check", "synthetic")
    assert result.exit_code == 2
    assert "nothing to check" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "xml"], "'voc', 'coco', 'yolo'"),
        (["--workers", "-1"], "--workers"),
        (["--max-pixels", "0"], "--max-pixels"),
        (["--classes", "nowhere.txt"], "nowhere.txt"),
        (["--limit-examples", "-1"], "--limit-examples"),
    ],
)
def test_a_wrong_option_ends_with_2(good: Path, arguments: list[str], message: str) -> None:
    result = invoke("check", str(good), *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_class_list_replaces_the_own_one(good: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("dog\n")
    out = tmp_path / "report.json"
    arguments = ("--classes", str(names), "--workers", "0", "--json", str(out), "--split", "val")
    assert invoke("check", str(good), *arguments).exit_code == 1
    (split,) = json.loads(out.read_text())["splits"]
    assert split["objects"] == {"seen": 2, "used": 1, "dropped": {"class-unknown": 1}}


def test_many_classes_are_cut_in_the_table_alone(tmp_path: Path) -> None:
    names = [f"class {i}" for i in range(150)]
    coco(tmp_path, "train", {"a.png": [(149, 0, 0, 9, 9)]}, classes=names)
    result = invoke("check", str(tmp_path), "--workers", "0", "--limit-examples", "0")
    assert "class 148 " in result.stdout
    assert "class 149 " not in result.stdout
    assert "100 largest of 150, --json has all" in result.stdout


# --- JSON ---


def test_json_holds_everything_and_reconciles(faulty: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "report.json"
    result = invoke("check", str(faulty), "--workers", "0", "--json", str(out))
    assert result.exit_code == 1
    content = json.loads(out.read_text())
    assert content["rankdet"] == rankdet.__version__
    assert content["num_faults"] == 3
    assert content["verdict"] == lines(result)[-1]
    assert (content["data"], content["format"]) == (str(faulty), "coco")
    assert [split["name"] for split in content["splits"]] == ["train", "val"]
    for split in content["splits"]:
        for what in ("images", "objects"):
            tally = split[what]
            assert tally["seen"] == tally["used"] + sum(tally["dropped"].values())
        rows = split["statistics"]["classes"]
        assert sum(row["num_objects"] for row in rows) == split["objects"]["used"]
        faults = [found for found in split["findings"] if found["level"] == "fault"]
        assert sum(found["count"] for found in faults) == split["num_faults"]
    (overlap,) = content["between_splits"]
    (example,) = overlap["examples"]
    assert set(example) == {
        *("code", "level", "outcome", "file", "where", "field"),
        *("value", "rule", "detail", "hint", "text"),
    }
    assert example["code"] == "image-in-two-splits"


def test_json_on_standard_output_stands_alone(faulty: Path) -> None:
    result = invoke("check", str(faulty), "--workers", "0", "--json", "-")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["num_faults"] == 3
    assert "Images and objects" in result.stderr


def test_json_never_replaces_a_foreign_file(good: Path, tmp_path: Path) -> None:
    target = good / "annotations" / "instances_train.json"
    before = target.read_bytes()
    result = invoke("check", str(good), "--workers", "0", "--json", str(target))
    assert isinstance(result.exception, RankdetError)
    assert "--force" in str(result.exception)
    assert target.read_bytes() == before
    assert result.stdout == ""  # refused before the work, not after

    own = tmp_path / "report.json"
    for _ in range(2):
        assert invoke("check", str(good), "--workers", "0", "--json", str(own)).exit_code == 0
    own.write_text("notes")
    result = invoke("check", str(good), "--workers", "0", "--json", str(own), "--force")
    assert result.exit_code == 0
    assert json.loads(own.read_text())["report"] == "rankdet check"


def test_an_unreadable_split_is_in_the_json(good: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    arguments = ("--split", "train", "--split", "nothing", "--workers", "0", "--json", str(out))
    result = invoke("check", str(good), *arguments)
    assert result.exit_code == 1
    assert "Split nothing cannot be read:" in result.stdout
    (entry,) = json.loads(out.read_text())["unreadable_splits"]
    assert (entry["name"], entry["code"]) == ("nothing", "split-unknown")


def test_moving_an_image_to_skipped_keeps_the_sums() -> None:
    found = Findings()
    found.images.seen = found.images.used = 2
    found.objects.seen = found.objects.used = 5
    found.num_ignored = 2
    finding = checking.Finding.of("image-corrupt", file="a.png")
    found.unuse_image(finding, num_objects=3, num_ignored=1)
    assert found.images.as_dict() == {"seen": 2, "used": 1, "dropped": {"image-corrupt": 1}}
    assert found.objects.as_dict() == {"seen": 5, "used": 2, "dropped": {"image-corrupt": 3}}
    assert found.num_ignored == 1
    assert found.num_faults == 1


def test_splits_with_other_classes_are_a_fault(tmp_path: Path) -> None:
    coco(tmp_path, "train", {"a.png": [(1, 0, 0, 9, 9)]}, classes=["cat", "dog"])
    coco(tmp_path, "val", {"b.png": [(1, 0, 0, 8, 8)]}, classes=["dog", "cat"])
    report = check(tmp_path)
    (finding,) = report.between.examples["split-classes"]
    assert "Compared with train: the order differs." in str(finding)
    assert report.num_faults == 1
    assert invoke("check", str(tmp_path), "--workers", "0").exit_code == 1


def test_the_class_that_only_one_split_has_is_named(tmp_path: Path) -> None:
    coco(tmp_path, "train", {"a.png": [(1, 0, 0, 9, 9)]}, classes=["cat", "dog"])
    coco(tmp_path, "val", {"b.png": [(1, 0, 0, 8, 8)]}, classes=["cat", "bird"])
    (finding,) = check(tmp_path).between.examples["split-classes"]
    assert "only one of them has 'bird', 'dog'." in str(finding)
