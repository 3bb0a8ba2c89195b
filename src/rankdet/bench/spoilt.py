"""Sound files of every kind, and the spoilt ones made of them: the same for the same seed."""

from __future__ import annotations

import functools
import random
import zlib
from dataclasses import dataclass

import numpy as np
from PIL import Image, PngImagePlugin

from rankdet.bench import bad_case
from rankdet.bench.bad_case import BOXES, encode, picture
from rankdet.bench.mutations import mutated

TEXT_KINDS = ("xml", "json", "txt", "yaml")
IMAGE_KINDS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF")


@dataclass(frozen=True)
class Place:
    """A file of a sound data set that is replaced by spoilt ones."""

    format: str
    path: str
    max_bytes: int = 2**20


_MAX_LIST = 30_000  # bytes: of a longer list of images one must expect that it takes its time
_PLACES = {
    "xml": (Place("voc", "Annotations/b.xml"),),
    "json": (Place("coco", bad_case.COCO_TRAIN),),
    "txt": (  # label files twice as often: they have the most to spoil
        Place("yolo", "labels/train/b.txt"),
        Place("yolo", "labels/train/b.txt"),
        Place("yolo", "train.txt", _MAX_LIST),
        Place("voc", "ImageSets/Main/train.txt", _MAX_LIST),
        Place("voc", "classes.txt"),
    ),
    "yaml": (Place("yolo", "data.yaml"),),
}


@functools.cache
def sound_files(format: str) -> dict[str, bytes]:
    """The files of the sound data set; YOLO's takes its images from a list, to spoil that too."""
    files = bad_case.SOUND[format]()
    if format == "yolo":
        yaml = bad_case.YOLO_YAML.replace("images/train", "train.txt")
        files["data.yaml"] = yaml.encode()
        files["train.txt"] = b"images/train/a.jpg\nimages/train/b.jpg\n"
    return {name: content for name, content in files.items() if isinstance(content, bytes)}


def spoilt_text(kind: str, seed: int, index: int) -> tuple[Place, bytes]:
    """Number `index` of the spoilt files of a kind, and where to put it."""
    source = random.Random(f"{seed} {kind} {index}")
    place = source.choice(_PLACES[kind])
    sound = sound_files(place.format)
    beginning = sound[place.path]
    if kind == "xml" and source.random() < 0.5:
        objects = "\n".join(bad_case.voc_object(*item) for item in BOXES["a"] * 8)
        beginning = bad_case.voc_xml("b", objects).encode()
    if kind == "yaml" and source.random() < 0.5:
        beginning = bad_case.YOLO_YAML.replace(
            "train: images/train", "train: [images/train]"
        ).encode()
    other = sound[source.choice(sorted(sound))]
    return place, mutated(beginning, kind, source, other)[: place.max_bytes]


@functools.cache
def _sound_images(format: str) -> tuple[bytes, ...]:
    """Images of all kinds that a format knows."""
    image = picture(2, (60, 44))
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = {"save_all": True, "append_images": [picture(3, (60, 44))]}
    deep = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    made = {
        "JPEG": lambda: [
            *(encode(image, progressive=True), encode(image, exif=exif)),
            *(encode(image.convert("CMYK")), encode(image.convert("L"))),
        ],
        "PNG": lambda: [
            _png_with_words(exif, 1),
            *(_png_with_words(exif, num_words) for num_words in (50, 100, 200)),
            *(encode(image.convert(mode), "PNG") for mode in ("P", "L", "LA", "RGBA", "1")),
            *(encode(deep, "PNG"), encode(image, "PNG", exif=exif), encode(image, "PNG", **frames)),
        ],
        "BMP": lambda: [encode(image.convert(mode), "BMP") for mode in ("P", "L", "1", "RGBA")],
        "WEBP": lambda: [
            *(encode(image, "WEBP", lossless=True), encode(image, "WEBP", **frames)),
            *(encode(image, "WEBP", exif=exif), encode(image.convert("RGBA"), "WEBP")),
        ],
        "TIFF": lambda: [
            *(encode(image, "TIFF", compression=name) for name in ("tiff_lzw", "tiff_deflate")),
            *(encode(image, "TIFF", compression=name) for name in ("jpeg", "packbits")),
            *(encode(image.convert(mode), "TIFF") for mode in ("P", "CMYK", "F", "RGBA", "1")),
            *(
                encode(deep, "TIFF"),
                encode(image, "TIFF", exif=exif),
                encode(image, "TIFF", **frames),
            ),
        ],
        "GIF": lambda: [encode(image, "GIF", interlace=0), encode(image, "GIF", **frames)],
    }
    return (encode(image, format), *made[format]())


def _png_with_words(exif: Image.Exif, num_words: int) -> bytes:
    """A small picture with much beside it, which can be spoilt without a trace in the pixels."""
    text = PngImagePlugin.PngInfo()
    text.add_text("comment", "some words " * num_words)
    text.add_itxt("title", "Größe " * num_words, "de", "Titel")
    return encode(picture(4, (9, 9)), "PNG", exif=exif, pnginfo=text, dpi=(72, 72))


def spoilt_image(format: str, seed: int, index: int) -> bytes:
    """Number `index` of the spoilt images of a format."""
    source = random.Random(f"{seed} {format} {index}")
    sound = _sound_images(format)
    content = mutated(source.choice(sound), "image", source, source.choice(sound))
    # Otherwise the check sums of PNG would hide nearly everything from the decoder.
    return _mended(content) if format == "PNG" and source.random() < 0.7 else content


def _mended(png: bytes) -> bytes:
    """A spoilt PNG with right check sums."""
    mended = bytearray(png)
    place = 8
    while place + 12 <= len(mended):
        end = place + 8 + int.from_bytes(mended[place : place + 4])
        if end + 4 > len(mended):
            break
        mended[end : end + 4] = zlib.crc32(mended[place + 4 : end]).to_bytes(4)
        place = end + 4
    return bytes(mended)
