"""Files made to cost gigabytes, minutes or secrets; each is read alone in a fresh process."""

from __future__ import annotations

import contextlib
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from rankdet.bench import bad_coco_file, bad_images, bad_voc, bad_yolo, fuzz
from rankdet.bench.bad_case import COCO_TRAIN, TRAIN, YOLO_YAML, encode, picture, voc_xml
from rankdet.bench.fuzz import Answer
from rankdet.bench.spoilt import Place
from rankdet.data.reading import formats, images
from rankdet.data.reading.findings import Finding
from rankdet.errors import DataError

SECRET = "the secret of another user"
_WAIT_SECONDS = 30.0

_XML = Place("voc", "Annotations/b.xml")
_JSON = Place("coco", COCO_TRAIN)
_YAML = Place("yolo", "data.yaml")
_LABEL = Place("yolo", "labels/train/b.txt")
_IMAGE = Place("yolo", "images/train/b.jpg")


@dataclass(frozen=True)
class Attack:
    """A file, where it is put, and the codes one of which must refuse it; none: it may be read.

    content is given the path of a file with a secret, which must not show up anywhere.
    """

    name: str
    place: Place
    content: Callable[[Path], bytes | str]
    codes: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """What came of an attack. answer.reason: the code that refused it, or why it failed."""

    name: str
    num_bytes: int
    answer: Answer


def attacks() -> Iterator[Attack]:
    """Every named attack."""
    yield from _image_attacks()
    forbidden = ("xml-forbidden",)
    yield Attack("XML billion laughs", _XML, lambda _: bad_voc.entity_bomb(), forbidden)
    yield Attack("XML quadratic blow-up", _XML, lambda _: bad_voc.quadratic_bomb(), forbidden)
    yield Attack(
        "XML external entity", _XML, lambda p: bad_voc.external_entity(p.as_uri()), forbidden
    )
    yield Attack("XML parameter entity", _XML, _parameter_entity, forbidden)
    yield Attack("XML 200,000 levels", _XML, lambda _: bad_voc.deep_xml(200_000), ("xml-too-deep",))
    yield Attack(
        "XML of 15 MB of empty objects",
        _XML,
        lambda _: voc_xml("b", "<object/>" * 1_600_000),
        ("file-too-large",),
    )
    deep = ("json-too-deep",)
    yield Attack("JSON 100,000 levels", _JSON, lambda _: bad_coco_file.deep_json(100_000), deep)
    yield Attack("JSON objects, 100,000 levels", _JSON, lambda _: '{"a":' * 100_000, deep)
    yield Attack("JSON 100,000 keys, one twice", _JSON, _many_keys, ("json-duplicate-key",))
    yield Attack(
        "JSON integer of a million digits", _JSON, lambda _: "9" * 10**6, ("json-malformed",)
    )
    yield Attack("YAML alias bomb", _YAML, lambda _: bad_yolo.alias_bomb(), ("yaml-forbidden",))
    yield Attack("YAML 100,000 levels", _YAML, lambda _: "[" * 100_000, ("yaml-too-deep",))
    yield Attack(
        "YAML of 400 KB, broken at its end",
        _YAML,
        lambda _: "path: .\ntrain: train.txt\nval: images/val\nna" * 9500,
        ("yaml-malformed",),
    )
    yield Attack(
        "YAML integer of a million digits",
        _YAML,
        lambda _: f"{YOLO_YAML}x: {'9' * 10**6}\n",
        ("yaml-malformed", "file-too-large"),
    )
    yield Attack(
        "YAML with the whole disk as data",
        _YAML,
        lambda _: YOLO_YAML.replace("path: .", "path: /").replace("images/train", "."),
        ("file-outside",),
    )
    yield Attack(
        "a label file of 15 MB",
        _LABEL,
        lambda _: "1 .5 .5 .1 .1\n" * 1_100_000,
        ("file-too-large",),
    )


def _parameter_entity(secret: Path) -> str:
    return f'<!DOCTYPE a [<!ENTITY % p SYSTEM "{secret.as_uri()}"> %p;]>{voc_xml("b")}'


