"""Bad VOC data: objects, boxes, XML, encodings, lists and paths."""

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

_XML = "Annotations/b.xml"
_LIST = "ImageSets/Main/train.txt"


def _objects(name: str, content: str, code: str = "", **rest: Any) -> Case:
    """Other objects in b.xml."""
    rest.setdefault("file", "b.xml" if code else "")
    return Case(name, "voc", replace(_XML, voc_xml("b", content)), code, **rest)


def _xml(name: str, content: str | bytes, code: str = "", **rest: Any) -> Case:
    """Other content of b.xml; if it cannot be read, nobody knows how many objects it had."""
    if code:
        rest = {"images": (2, 1), "objects": (2, 2), "file": "b.xml", **rest}
    return Case(name, "voc", replace(_XML, content), code, **rest)


def _list(name: str, content: str | bytes | Link, code: str = "", **rest: Any) -> Case:
    """Other content of the list of train."""
    rest.setdefault("file", "train.txt" if code else "")
    return Case(name, "voc", replace(_LIST, content), code, **rest)


def voc_cases() -> Iterator[Case]:
    yield from _boxes()
    yield from _fields()
    yield from _splits()
    yield from _syntax()
    yield from _encodings()
    yield from _lists()
    yield from _paths()


def _boxes() -> Iterator[Case]:
    box: dict[str, Any] = {"field": "box"}
    yield _objects("VOC corners swapped", voc_object("dog", 50, 12, 10, 36), "box-swapped", **box)
    yield _objects("a VOC box of no width", voc_object("dog", 9, 12, 9, 36), "box-zero-area", **box)
    yield _objects(
        "a VOC box a little outside", voc_object("dog", 10, 12, 70, 36), "box-clipped", value="70"
    )
    yield _objects(
        "a VOC box far outside", voc_object("dog", 60, 12, 900, 36), "box-outside", value="900"
    )
    yield _objects(
        "a VOC box with negative corners", voc_object("dog", -3, 12, 50, 36), "box-clipped", **box
    )
    for text in ("NaN", "inf", "-Infinity", "1e999"):
        spoilt = voc_object("dog", 10, 12, 50, 36).replace("50", text)
        yield _objects(
            f"{text} as a VOC coordinate", spoilt, "box-not-finite", field="xmax", value=text
        )
    for text in ("left", "0x10", "1_0", "1,5", "١٢"):
        spoilt = voc_object("dog", 10, 12, 50, 36).replace("50", text)
        yield _objects(
            f"{text!r} as a VOC coordinate", spoilt, "box-not-a-number", field="xmax", value=text
        )
    huge = voc_object("dog", 10, 12, 50, 36).replace("50", "1e308")
    yield _objects("1e308 as a VOC coordinate", huge, "box-outside", field="box", value="1e+308")
    yield _objects("float coordinates in VOC", voc_object("dog", 10.25, 12.5, 50.75, 36.125))
    whole = voc_object("dog", 0, 0, 64, 48)
    yield _objects("a VOC box over the whole image", whole)
    many = "\n".join(voc_object("dog", 1, 1, 20 + i % 40, 30) for i in range(1500))
    yield _objects(
        "thousands of boxes in a VOC image",
        many,
        "box-count",
        field="boxes",
        value="1500",
        objects=(1502, 1502),
    )


