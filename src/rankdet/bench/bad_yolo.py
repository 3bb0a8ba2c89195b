"""Bad YOLO data: label lines, YAML, encodings and paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rankdet.bench.bad_case import (
    YOLO_YAML,
    Case,
    Files,
    Folder,
    Link,
    encode,
    picture,
    remove,
    replace,
    yolo_text,
)

_LABEL = "labels/train/b.txt"


def _line(
    name: str, text: str, code: str = "", field: str = "", value: str = "", **rest: Any
) -> Case:
    """Another line, the first, in b.txt."""
    rest.setdefault("file", "b.txt:1" if code else "")
    return Case(name, "yolo", replace(_LABEL, text), code, field=field, value=value, **rest)


def _label(name: str, content: str | bytes | Folder | Link, code: str = "", **rest: Any) -> Case:
    """Other content of b.txt; if it cannot be read, nobody knows how many objects it had."""
    if code:
        rest = {"images": (2, 1), "objects": (2, 2), "file": "b.txt", **rest}
    return Case(name, "yolo", replace(_LABEL, content), code, **rest)


def _yaml(
    name: str, content: str | bytes, code: str = "", field: str = "", value: str = "", **rest: Any
) -> Case:
    """Other content of data.yaml."""
    rest.setdefault("is_refused", bool(code))
    file = "data.yaml" if code else ""
    return Case(name, "yolo", replace("data.yaml", content), code, file, field, value, **rest)


def yolo_cases() -> Iterator[Case]:
    yield from _boxes()
    yield from _columns()
    yield from _class_ids()
    yield from _pairs()
    yield from _encodings()
    yield from _yaml_syntax()
    yield from _yaml_content()
    yield from _paths()


def _boxes() -> Iterator[Case]:
    yield _line("a YOLO box of no width", "1 0.5 0.5 0 0.5\n", "box-zero-area", "box")
    yield _line("YOLO corners swapped", "1 0.5 0.5 -0.2 0.5\n", "box-swapped", "width", "-0.2")
    yield _line("a YOLO box a little outside", "1 0.9 0.5 0.3 0.5\n", "box-clipped", "box", "1.05")
    yield _line("a YOLO box far outside", "1 0.99 0.5 0.9 0.5\n", "box-clipped", "box")
    yield _line("a YOLO box mostly outside", "1 1.2 0.5 0.6 0.5\n", "box-outside", "box", "1.5")
    yield _line("a YOLO box in pixels", "1 30 24 40 24\n", "coordinates-in-pixels", value="30")
    for text in ("nan", "inf", "-inf", "1e999"):
        yield _line(
            f"{text} in a YOLO line", f"1 0.5 {text} 0.5 0.5\n", "box-not-finite", value=text
        )
    for text in ("left", "0x1", "0,5", "0_1", "٠.٥"):
        yield _line(
            f"{text!r} in a YOLO line", f"1 0.5 {text} 0.5 0.5\n", "box-not-a-number", value=text
        )

    def corners(files: Files) -> None:
        files["labels/train/a.txt"] = b"0 0.125 0.2 0.375 0.6\n1 0.5 0.2 0.94 0.83\n"
        files[_LABEL] = b"1 0.6 0.6 0.95 0.95\n1 0.7 0.5 0.9 0.9\n1 0.6 0.7 0.8 0.95\n"

    yield Case(
        "YOLO corners given as centre and size",
        "yolo",
        corners,
        "coordinates-as-corners",
        "a.txt:1",
        value="5 of 5",
        objects=(5, 5),
        also=("box-clipped",) * 5,
    )
    many = "".join(f"1 0.5 0.5 {0.1 + i % 40 / 100} 0.5\n" for i in range(1500))
    yield _line(
        "thousands of boxes in a YOLO image",
        many,
        "box-count",
        "boxes",
        "1500",
        file="b.txt",
        objects=(1502, 1502),
    )


def _columns() -> Iterator[Case]:
    sound = yolo_text("b")
    columns = "line-columns"
    yield _line("a YOLO line with 4 columns", "1 0.5 0.5 0.5\n", columns, value="0.5 0.5 0.5")
    yield _line("a YOLO line with 6 columns", "1 0.5 0.5 0.5 0.5 0.9\n", columns, value="0.9")
    yield _line("a YOLO polygon", "1 0.1 0.1 0.5 0.1 0.5 0.5 0.1 0.5\n", columns, value="0.1")
    yield _line("a YOLO line with commas", "1,0.5,0.5,0.5,0.5\n", columns, value="1,0.5")
    yield _line("a YOLO line of text", "hello\n", columns, value="hello")
    yield _line("a YOLO line with a very long word", "9" * 5000 + "\n", columns, value="999...")
    second = sound + "1 0.5\n"
    yield _line("a bad second line in YOLO", second, columns, file="b.txt:2", objects=(4, 3))
    yield _label("a YOLO file with tabs", sound.replace(" ", "\t"))
    yield _label("a YOLO file with blank lines", f"\n\n{sound}\n  \n")
    yield _label("a YOLO file without a last line end", sound.rstrip())


def _class_ids() -> Iterator[Case]:
    box = " 0.5 0.5 0.5 0.5\n"
    yield _line("an unknown YOLO class", "7" + box, "class-unknown", "class", "7")
    yield _line("a YOLO class below 0", "-1" + box, "class-unknown", "class", "-1")
    yield _line("a YOLO class that is a name", "dog" + box, "field-invalid", "class", "dog")
    yield _line("a YOLO class with a fraction", "0.5" + box, "field-invalid", "class", "0.5")
    yield _line("a YOLO class that is huge", "9" * 400 + box, "field-invalid", "class", "999")
    yield _line("a YOLO class that is NaN", "nan" + box, "field-invalid", "class", "nan")
    yield _line("a YOLO class written as 1.0", "1.0" + box)
    three = YOLO_YAML + "  2: owl\n"

    def from_one(files: Files) -> None:
        files["labels/train/a.txt"] = ("1" + box + "2" + box).encode()
        files[_LABEL] = ("2" + box).encode()

    yield Case(
        "YOLO class ids that start at 1",
        "yolo",
        from_one,
        "class-ids-from-one",
        objects=(3, 1),
        also=("class-unknown", "class-unknown", "class-empty", "all-objects-dropped"),
    )
    comment = "1" + box.rstrip() + " # a dog\n"
    yield _line("a comment in a YOLO label", comment, "line-columns", value="Comments are not")
    spoil = replace("data.yaml", three)
    yield Case("a YOLO class without objects", "yolo", spoil, "class-empty", value="owl")


def _pairs() -> Iterator[Case]:
    yield Case(
        "a YOLO label without image",
        "yolo",
        remove("images/train/b.jpg"),
        "label-without-image",
        "b.txt",
        objects=(2, 2),
    )
    yield Case(
        "a YOLO image without label",
        "yolo",
        remove(_LABEL),
        "image-without-label",
        "b.jpg",
        objects=(2, 2),
        also=("no-objects",),
    )
    empty: dict[str, Any] = {"images": (2, 2), "objects": (2, 2)}
    yield _label("an empty YOLO label", "", "no-objects", **empty)
    yield _label("a YOLO label of blanks", " \n\n", "no-objects", **empty)

    def without_objects(files: Files) -> None:
        files["labels/train/a.txt"] = files[_LABEL] = b""

    yield Case(
        "a YOLO split without any object",
        "yolo",
        without_objects,
        "no-objects",
        "a.txt",
        count=2,
        also=("class-empty", "class-empty"),
        objects=(0, 0),
    )
    yield _label("a folder in place of a YOLO label", Folder(), "file-unreadable")

    yield _label("a YOLO label of 2 MB", yolo_text("b") * 50_000, "file-too-large", field="size")

    def without_labels(files: Files) -> None:
        del files["labels/train/a.txt"], files[_LABEL]

    yield Case(
        "YOLO images without any label",
        "yolo",
        without_labels,
        "labels-missing",
        "data.yaml",
        value="labels/train/a.txt",
        is_refused=True,
    )

    def same_stem(files: Files) -> None:
        files["images/train/b.png"] = encode(picture(9), "PNG")

    yield Case(
        "two YOLO images for one label",
        "yolo",
        same_stem,
        "image-entry-twice",
        "b.png",
        value="b.txt",
        images=(3, 2),
        objects=(3, 3),
    )


def _encodings() -> Iterator[Case]:
    sound = yolo_text("b")
    yield _label("a YOLO label with a byte order mark", sound.encode("utf-8-sig"))
    yield _label("a YOLO label with CRLF", sound.replace("\n", "\r\n"))
    yield _label("a YOLO label with CR", sound.replace("\n", "\r"))
    yield _label("a YOLO label in UTF-16", sound.encode("utf-16"))
    yield _label("a YOLO label in Latin-1", (sound + "Größe").encode("latin-1"), "file-encoding")
    yield _label("a YOLO label of null characters", b"\0" * 64, "file-encoding")
    yield _label("a picture as a YOLO label", encode(picture(1)), "file-encoding")
    yield _yaml("YAML with a byte order mark", YOLO_YAML.encode("utf-8-sig"))
    yield _yaml("YAML with CRLF", YOLO_YAML.replace("\n", "\r\n"))
    yield _yaml("YAML in UTF-16", YOLO_YAML.encode("utf-16"))
    yield _yaml("YAML in Latin-1", (YOLO_YAML + "# Größe").encode("latin-1"), "file-encoding")


def alias_bomb(levels: int = 12) -> str:
    """YAML that would unfold to 9 ** levels words."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n" + YOLO_YAML


