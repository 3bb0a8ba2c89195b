"""`rankdet view`: a page that stands alone, hides nothing, and escapes every name."""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from rankdet import cli
from rankdet.data.checking import view
from rankdet.data.reading.findings import Finding, Findings
from rankdet.errors import DataError, RankdetError


class Page(HTMLParser):
    """The tags (with their attributes) and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, kind: str = "") -> list[dict[str, str]]:
        """The attributes of every such tag, of one class if `kind` is given."""
        return [
            a for t, a in self.tags if t == tag and (kind in a.get("class", "").split() or not kind)
        ]


def sample(name: str = "a.jpg", **changes: Any) -> view.Sample:
    """A picture of 200 x 100 with one box."""
    given = {
        "name": name,
        "pixels": np.full((100, 200, 3), 90, dtype=np.uint8),
        "error": "",
        "size": (200, 100),
        "boxes": np.array([[50, 20, 150, 70]], dtype=np.float32),
        "labels": np.array([0]),
        "is_ignored": np.array([False]),
    }
    return view.Sample(**(given | changes))


def section(*samples: view.Sample, **changes: Any) -> view.Section:
    given = {
        "name": "train",
        "classes": ("cat", "dog"),
        "num_images": 1234,
        "num_objects": 5,
        "num_ignored": 1,
        "counts": {"cat": 4, "dog": 1},
        "findings": None,
        "samples": list(samples),
    }
    return view.Section(**(given | changes))


def page(*sections: view.Section, **arguments: Any) -> Page:
    return Page(view.render_page(sections, "some data", **arguments).decode())


def coco(folder: Path, num_images: int = 6, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    """A data set of noise; image i has one object of class i modulo the number of classes."""
    (folder / "annotations").mkdir(parents=True)
    (folder / "train").mkdir()
    generator = np.random.default_rng(0)
    images, annotations = [], []
    for number in range(num_images):
        name = f"{number}.png"
        pixels = generator.integers(0, 256, (50, 100, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "train" / name)
        images.append({"id": number + 1, "file_name": name, "width": 100, "height": 50})
        annotations.append(
            {
                "id": number + 1,
                "image_id": number + 1,
                "category_id": number % len(classes) + 1,
                "bbox": [10, 10, 30, 30],
                "area": 900,
                "iscrowd": 0,
            }
        )
    content = {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": i, "name": name} for i, name in enumerate(classes, start=1)],
    }
    (folder / "annotations" / "instances_train.json").write_text(json.dumps(content))
    return folder


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["view", *arguments], env={"COLUMNS": "200"})


def written(*arguments: str, out: Path) -> str:
    result = invoke(*arguments, "--out", str(out))
    assert result.exit_code == 0, result.output
    return out.read_text(encoding="utf-8")


def shown(text: str) -> list[str]:
    return re.findall(r'alt="([^:"]*):', text)


def test_a_box_stands_at_its_place() -> None:
    (halo, edge) = page(section(sample())).all("rect")
    for rect in (halo, edge):
        place = [rect[name] for name in ("x", "y", "width", "height")]
        assert place == ["25.0%", "20.0%", "50.0%", "50.0%"]
    (label,) = page(section(sample())).all("span", "name")
    assert label["style"] == "left: 25.0%; top: 20.0%"


def test_a_name_near_the_right_edge_ends_with_its_box() -> None:
    boxes = np.array([[140, 20, 190, 70]], dtype=np.float32)
    (label,) = page(section(sample(boxes=boxes))).all("span", "name")
    assert label["style"] == "right: 5.0%; top: 20.0%"


def test_small_boxes_are_drawn_without_a_name_on_top_of_the_large_ones() -> None:
    boxes = np.array([[50, 20, 60, 30], [0, 0, 150, 70]], dtype=np.float32)
    many = sample(boxes=boxes, labels=np.array([0, 1]), is_ignored=np.array([False, False]))
    result = page(section(many))
    assert [rect["width"] for rect in result.all("rect", "edge")] == ["75.0%", "5.0%"]
    assert len(result.all("span", "name")) == 1
    assert "1 cat, 1 dog" in result.text


def test_ignored_boxes_are_dashed() -> None:
    plain, ignored = section(sample()), section(sample(is_ignored=np.array([True])))
    assert page(plain).all("rect", "ignored") == []
    assert len(page(ignored).all("rect", "ignored")) == 2
    assert "1 cat (1 ignored)" in page(ignored).text
    assert "dashed: ignored" in page(ignored).text


def test_a_class_has_one_colour_everywhere() -> None:
    first = section(sample(labels=np.array([1])))
    second = section(sample(), classes=("dog",), counts={"dog": 1}, name="val")
    result = page(first, second)
    colours = [rect["class"] for rect in result.all("rect", "edge")]
    assert colours == ["edge s1", "edge s1"]
    assert [a["class"] for a in result.all("span", "swatch")][:2] == ["swatch c0", "swatch c1"]


def test_more_classes_than_colours_begin_anew() -> None:
    names = tuple(f"class {i}" for i in range(len(view.COLOURS) + 1))
    result = page(section(sample(labels=np.array([len(view.COLOURS)])), classes=names, counts={}))
    assert result.all("rect", "edge")[0]["class"] == "edge s0"


def test_names_on_colours_can_be_read() -> None:
    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    for colour in view.COLOURS:
        pair = (luminance(colour), 1.0 if view.ink(colour) == "#fff" else 0.0)
        assert (max(pair) + 0.05) / (min(pair) + 0.05) > 4.5, colour


def test_names_cannot_become_markup() -> None:
    evil = '"><script>alert(1)</script>{{ 7 * 7 }}&amp;'
    found = Findings()
    found.add(view_finding(evil))
    result = page(
        section(
            sample(f"folder/{evil}"),
            sample(evil, pixels=None, error=evil),
            name=evil,
            classes=(evil, "dog"),
            counts={evil: 1, "dog": 2},
            findings=found,
        ),
        classes=[evil],
    )
    assert result.all("script") == []
    assert result.text.count("<script>alert(1)") >= 5
    assert "49" not in result.text
    assert any(evil.rpartition("/")[2] in image["alt"] for image in result.all("img"))
    raw = view.render_page([section(name=evil)], evil).decode()
    assert "<script" not in raw


def view_finding(file: str) -> Finding:
    return Finding.of("box-outside", file=file)


def test_names_of_odd_bytes_can_be_written() -> None:
    text = view.render_page([section(sample("\udcff\x00.jpg"))], "\udcfe").decode("utf-8")
    assert "\\udcff" in text
    assert "\x00" not in text


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    text = written(str(coco(tmp_path / "data")), out=tmp_path / "page.html")
    rest = re.sub(r"data:image/jpeg;base64,[A-Za-z0-9+/=]+", "", text)
    assert re.findall(r"https?:|//[a-z]|url\(|@import|<script|<link|<iframe", rest) == []
    result = Page(text)
    assert all(image["src"].startswith("data:image/jpeg;base64,") for image in result.all("img"))
    policies = [a["content"] for a in result.all("meta") if "http-equiv" in a]
    assert len(policies) == 1
    assert "default-src 'none'" in policies[0]


def test_pictures_are_scaled_down_but_never_up() -> None:
    for size, expected in (((1000, 500), (480, 240)), ((30, 20), (30, 20)), ((1, 999), (1, 480))):
        address = view.data_address(np.zeros((size[1], size[0], 3), dtype=np.uint8))
        content = base64.b64decode(address.partition(",")[2])
        with Image.open(io.BytesIO(content)) as image:
            assert image.size == expected


def test_every_picture_has_a_text_for_those_who_do_not_see_it() -> None:
    (image,) = page(section(sample())).all("img")
    assert image["alt"] == "a.jpg: 1 cat"
    nothing = sample(boxes=np.zeros((0, 4)), labels=np.zeros(0, int), is_ignored=np.zeros(0, bool))
    (image,) = page(section(nothing)).all("img")
    assert image["alt"] == "a.jpg: no objects"


def test_a_broken_picture_is_shown_as_its_error(tmp_path: Path) -> None:
    data = coco(tmp_path / "data")
    broken = data / "train" / "3.png"
    broken.write_bytes(broken.read_bytes()[:2000])
    text = written(str(data), out=tmp_path / "page.html")
    result = Page(text)
    assert len(result.all("figure")) == 6
    assert len(result.all("img")) == 5
    assert f"{broken}: the image" in result.text


def test_a_split_that_cannot_be_read_is_shown_as_its_error(tmp_path: Path) -> None:
    data = coco(tmp_path / "data")
    options = ("--split", "train", "--split", "<b>", "--count", "2")
    result = Page(written(str(data), *options, out=tmp_path / "page.html"))
    assert len(result.all("img")) == 2
    assert result.all("b") == []
    assert "there is no such split" in result.text
    alone = invoke(str(data), "--split", "nothing", "--out", str(tmp_path / "other.html"))
    assert isinstance(alone.exception, DataError)
    assert not (tmp_path / "other.html").exists()


def test_findings_of_reading_are_on_the_page(tmp_path: Path) -> None:
    data = coco(tmp_path / "data")
    (data / "train" / "2.png").unlink()
    result = Page(written(str(data), out=tmp_path / "page.html"))
    assert "fault image-missing: 1 (image skipped)" in result.text
    assert str(data / "train" / "2.png") in result.text
    assert "5 of 6 images and 5 of 6 objects are used." in result.text


def test_the_same_seed_gives_the_same_page_and_another_one_another(tmp_path: Path) -> None:
    data = str(coco(tmp_path / "data", 40))
    options = ("--count", "5")
    first = written(data, *options, out=tmp_path / "1.html")
    assert written(data, *options, out=tmp_path / "2.html") == first
    other = written(data, *options, "--seed", "1", out=tmp_path / "3.html")
    assert len(shown(first)) == len(shown(other)) == 5
    assert shown(first) != shown(other)
    numbers = [int(name.removesuffix(".png")) for name in shown(first)]
    assert numbers == sorted(numbers)


def test_a_class_chooses_the_pictures(tmp_path: Path) -> None:
    data = str(coco(tmp_path / "data"))
    text = written(data, "--class", "dog", out=tmp_path / "page.html")
    assert shown(text) == ["1.png", "3.png", "5.png"]
    both = written(data, "--class", "dog", "--class", "cat", out=tmp_path / "page.html")
    assert len(shown(both)) == 6
    assert "of those that show dog or cat" in both


def test_an_unknown_class_is_told_with_those_that_exist(tmp_path: Path) -> None:
    data = str(coco(tmp_path / "data"))
    result = invoke(data, "--class", "dgo", "--out", str(tmp_path / "page.html"))
    assert isinstance(result.exception, RankdetError)
    assert "Did you mean 'dog'?" in str(result.exception)
    result = invoke(data, "--class", "spaceship", "--out", str(tmp_path / "page.html"))
    assert "cat, dog" in str(result.exception)
    assert not (tmp_path / "page.html").exists()


def test_a_foreign_file_is_not_replaced(tmp_path: Path) -> None:
    data, out = str(coco(tmp_path / "data")), tmp_path / "page.html"
    out.write_text("my notes")
    result = invoke(data, "--out", str(out))
    assert isinstance(result.exception, RankdetError)
    assert out.read_text() == "my notes"
    assert "<!DOCTYPE html>" in written(data, "--force", out=out)
    written(data, out=out)  # its own page may be replaced


def test_every_page_bears_the_mark() -> None:
    assert view.MARK.encode() in view.render_page([section()], "x" * 500)[:1000]


def test_the_command_says_where_the_page_is(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = invoke(str(coco(tmp_path / "data")), "--out", str(out))
    assert result.stdout == f"Wrote {out}: 6 pictures, {out.stat().st_size / 1e6:.1f} MB.\n"


def test_a_page_is_not_written_without_a_name(tmp_path: Path) -> None:
    result = invoke(str(coco(tmp_path / "data")))
    assert result.exit_code == 2
    assert "--out" in result.output


def test_numbers_of_the_splits() -> None:
    result = page(section(sample()), section(name="val", num_objects=None, num_ignored=None))
    assert "1,234" in result.text
    assert "–" in result.text
    assert "No picture to show." in result.text


def test_the_embedded_data_set_can_be_seen(tmp_path: Path) -> None:
    result = Page(written("synthetic", "--count", "2", out=tmp_path / "page.html"))
    assert len(result.all("img")) == 4
    assert {"train", "val"} <= set(result.text.split())
    options = ("--split", "val:30", "--class", "star", "--count", "3")
    text = written("synthetic", *options, out=tmp_path / "page.html")
    captions = re.findall(r'alt="[^"]*"', text)
    assert len(captions) == 3
    assert all("star" in caption for caption in captions)


def test_files_are_seen_without_torch(tmp_path: Path) -> None:
    data = coco(tmp_path / "data")
    code = f"""
import sys
from rankdet.cli import main
sys.argv = ["rankdet", "view", {str(data)!r}, "--out", {str(tmp_path / "page.html")!r}]
try:
    main()
except SystemExit as end:
    print("status", end.code)
print("heavy:", sorted(set(sys.modules) & {{"torch", "torchvision", "matplotlib"}}))
"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.stdout.splitlines()[-2:] == ["status 0", "heavy: []"], result.stderr


@pytest.mark.parametrize("option", ["--format", "--classes"])
def test_the_embedded_set_has_no_other_format_or_classes(tmp_path: Path, option: str) -> None:
    (tmp_path / "names.txt").write_text("cat")
    value = {"--format": "voc", "--classes": str(tmp_path / "names.txt")}[option]
    result = invoke("synthetic", option, value, "--out", str(tmp_path / "page.html"))
    assert result.exit_code == 2
    assert not (tmp_path / "page.html").exists()
