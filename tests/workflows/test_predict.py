"""`rankdet predict`: images found, results written, and what goes wrong on the way."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools.coco import COCO

from rankdet.data.reading.formats import read_split
from rankdet.errors import CheckpointError, DataError, RankdetError
from rankdet.structures import Detections
from rankdet.workflows import predict as module
from rankdet.workflows.load import load
from rankdet.workflows.pictures import class_colour
from rankdet.workflows.predict import Entry, Found, csv_content, find_images, name_entries, predict


def write_image(path: Path, seed: int = 0, size: tuple[int, int] = (100, 70)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size).save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for number, name in enumerate(("b.png", "a.JPG", "c.bmp")):
        write_image(folder / name, seed=number, size=(100 + 10 * number, 70))
    (folder / "notes.txt").write_text("not an image")
    write_image(folder / ".hidden.png")
    write_image(folder / "inside" / "d.png")
    return folder


def run_predict(run: Path, images: list[Path], out: Path, **settings: Any) -> None:
    predict(run, images, out, device="cpu", **settings)


def read_json(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "detections.json").read_text())
    return content


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read_rows(out: Path) -> list[dict[str, str]]:
    with (out / "detections.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


# --- results


def test_all_results_of_a_folder_are_those_of_the_detector(
    tiny_run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run_predict(tiny_run, [photos], out)
    trained = load(tiny_run, device="cpu")
    names = ["a.JPG", "b.png", "c.bmp"]
    wanted = trained.predict([photos / name for name in names])
    num_found = sum(map(len, wanted))
    assert num_found > 5

    content = read_json(out)
    assert [image["file_name"] for image in content["images"]] == names
    assert [(image["width"], image["height"]) for image in content["images"]] == [
        (110, 70),
        (100, 70),
        (120, 70),
    ]
    assert content["categories"] == [
        {"id": 3, "name": "cat"},
        {"id": 5, "name": "dog"},
        {"id": 18, "name": "bus"},
    ]
    info = content["info"]
    assert info["checkpoint"] == "step-00000001"
    assert info["thresholds"] == {"cat": 0.3, "dog": 0.1, "bus": 0.2}
    rows = read_rows(out)
    assert len(rows) == len(content["annotations"]) == num_found
    position = 0
    for image, name, detections in zip(content["images"], names, wanted, strict=True):
        for box, score, label in zip(
            detections.boxes, detections.scores, detections.labels, strict=True
        ):
            item, row = content["annotations"][position], rows[position]
            position += 1
            x1, y1, x2, y2 = box.tolist()
            assert item["id"] == position
            assert item["image_id"] == image["id"]
            assert item["category_id"] == (3, 5, 18)[int(label)]
            assert item["bbox"] == pytest.approx([x1, y1, x2 - x1, y2 - y1], abs=2e-3)
            assert item["area"] == pytest.approx((x2 - x1) * (y2 - y1), rel=1e-3)
            assert torch.tensor(item["score"]) == score  # the order of close scores is kept
            assert item["iscrowd"] == 0
            assert row["file"] == name
            assert row["class"] == ("cat", "dog", "bus")[int(label)]
            assert float(row["score"]) == item["score"]
            corners = [float(row[edge]) for edge in ("x1", "y1", "x2", "y2")]
            assert corners == pytest.approx([x1, y1, x2, y2], abs=1e-3)
    assert names_in(out / "pictures") == ["a.jpg", "b.jpg", "c.jpg"]
    printed = capsys.readouterr()
    assert printed.out.startswith(f"3 images, {num_found} detections: ")
    for place in ("pictures", "detections.json", "detections.csv"):
        assert str(out / place) in printed.out
    assert "note" not in printed.err


def test_the_heading_of_the_csv_file_is_as_documented(
    tiny_run: Path, photos: Path, tmp_path: Path
) -> None:
    run_predict(tiny_run, [photos], tmp_path / "out", format="csv", with_pictures=False)
    text = (tmp_path / "out" / "detections.csv").read_text()
    assert text.startswith("file,class,score,x1,y1,x2,y2\na.JPG,")
    assert names_in(tmp_path / "out") == ["detections.csv"]


def test_only_what_was_asked_for_is_written(tiny_run: Path, photos: Path, tmp_path: Path) -> None:
    run_predict(tiny_run, [photos / "b.png"], tmp_path / "out", format="json")
    assert names_in(tmp_path / "out") == ["detections.json", "pictures"]


def test_a_picture_shows_what_was_found(tiny_run: Path, photos: Path, tmp_path: Path) -> None:
    run_predict(tiny_run, [photos / "b.png"], tmp_path / "out")
    (best, *_) = load(tiny_run, device="cpu").predict(photos / "b.png")
    with Image.open(tmp_path / "out" / "pictures" / "b.jpg") as image:
        assert image.size == (600, 420)
        pixels = np.asarray(image).astype(int)
    colour = np.array(class_colour(int(best.labels[0])))
    x1, _, x2, y2 = (best.boxes[0] * 6).round().int().tolist()
    middle = pixels[max(0, y2 - 2) : y2, (x1 + x2) // 2]
    assert np.abs(middle - colour).max(axis=1).min() < 30  # JPEG blurs the line a little


def test_pycocotools_and_our_own_reader_read_the_file(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    for number in range(2):
        write_image(data / "val" / f"{number}.png", seed=number)
    run_predict(tiny_run, [data / "val"], tmp_path / "out", with_pictures=False)
    content = read_json(tmp_path / "out")
    (data / "annotations").mkdir()
    file = data / "annotations" / "instances_val.json"
    (tmp_path / "out" / "detections.json").rename(file)

    split = read_split(data, "val")
    assert split.classes == ("cat", "dog", "bus")
    assert split.findings.num_faults == 0
    assert len(split) == 2
    assert len(split.annotations.boxes) == len(content["annotations"]) > 0

    coco = COCO(str(file))
    assert len(coco.getAnnIds()) == len(content["annotations"])
    assert [image["file_name"] for image in coco.loadImgs(coco.getImgIds())] == ["0.png", "1.png"]


def test_nothing_found_is_a_result_too(
    tiny_run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_predict(tiny_run, [photos / "b.png"], tmp_path / "out", threshold=1.0)
    assert read_json(tmp_path / "out")["annotations"] == []
    assert len(read_json(tmp_path / "out")["images"]) == 1
    assert read_rows(tmp_path / "out") == []
    assert (tmp_path / "out" / "pictures" / "b.jpg").exists()
    said = capsys.readouterr().out
    assert said.startswith("1 image, 0 detections.\nNo score reaches 1: leave out --threshold")


@pytest.mark.parametrize("batch_size", [None, 1, 2, 7])
def test_the_order_is_that_of_the_names_for_every_batch_size(
    tiny_run: Path, photos: Path, tmp_path: Path, batch_size: int | None
) -> None:
    run_predict(
        tiny_run,
        [photos],
        tmp_path / "out",
        batch_size=batch_size,
        format="json",
        with_pictures=False,
    )
    names = [image["file_name"] for image in read_json(tmp_path / "out")["images"]]
    assert names == ["a.JPG", "b.png", "c.bmp"]


def test_a_threshold_and_a_checkpoint_can_be_chosen(
    tiny_run: Path, photos: Path, tmp_path: Path
) -> None:
    run_predict(tiny_run, [photos], tmp_path / "out", threshold=0.0, checkpoint="last")
    content = read_json(tmp_path / "out")
    assert len(content["annotations"]) == 60  # the most that an image may have, in each
    assert content["info"]["checkpoint"] == "step-00000002"
    assert content["info"]["thresholds"] == {"cat": 0.0, "dog": 0.0, "bus": 0.0}


def test_missing_thresholds_are_noted_unless_one_is_given(
    tiny_run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tiny_run / "results.json").unlink()
    run_predict(tiny_run, [photos], tmp_path / "out", with_pictures=False)
    assert "note: The run was never evaluated" in capsys.readouterr().err
    run_predict(tiny_run, [photos], tmp_path / "out", threshold=0.3, with_pictures=False)
    assert "note" not in capsys.readouterr().err


def test_a_format_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="xml"):
        predict(tmp_path, [], tmp_path, format="xml")


# --- images that cannot be read


def test_bad_images_are_told_and_the_others_go_on(
    tiny_run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "aa.jpg").write_text("<html>")
    (photos / "bb.jpg").write_bytes((photos / "a.JPG").read_bytes()[:400])
    missing = tmp_path / "missing.png"
    with pytest.raises(RankdetError, match=r"^3 of 6 images could not be read"):
        run_predict(tiny_run, [photos, missing], tmp_path / "out", batch_size=2)
    names = [image["file_name"] for image in read_json(tmp_path / "out")["images"]]
    assert names == ["photos/a.JPG", "photos/b.png", "photos/c.bmp"]
    assert names_in(tmp_path / "out" / "pictures") == ["a.jpg", "b.jpg", "c.jpg"]
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("left out")]
    assert len(lines) == 3
    assert str(photos / "aa.jpg") in lines[0]
    assert "web page" in lines[0] or "HTML" in lines[0]
    assert str(photos / "bb.jpg") in lines[1]
    assert str(missing) in lines[2]


def test_images_of_which_none_can_be_read(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("")
    with pytest.raises(RankdetError, match=r"^1 of 1 image could not be read"):
        run_predict(tiny_run, [tmp_path / "a.jpg"], tmp_path / "out")
    assert read_json(tmp_path / "out")["images"] == []


# --- which images


def test_images_are_found_in_folders_and_taken_as_files(photos: Path) -> None:
    (photos / "folder.png").mkdir()
    odd = photos / "notes.txt"
    assert [path.name for path in find_images([photos])] == ["a.JPG", "b.png", "c.bmp"]
    found = find_images([photos / "c.bmp", photos, odd, photos / "inside" / ".." / "b.png"])
    assert [path.name for path in found] == ["c.bmp", "a.JPG", "b.png", "notes.txt"]


def test_a_folder_without_images_is_refused(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no image in the folder.*\.jpg.*Folders inside"):
        find_images([photos, tmp_path / "empty"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    with pytest.raises(DataError, match="Permission denied"):
        find_images([tmp_path / "locked"])


def test_no_images_at_all_are_refused(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(RankdetError, match="no image to look at"):
        run_predict(tiny_run, [], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_names_are_relative_to_the_common_folder_and_pictures_all_different() -> None:
    paths = [Path(name) for name in ("x/a.jpg", "x/a.png", "x/y/A.jpg", "x/a-2.jpg", "x/b.c.jpg")]
    entries = name_entries(paths)
    assert [entry.name for entry in entries] == [
        "a.jpg",
        "a.png",
        "y/A.jpg",
        "a-2.jpg",
        "b.c.jpg",
    ]
    assert [entry.picture for entry in entries] == [
        "a.jpg",
        "a-2.jpg",
        "A-3.jpg",
        "a-2-2.jpg",
        "b.c.jpg",
    ]


def test_a_name_of_a_single_image_is_its_last_part(tmp_path: Path) -> None:
    assert [entry.name for entry in name_entries([tmp_path / "deep" / "a.jpg"])] == ["a.jpg"]


def test_a_very_long_name_still_has_a_picture(tiny_run: Path, tmp_path: Path) -> None:
    file = write_image(tmp_path / f"{'ü' * 120}.png")  # 244 bytes: hardly any room beside it
    run_predict(tiny_run, [file], tmp_path / "out")
    (name,) = names_in(tmp_path / "out" / "pictures")
    assert name == f"{'ü' * 100}.jpg"


# --- nothing of the user's is destroyed


@pytest.mark.parametrize("name", ["detections.json", "detections.csv", "pictures/b.jpg"])
def test_a_foreign_file_is_not_overwritten(
    tiny_run: Path, photos: Path, tmp_path: Path, name: str
) -> None:
    foreign = tmp_path / "out" / name
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    with pytest.raises(RankdetError, match=r"was not written by this command"):
        run_predict(tiny_run, [photos], tmp_path / "out")
    assert foreign.read_text() == "mine"
    run_predict(tiny_run, [photos], tmp_path / "out", is_forced=True)
    assert b"mine" not in foreign.read_bytes()[:10]


def test_former_results_are_replaced_and_other_files_stay(
    tiny_run: Path, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run_predict(tiny_run, [photos], out)
    (out / "mine.txt").write_text("mine")
    before = (out / "pictures" / "b.jpg").read_bytes()
    run_predict(tiny_run, [photos], out, threshold=1.0)
    assert read_json(out)["annotations"] == []
    assert (out / "pictures" / "b.jpg").read_bytes() != before
    assert (out / "mine.txt").read_text() == "mine"


def test_an_image_is_never_replaced_by_its_picture(tiny_run: Path, tmp_path: Path) -> None:
    file = write_image(tmp_path / "out" / "pictures" / "a.jpg")
    before = file.read_bytes()
    for is_forced in (False, True):
        with pytest.raises(RankdetError, match="this is one of the images"):
            run_predict(tiny_run, [file], tmp_path / "out", is_forced=is_forced)
    assert file.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_told_before_the_work(
    tiny_run: Path, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RankdetError, match="the folder cannot be made"):
        run_predict(tiny_run, [photos], tmp_path / "file")


def test_a_folder_that_is_no_run_is_told(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        run_predict(tmp_path / "no run", [photos], tmp_path / "out")


# --- odd names


def found(name: str, label: int = 0) -> Found:
    detections = Detections(
        torch.tensor([[1.0, 2.0, 3.0, 4.5]]), torch.tensor([0.25]), torch.tensor([label])
    )
    return Found(Entry(Path(name), name, "p.jpg"), (10, 20), detections)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_cell_begins_as_a_formula_does(start: str) -> None:
    content = csv_content([found(f"{start}a.jpg")], [f"{start}cmd"])
    (_, row) = csv.reader(io.StringIO(content.decode(), newline=""))
    assert row == [f"./{start}a.jpg", f"'{start}cmd", "0.25", "1.0", "2.0", "3.0", "4.5"]


def test_names_with_commas_and_quotes_are_one_cell() -> None:
    content = csv_content([found('a,"b".jpg', 1)], ["x", "y, z"])
    (_, row) = csv.reader(io.StringIO(content.decode(), newline=""))
    assert row[:2] == ['a,"b".jpg', "y, z"]


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes")
def test_a_name_that_is_no_text_is_kept(tiny_run: Path, tmp_path: Path) -> None:
    source = write_image(tmp_path / "a.png")
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png"))
    source.rename(file)
    run_predict(tiny_run, [file], tmp_path / "out")
    assert os.fsencode(read_json(tmp_path / "out")["images"][0]["file_name"]) == b"\xff.png"
    assert b"\n\xff.png," in (tmp_path / "out" / "detections.csv").read_bytes()
    assert names_in(tmp_path / "out" / "pictures") == [os.fsdecode(b"\xff.jpg")]


def test_the_summary_names_the_commonest_classes(
    capsys: pytest.CaptureFixture[str], tiny_run: Path
) -> None:
    trained = load(tiny_run, device="cpu")
    many = module.Results(found=[found("a", 1), found("b", 1), found("c", 0)])
    module._report(many, trained, {Path("out/pictures/a.jpg"): "", Path("out/x.json"): ""}, None)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "3 images, 3 detections: dog 2, cat 1.",
        f"Written: {Path('out/pictures')}, {Path('out/x.json')}",
    ]