def _yaml_syntax() -> Iterator[Case]:
    yield _yaml("a YAML alias bomb", alias_bomb(), "yaml-forbidden")
    yield _yaml("a YAML alias", "x: &x 1\ny: *x\n" + YOLO_YAML, "yaml-forbidden")
    yield _yaml("a YAML merge key", "x: &x {train: a}\n<<: *x\n" + YOLO_YAML, "yaml-forbidden")
    for tag in ("!!python/object/apply:os.system ['true']", "!mine 5", "!!python/name:os.system"):
        yield _yaml(f"the YAML tag {tag.split()[0]}", YOLO_YAML + f"x: {tag}\n", "yaml-forbidden")
    yield _yaml("a YAML key twice", YOLO_YAML + "val: images/train\n", "yaml-duplicate-key")
    yield _yaml("500 levels of YAML", YOLO_YAML + "x: " + "[" * 500 + "]" * 500, "yaml-too-deep")
    yield _yaml("100,000 levels of YAML", "[" * 100_000, "yaml-too-deep")
    yield _yaml("YAML with a tab", YOLO_YAML.replace("  0", "\t0"), "yaml-malformed")
    yield _yaml("YAML with an open quote", YOLO_YAML + 'x: "open\n', "yaml-malformed")
    yield _yaml("two YAML documents", YOLO_YAML + "---\n" + YOLO_YAML, "yaml-malformed")
    yield _yaml("a YAML date that does not exist", YOLO_YAML + "x: 2024-13-45\n", "yaml-malformed")
    yield _yaml("a YAML list as a key", YOLO_YAML + "? [a]\n: 1\n", "yaml-forbidden")


