"""Bad VOC data: XML, encodings, lists, splits and paths; for its objects see `bad_voc_objects`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rankdet.bench.bad_case import (
    Case,
    Files,
    Folder,
    Link,
    encode,
    picture,
    remove,
    replace,
    voc_object,
    voc_xml,
)
from rankdet.bench.bad_voc_objects import B_XML, xml_case

_LIST = "ImageSets/Main/train.txt"


def _list(name: str, content: str | bytes | Link, code: str = "", **rest: Any) -> Case:
    """Other content of the list of train."""
    rest.setdefault("file", "train.txt" if code else "")
    return Case(name, "voc", replace(_LIST, content), code, **rest)


def voc_cases() -> Iterator[Case]:
    yield from _splits()
    yield from _syntax()
    yield from _encodings()
    yield from _lists()
    yield from _paths()


def _splits() -> Iterator[Case]:
    def without_objects(*names: str) -> Callable[[Files], None]:
        return lambda files: files.update(
            {f"Annotations/{name}.xml": voc_xml(name, "").encode() for name in names}
        )

    yield Case(
        "a VOC image without objects",
        "voc",
        without_objects("b"),
        "no-objects",
        "b.xml",
        objects=(2, 2),
    )
    yield Case(
        "a VOC split without any object",
        "voc",
        without_objects("a", "b"),
        "no-objects",
        "a.xml",
        count=2,
        also=("class-empty", "class-empty"),
        objects=(0, 0),
    )
    yield Case(
        "a VOC class without objects",
        "voc",
        replace("classes.txt", "cat\ndog\nowl\n"),
        "class-empty",
        value="owl",
    )
    yield Case(
        "a VOC class list of which nothing occurs",
        "voc",
        replace("classes.txt", "wolf\nyak\n"),
        "classes-foreign",
        field="classes",
        value="wolf",
        is_refused=True,
    )
    yield Case(
        "a VOC class listed twice",
        "voc",
        replace("classes.txt", "cat\ndog\ncat\n"),
        "classes-invalid",
        "classes.txt",
        value="cat",
        is_refused=True,
    )
    yield Case(
        "a missing VOC annotation",
        "voc",
        remove(B_XML),
        "annotation-missing",
        "b.xml",
        objects=(2, 2),
    )
    yield Case(
        "a folder in place of a VOC annotation",
        "voc",
        replace(B_XML, Folder()),
        "annotation-unreadable",
        "b.xml",
        images=(2, 1),
        objects=(2, 2),
    )
    yield Case(
        "a VOC annotation that no list names", "voc", replace("Annotations/z.xml", "not read")
    )


def entity_bomb(levels: int = 9) -> str:
    """A billion laughs: each entity is ten of the one before."""
    lines = ['<!DOCTYPE a [<!ENTITY e0 "ha">']
    lines += [f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, levels + 1)]
    return "\n".join(lines) + f"]><annotation>&e{levels};</annotation>"


def quadratic_bomb() -> str:
    return f'<!DOCTYPE a [<!ENTITY e "{"x" * 50_000}">]><annotation>{"&e;" * 50_000}</annotation>'


def external_entity(target: str) -> str:
    return (
        f'<!DOCTYPE a [<!ENTITY e SYSTEM "{target}">]>'
        f"<annotation>{voc_object('&e;', 10, 12, 50, 36)}</annotation>"
    )


def deep_xml(levels: int) -> str:
    return "<annotation>" + "<a>" * levels + "</a>" * levels + "</annotation>"


def _syntax() -> Iterator[Case]:
    sound = voc_xml("b")
    yield xml_case(
        "XML with a DTD", '<!DOCTYPE annotation SYSTEM "voc.dtd">' + sound, "xml-forbidden"
    )
    yield xml_case("XML with an empty DTD", "<!DOCTYPE annotation>" + sound, "xml-forbidden")
    entity = '<!DOCTYPE a [<!ENTITY d "dog">]>' + sound.replace("dog", "&d;")
    yield xml_case("XML with an entity", entity, "xml-forbidden")
    yield xml_case("XML with a billion laughs", entity_bomb(), "xml-forbidden")
    yield xml_case("XML with a quadratic bomb", quadratic_bomb(), "xml-forbidden")
    for target in ("file:///etc/passwd", "../classes.txt", "http://127.0.0.1:9/x"):
        yield xml_case(
            f"XML with the external entity {target}", external_entity(target), "xml-forbidden"
        )
    parameter = '<!DOCTYPE a [<!ENTITY % p SYSTEM "http://127.0.0.1:9/x"> %p;]>' + sound
    yield xml_case("XML with a parameter entity", parameter, "xml-forbidden")
    yield xml_case("XML with 200,000 levels", deep_xml(200_000), "xml-too-deep")
    yield xml_case("an empty XML file", "", "xml-malformed")
    yield xml_case("XML that ends too early", sound[: len(sound) // 2], "xml-malformed")
    yield xml_case(
        "XML with crossed tags",
        sound.replace("</name>", "</nome>"),
        "xml-malformed",
        value="mismatched",
    )
    yield xml_case(
        "XML with an unknown entity", sound.replace("dog", "&dog;"), "xml-malformed", value="entity"
    )
    yield xml_case("two XML documents in one file", sound + sound, "xml-malformed")
    yield xml_case("JSON named xml", '{"annotation": {}}', "xml-malformed")
    yield xml_case(
        "a web page named xml", "<html><body>404</body></html>", "xml-not-voc", value="html"
    )
    yield xml_case("a picture named xml", encode(picture(1), "PNG"), "file-encoding")
    yield xml_case("XML of 5 MB", sound + "<!-- -->" * 650_000, "file-too-large", field="size")
    yield xml_case("XML with comments", sound.replace("<object>", "<!-- a dog --><object>"))


def _encodings() -> Iterator[Case]:
    sound = voc_xml("b")
    yield xml_case("XML with a byte order mark", sound.encode("utf-8-sig"))
    yield xml_case("XML with CRLF", sound.replace("\n", "\r\n"))
    yield xml_case(
        "XML in UTF-16", ('<?xml version="1.0" encoding="utf-16"?>' + sound).encode("utf-16")
    )
    latin = '<?xml version="1.0" encoding="iso-8859-1"?>' + sound.replace("b.jpg", "Größe")
    yield xml_case("XML in declared Latin-1", latin.encode("latin-1"))
    yield xml_case(
        "XML in undeclared Latin-1",
        sound.replace("b.jpg", "Größe").encode("latin-1"),
        "file-encoding",
    )
    yield xml_case(
        "XML in an encoding that does not exist",
        '<?xml version="1.0" encoding="klingon"?>' + sound,
        "xml-malformed",
    )
    yield xml_case("XML with a null character", sound.replace("dog", "d\0g"), "file-encoding")
    yield _list("a VOC list with a byte order mark", b"\xef\xbb\xbfa\nb\n")
    yield _list("a VOC list with CRLF", "a\r\nb\r\n")
    yield _list("a VOC list in UTF-16", "a\nb\n".encode("utf-16"))
    yield _list(
        "a VOC list in Latin-1", "a\nb\nGröße\n".encode("latin-1"), "file-encoding", is_refused=True
    )


def _lists() -> Iterator[Case]:
    yield _list("a VOC list with blank lines", "\na\n\n  b  \n\n")
    yield _list(
        "a VOC list with an image twice",
        "a\nb\nb\n",
        "image-entry-twice",
        value="b",
        images=(3, 2),
        objects=(3, 3),
    )
    yield _list("an empty VOC list", "", "data-empty", file="", value="train", is_refused=True)
    yield _list("a picture as a VOC list", encode(picture(1)), "file-encoding", is_refused=True)
    yield _list(
        "a VOC list of images that do not exist",
        "x\ny\n",
        "data-empty",
        file="x.xml",
        value="train",
        is_refused=True,
    )
    yield Case(
        "a VOC split that does not exist",
        "voc",
        remove(_LIST),
        "split-unknown",
        value="train",
        is_refused=True,
    )

    yield _list(
        "a VOC list of file names",
        "a\nb.jpg\n",
        "annotation-missing",
        file="b.jpg.xml",
        value="without extension",
        objects=(2, 2),
    )

    def nothing(name: str) -> Callable[[Files], None]:
        def spoil(files: Files) -> None:
            files.clear()
            files[name] = b"no data here\n"

        return spoil

    for name, what, text in (
        ("readme.txt", "a folder that is no data set", "Looked for"),
        ("VOC.tar", "a data set that is still packed", "Unpack it first."),
    ):
        yield Case(what, "voc", nothing(name), "data-unrecognised", value=text, is_refused=True)


def _paths() -> Iterator[Case]:
    outside: dict[str, Any] = {"images": (3, 2), "objects": (3, 3)}
    for name in ("../../secret", "/etc/passwd", "x/../../../secret"):
        yield _list(
            f"the path {name} in a VOC list",
            f"a\nb\n{name}\n",
            "image-outside",
            value=name,
            **outside,
        )

    yield Case(
        "a VOC annotation through a link to the outside",
        "voc",
        replace(B_XML, Link("/etc/hostname")),
        "file-outside",
        file="b.xml",
        images=(2, 1),
        objects=(2, 2),
    )
    yield Case(
        "a VOC image through a link to the outside",
        "voc",
        replace("JPEGImages/b.jpg", Link("/usr/share/b.jpg")),
        "image-outside",
        "train.txt:2",
        "id",
        "'b'",
    )