def _fields() -> Iterator[Case]:
    good = voc_object("dog", 10, 12, 50, 36)
    dropped: dict[str, Any] = {"objects": (3, 2)}
    yield _objects(
        "a VOC object without bndbox",
        "<object><name>dog</name></object>",
        "field-missing",
        field="bndbox",
        **dropped,
    )
    yield _objects(
        "a VOC box without xmin", good.replace("<xmin>11</xmin>", ""), "field-missing", field="xmin"
    )
    nameless = good.replace("<name>dog</name>", "")
    yield _objects("a VOC object without name", nameless, "field-missing", field="name")
    yield _objects(
        "a VOC object with an empty name",
        voc_object("", 10, 12, 50, 36),
        "field-missing",
        field="name",
    )
    yield _objects(
        "an unknown VOC class",
        voc_object("wolf", 10, 12, 50, 36),
        "class-unknown",
        field="name",
        value="wolf",
    )
    yield _objects("a VOC class with blanks around", voc_object(" dog\n", 10, 12, 50, 36))
    yield _objects(
        "a VOC class in capitals", voc_object("Dog", 10, 12, 50, 36), "class-unknown", value="Dog"
    )
    yield _objects(
        "a VOC class with markup",
        voc_object("[red]&lt;b&gt;", 10, 12, 50, 36),
        "class-unknown",
        value="<b>",
    )
    difficult = voc_object("dog", 10, 12, 50, 36, rest="<difficult>1</difficult>")
    yield _objects("a difficult VOC object", difficult, num_ignored=1)
    plain = voc_object("dog", 10, 12, 50, 36, rest="")
    yield _objects("a VOC object that does not say difficult", plain)
    odd = voc_object("dog", 10, 12, 50, 36, rest="<difficult>maybe</difficult>")
    yield _objects(
        "difficult that is neither 0 nor 1", odd, "field-invalid", field="difficult", value="maybe"
    )
    parts = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
    yield _objects("a VOC object with parts", voc_object("dog", 10, 12, 50, 36, rest=parts))
    yield _xml(
        "a VOC file without size",
        voc_xml("b", size=None),
        "size-missing",
        images=(2, 2),
        objects=(3, 3),
    )
    yield _xml(
        "a VOC size of 0", voc_xml("b", size=(0, 0)), "size-missing", images=(2, 2), objects=(3, 3)
    )
    yield _xml(
        "another file name inside of a VOC file",
        voc_xml("b").replace("b.jpg", "../../elsewhere.png"),
    )


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
        remove(_XML),
        "annotation-missing",
        "b.xml",
        objects=(2, 2),
    )
    yield Case(
        "a folder in place of a VOC annotation",
        "voc",
        replace(_XML, Folder()),
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
    yield _xml("XML with a DTD", '<!DOCTYPE annotation SYSTEM "voc.dtd">' + sound, "xml-forbidden")
    yield _xml("XML with an empty DTD", "<!DOCTYPE annotation>" + sound, "xml-forbidden")
    entity = '<!DOCTYPE a [<!ENTITY d "dog">]>' + sound.replace("dog", "&d;")
    yield _xml("XML with an entity", entity, "xml-forbidden")
    yield _xml("XML with a billion laughs", entity_bomb(), "xml-forbidden")
    yield _xml("XML with a quadratic bomb", quadratic_bomb(), "xml-forbidden")
    for target in ("file:///etc/passwd", "../classes.txt", "http://127.0.0.1:9/x"):
        yield _xml(
            f"XML with the external entity {target}", external_entity(target), "xml-forbidden"
        )
    parameter = '<!DOCTYPE a [<!ENTITY % p SYSTEM "http://127.0.0.1:9/x"> %p;]>' + sound
    yield _xml("XML with a parameter entity", parameter, "xml-forbidden")
    yield _xml("XML with 200,000 levels", deep_xml(200_000), "xml-too-deep")
    yield _xml("an empty XML file", "", "xml-malformed")
    yield _xml("XML that ends too early", sound[: len(sound) // 2], "xml-malformed")
    yield _xml(
        "XML with crossed tags",
        sound.replace("</name>", "</nome>"),
        "xml-malformed",
        value="mismatched",
    )
    yield _xml(
        "XML with an unknown entity", sound.replace("dog", "&dog;"), "xml-malformed", value="entity"
    )
    yield _xml("two XML documents in one file", sound + sound, "xml-malformed")
    yield _xml("JSON named xml", '{"annotation": {}}', "xml-malformed")
    yield _xml("a web page named xml", "<html><body>404</body></html>", "xml-not-voc", value="html")
    yield _xml("a picture named xml", encode(picture(1), "PNG"), "file-encoding")
    yield _xml("XML of 5 MB", sound + "<!-- -->" * 650_000, "file-too-large", field="size")
    yield _xml("XML with comments", sound.replace("<object>", "<!-- a dog --><object>"))


def _encodings() -> Iterator[Case]:
    sound = voc_xml("b")
    yield _xml("XML with a byte order mark", sound.encode("utf-8-sig"))
    yield _xml("XML with CRLF", sound.replace("\n", "\r\n"))
    yield _xml(
        "XML in UTF-16", ('<?xml version="1.0" encoding="utf-16"?>' + sound).encode("utf-16")
    )
    latin = '<?xml version="1.0" encoding="iso-8859-1"?>' + sound.replace("b.jpg", "Größe")
    yield _xml("XML in declared Latin-1", latin.encode("latin-1"))
    yield _xml(
        "XML in undeclared Latin-1",
        sound.replace("b.jpg", "Größe").encode("latin-1"),
        "file-encoding",
    )
    yield _xml(
        "XML in an encoding that does not exist",
        '<?xml version="1.0" encoding="klingon"?>' + sound,
        "xml-malformed",
    )
    yield _xml("XML with a null character", sound.replace("dog", "d\0g"), "file-encoding")
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

    def nothing(files: Files) -> None:
        files.clear()
        files["readme.txt"] = b"no data here\n"

    yield Case("a folder that is no data set", "voc", nothing, "data-unrecognised", is_refused=True)


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
        "a VOC image through a link to the outside",
        "voc",
        replace("JPEGImages/b.jpg", Link("/usr/share/b.jpg")),
        "image-outside",
        "train.txt:2",
        "id",
        "'b'",
    )