def _yaml_content() -> Iterator[Case]:
    head, _, _ = YOLO_YAML.partition("names:")
    yield _yaml("an empty YAML file", "", "yaml-structure")
    yield _yaml("a YAML list", "[train, val]\n", "yaml-structure")
    yield _yaml("YAML without names", head, "yaml-structure", "names")
    spoil = replace("data.yaml", YOLO_YAML.replace("train:", "training:"))
    yield Case("YAML without train", "yolo", spoil, "split-unknown", value="train", is_refused=True)
    null = YOLO_YAML.replace("train:", "train: #")
    yield Case(
        "YAML with null for train",
        "yolo",
        replace("data.yaml", null),
        "split-unknown",
        value="train",
        is_refused=True,
    )
    yield _yaml("YAML with null for val", YOLO_YAML.replace("val:", "val: #"))
    nulls = null.replace("val:", "val: #")
    yield _yaml("YAML with null for all splits", nulls, "yaml-structure", "train")
    yield _yaml(
        "YAML with a number for train",
        YOLO_YAML.replace(": images/train", ": 5"),
        "yaml-structure",
        "train",
        "5",
    )
    yield _yaml("YAML names as a list", head + "names: [cat, dog]\n")
    yield _yaml(
        "YAML with a class name twice",
        head + "names: [cat, cat]\n",
        "classes-invalid",
        "names",
        "cat",
    )
    yield _yaml(
        "YAML with an empty class name", head + "names: [cat, '']\n", "classes-invalid", "names"
    )
    yield _yaml(
        "YAML class names that are numbers",
        head + "names: [1, 2]\n",
        "classes-invalid",
        "names",
        "1",
    )
    yield _yaml("YAML names as one text", head + "names: cat\n", "classes-invalid", "names", "cat")
    yield _yaml(
        "YAML names with a gap", head + "names: {0: cat, 5: dog}\n", "classes-invalid", "names", "5"
    )
    yield _yaml("YAML names from 1", head + "names: {1: cat, 2: dog}\n", "classes-invalid", "names")
    yield _yaml("YAML names without any", head + "names: []\n", "classes-invalid", "names")
    yield _yaml(
        "YAML with another number of classes", YOLO_YAML + "nc: 3\n", "classes-invalid", "nc", "3"
    )
    yield _yaml("YAML with the right number of classes", YOLO_YAML + "nc: 2\n")
    missing = YOLO_YAML.replace("images/train", "images/elsewhere")
    yield _yaml(
        "a YAML folder that does not exist", missing, "data-missing", value="", is_refused=True
    )

    def several(files: Files) -> None:
        files["data.yaml"] = YOLO_YAML.replace(
            "images/train", "[images/train, images/more]"
        ).encode()
        files["images/more/m.jpg"] = encode(picture(7))
        files["labels/more/m.txt"] = b"0 0.5 0.5 0.5 0.5\n"

    yield Case("YAML with several folders", "yolo", several, images=(3, 3), objects=(4, 4))


