"""Bad COCO files: JSON itself, its structure, encodings and paths."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rankdet.bench.bad_case import (
    COCO_TRAIN,
    Case,
    Files,
    Link,
    coco_document,
    encode,
    picture,
    remove,
    replace,
)
from rankdet.bench.bad_coco import DELETED, FILE, coco_case, image_case, set_value


def _text(name: str, content: str | bytes, code: str = "", value: str = "", **rest: Any) -> Case:
    """Other content of the whole file."""
    spoil = replace(COCO_TRAIN, content)
    file = FILE if code else ""
    return Case(name, "coco", spoil, code, file, "", value, is_refused=bool(code), **rest)


def coco_file_cases() -> Iterator[Case]:
    yield from _syntax()
    yield from _structure()
    yield from _encodings()
    yield from _paths()


def deep_json(levels: int) -> str:
    return "[" * levels + "]" * levels


def _syntax() -> Iterator[Case]:
    sound = json.dumps(coco_document("train"), indent=1)
    for constant in ("NaN", "Infinity", "-Infinity"):
        spoilt = sound.replace('"area": 960', f'"area": {constant}')
        yield _text(f"{constant} in JSON", spoilt, "json-not-finite", constant)
    spoilt = sound.replace('"bbox": [\n    10', '"bbox": [\n    1e999')
    yield Case(
        "1e999 in JSON", "coco", replace(COCO_TRAIN, spoilt), "box-not-finite", FILE, "bbox", "inf"
    )
    twice = sound.replace('"area": 960', '"area": 960, "area": 1')
    yield _text("a JSON key twice", twice, "json-duplicate-key", "area")
    yield _text("100,000 levels of JSON", deep_json(100_000), "json-too-deep")
    yield _text("JSON that ends too early", sound[: len(sound) // 2], "json-malformed", "Line")
    yield _text("an empty JSON file", "", "json-malformed")
    yield _text("a web page named json", "<html>404</html>", "json-malformed", "Line 1")
    yield _text("JSON with a comma too many", sound.replace("960,", "960,,"), "json-malformed")
    yield _text("JSON with single quotes", sound.replace('"', "'"), "json-malformed")
    yield _text("JSON with a comment", "// made by hand\n" + sound, "json-malformed")
    digits = sound.replace('"area": 960', f'"area": {"9" * 10_000}')
    yield _text("an integer of 10,000 digits in JSON", digits, "json-malformed")


def _structure() -> Iterator[Case]:
    structure: dict[str, Any] = {"code": "json-structure", "is_refused": True}
    yield _text("a JSON list where COCO has an object", "[1, 2]", "json-structure", "list")
    yield _text("JSON null where COCO has an object", "null", "json-structure", "None")
    for key in ("images", "annotations", "categories"):
        yield coco_case(f"COCO without {key}", set_value(key, to=DELETED), field=key, **structure)
        yield coco_case(
            f"COCO {key} that is not a list", set_value(key, to={}), field=key, **structure
        )
    yield coco_case(
        "COCO with an empty list of images",
        lambda d: d["images"].clear(),
        "data-empty",
        file="",
        is_refused=True,
    )

    def without_images(files: Files) -> None:
        for name in [name for name in files if name.startswith("train2017/")]:
            del files[name]

    yield Case(
        "COCO without its folder of images",
        "coco",
        without_images,
        "data-empty",
        is_refused=True,
    )
    yield Case(
        "a COCO split that does not exist",
        "coco",
        remove(COCO_TRAIN),
        "split-unknown",
        value="train2017",
        is_refused=True,
    )


def _encodings() -> Iterator[Case]:
    sound = json.dumps(coco_document("train"), indent=1)
    yield _text("JSON with a byte order mark", sound.encode("utf-8-sig"))
    yield _text("JSON with CRLF", sound.replace("\n", "\r\n"))
    yield _text("JSON in UTF-16", sound.encode("utf-16"))
    named = sound.replace('"id": 1', '"note": "Größe", "id": 1', 1)
    yield _text("JSON in Latin-1", named.encode("latin-1"), "file-encoding", "xf6")
    yield _text("JSON with a null character", sound + "\0", "file-encoding")


def _paths() -> Iterator[Case]:
    for name in ("../../secret.jpg", "/etc/passwd", "x/../../y.jpg", "../val2017/c.jpg"):
        yield image_case(
            f"the COCO file_name {name}", "file_name", name, "image-outside", "file_name", name
        )
    yield image_case(
        "a COCO file_name with a null character",
        "file_name",
        "b\0.jpg",
        "image-entry-invalid",
        "file_name",
    )
    yield image_case(
        "a COCO file_name that no file can have",
        "file_name",
        "\ud800.jpg",
        "image-entry-invalid",
        "file_name",
    )
    yield image_case(
        "a COCO file_name with an escape sequence",
        "file_name",
        "\x1b[31mb.jpg",
        "image-missing",
        "",
        "x1b[31m",
        file="b.jpg",
    )
    yield Case(
        "a COCO image through a link to the outside",
        "coco",
        lambda files: files.update({"train2017/b.jpg": Link("../val2017/c.jpg")}),
        "image-outside",
        FILE,
        "file_name",
        "b.jpg",
    )

    def allowed(files: Files) -> None:
        files["elsewhere/b.jpg"] = encode(picture(ord("b")))
        files["train2017/b.jpg"] = Link("../elsewhere/b.jpg")

    yield Case(
        "a COCO image through a link that is allowed",
        "coco",
        allowed,
        allow_outside=True,
    )
