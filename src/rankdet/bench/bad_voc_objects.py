"""Bad VOC data: what one XML file says of an image and its objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rankdet.bench.bad_case import Case, replace, voc_object, voc_xml

B_XML = "Annotations/b.xml"


def _objects(name: str, content: str, code: str = "", **rest: Any) -> Case:
    """Other objects in b.xml."""
    rest.setdefault("file", "b.xml" if code else "")
    return Case(name, "voc", replace(B_XML, voc_xml("b", content)), code, **rest)


def xml_case(name: str, content: str | bytes, code: str = "", **rest: Any) -> Case:
    """Other content of b.xml; if it cannot be read, nobody knows how many objects it had."""
    if code:
        rest = {"images": (2, 1), "objects": (2, 2), "file": "b.xml", **rest}
    return Case(name, "voc", replace(B_XML, content), code, **rest)


def voc_object_cases() -> Iterator[Case]:
    yield from _boxes()
    yield from _fields()
    yield from _tags()


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
    for flag in ("true", "TRUE"):
        true = voc_object("dog", 10, 12, 50, 36, rest=f"<difficult>{flag}</difficult>")
        yield _objects(f"a VOC object with difficult {flag}", true, num_ignored=1)
    for flag in ("", "Unspecified"):
        unknown = voc_object("dog", 10, 12, 50, 36, rest=f"<difficult>{flag}</difficult>")
        yield _objects(
            f"a VOC object with difficult {flag!r}",
            unknown,
            "annotation-field-default",
            field="difficult",
        )
    parts = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
    yield _objects("a VOC object with parts", voc_object("dog", 10, 12, 50, 36, rest=parts))
    yield xml_case(
        "a VOC file without size",
        voc_xml("b", size=None),
        "size-missing",
        images=(2, 2),
        objects=(3, 3),
    )
    yield xml_case(
        "a VOC size of 0", voc_xml("b", size=(0, 0)), "size-missing", images=(2, 2), objects=(3, 3)
    )
    yield xml_case(
        "another file name inside of a VOC file",
        voc_xml("b").replace("b.jpg", "../../elsewhere.png"),
    )


def _tags() -> Iterator[Case]:
    good = voc_object("dog", 10, 12, 50, 36)
    for tag, other in (("object", "Object"), ("name", "NAME"), ("bndbox", "BndBox")):
        yield _objects(
            f"the VOC tag {other}",
            good.replace(f"{tag}>", f"{other}>"),
            "field-invalid",
            field=other,
            value=f"lower case: {tag}",
        )
    for tag, content in (("name", "cat"), ("bndbox", "<xmin>1</xmin>"), ("difficult", "1")):
        twice = good.replace("</object>", f"<{tag}>{content}</{tag}></object>")
        yield _objects(
            f"a second {tag} in a VOC object", twice, "field-invalid", field=tag, value="twice"
        )
    yield _objects(
        "a VOC object in an object",
        good.replace("</object>", f"{good}</object>"),
        "field-invalid",
        field="object",
        objects=(4, 3),
    )
    size = "<size><width>64</width><height>48</height></size>"
    rest: dict[str, Any] = {"field": "size", "images": (2, 2), "objects": (3, 3)}
    sound = voc_xml("b")
    yield xml_case(
        "two sizes in a VOC file",
        sound.replace("<object>", f"{size}<object>"),
        "size-invalid",
        **rest,
    )
    for value in ("-64", "6.5", "wide"):
        odd = sound.replace("<width>64<", f"<width>{value}<")
        yield xml_case(
            f"the VOC width {value}",
            odd,
            "size-invalid",
            **{**rest, "field": "width", "value": value},
        )