def _paths() -> Iterator[Case]:
    for path in ("../../elsewhere", "/etc", "images/../../.."):
        spoilt = YOLO_YAML.replace("images/train", path)
        yield _yaml(f"the path {path} in YAML", spoilt, "file-outside", "train", path)

    def listed(*lines: str) -> Callable[[Files], None]:
        def spoil(files: Files) -> None:
            files["data.yaml"] = YOLO_YAML.replace("images/train", "train.txt").encode()
            files["train.txt"] = "\n".join((*lines, "")).encode()

        return spoil

    both = ("./images/train/a.jpg", "images/train/b.jpg")
    yield Case("YOLO images from a list", "yolo", listed(*both))
    outside: dict[str, Any] = {"images": (3, 2), "objects": (3, 3)}
    for path in ("../../secret.jpg", "/etc/passwd"):
        spoil = listed(*both, path)
        yield Case(
            f"the path {path} in a YOLO list",
            "yolo",
            spoil,
            "image-outside",
            "train.txt",
            "",
            path,
            **outside,
        )
    yield Case(
        "an image twice in a YOLO list",
        "yolo",
        listed(*both, both[1]),
        "image-entry-twice",
        "b.jpg",
        **outside,
    )
    yield Case(
        "a YOLO image through a link to the outside",
        "yolo",
        lambda files: files.update({"images/train/b.jpg": Link("/usr/share/b.jpg")}),
        "image-outside",
        "b.jpg",
        objects=(2, 2),
    )
    yield _label(
        "a YOLO label through a link to the outside", Link("/etc/hostname"), "file-outside"
    )