def _many_keys(_: Path) -> str:
    keys = ", ".join(f'"{index}": 1' for index in range(100_000))
    return f'{{{keys}, "99999": 1}}'


def _image_attacks() -> Iterator[Attack]:
    large = ("image-too-large",)
    yield Attack("PNG of 441 MB", _IMAGE, lambda _: bad_images.png_bomb(21_000, 7_000), large)
    yield Attack(
        "PNG of 10 gigapixels", _IMAGE, lambda _: bad_images.png_of(10**5, 10**5, b""), large
    )
    yield Attack(
        "BMP of 3.6 gigapixels", _IMAGE, lambda _: _resized("BMP", "<ii", 18, 60_000), large
    )
    yield Attack(
        "GIF of 4.3 gigapixels", _IMAGE, lambda _: _resized("GIF", "<HH", 6, 65_535), large
    )
    yield Attack(
        "PNG with compressed text of 100 MB",
        _IMAGE,
        lambda _: bad_images.png_with_text(100 * 2**20),
        ("image-corrupt",),
    )


def _resized(format: str, layout: str, offset: int, side: int) -> bytes:
    """A small image whose header claims side x side pixels."""
    content = bytearray(encode(picture(1), format))
    content[offset : offset + struct.calcsize(layout)] = struct.pack(layout, side, side)
    return bytes(content)


def run_attack(attack: Attack) -> Result:
    """What comes of an attack in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fuzz.write_sound_sets(folder / "data")
        secret = folder / "secret.txt"
        secret.write_text(SECRET)
        made = attack.content(secret)
        content = made.encode() if isinstance(made, str) else made
        (folder / "attack").write_bytes(content)
        (folder / "attack.txt").write_text("no image")
        process, connection = fuzz.start_process(_work, folder, attack.place, attack.codes)
        try:
            answer = _received(connection)
        finally:
            process.kill()
            process.join()
        return Result(attack.name, len(content), answer)


def _received(connection: Connection) -> Answer:
    try:
        if connection.poll(_WAIT_SECONDS):
            answer = connection.recv()
            assert isinstance(answer, Answer)
            return answer
    except EOFError:
        return Answer(0, "failed", "the process ended")
    return Answer(0, "failed", f"no answer in {_WAIT_SECONDS:.0f} s", _WAIT_SECONDS * 1000)


def _work(connection: Connection, folder: Path, place: Place, codes: tuple[str, ...]) -> None:
    """In the child: read the sound set, so that imports do not count, and then the attack."""
    fuzz.limit_addresses()
    data = folder / "data" / place.format
    _read(data, place)
    with contextlib.suppress(DataError):
        images.decode(folder / "attack.txt")  # no image at all: Pillow looks at all its formats
    (folder / "attack").replace(data / place.path)
    baseline = fuzz.peak_megabytes()
    found: list[DataError | Finding] = []

    def read() -> str:
        found[:] = _read(data, place)
        return "refused" if found else "read"

    answer = fuzz.timed(read, 0, baseline)
    if answer.outcome != "failed":
        named = {item.code for item in found}
        answer = replace(answer, reason=", ".join(sorted(named)))
        if any(SECRET in str(item) for item in found):
            answer = replace(answer, outcome="failed", reason="the secret has leaked")
        elif codes and not named & set(codes):
            answer = replace(
                answer, outcome="failed", reason=f"{named or 'read'}, expected {codes}"
            )
    connection.send(answer)


def _read(data: Path, place: Place) -> list[DataError | Finding]:
    """Everything that is said about the data set: the refusal, or the findings that skip b."""
    if place == _IMAGE:
        try:
            images.decode(data / place.path)
        except DataError as error:
            return [error]
        return []
    try:
        split = formats.read_split(data, TRAIN[place.format])
    except DataError as error:
        return [error]
    fuzz.assert_sound(split)
    examples = [item for items in split.findings.examples.values() for item in items]
    return [item for item in examples if item.rule.outcome != "kept"]
