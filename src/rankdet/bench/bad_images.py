"""Bad and unusual image files: truncated, lying, rotated, oversized, of every odd kind."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

from rankdet.bench.bad_case import (
    SIZE,
    Case,
    Files,
    Folder,
    Pipe,
    encode,
    picture,
    remove,
    replace,
    voc_xml,
)

_IMAGES = "images/train/"
_LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef\nsize 12345\n"
_HTML = b"\r\n<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head></html>\n"


def _instead(content: object, name: str = "b.jpg") -> Callable[[Files], None]:
    """A spoiler that puts another file in the place of b.jpg."""

    def spoil(files: Files) -> None:
        del files[f"{_IMAGES}b.jpg"]
        files[f"{_IMAGES}{name}"] = content  # type: ignore[assignment]

    return spoil


def _case(name: str, content: object, code: str = "", file: str = "b.jpg", **rest: Any) -> Case:
    """A case of a YOLO data set, which says nothing about sizes, with another file for b.jpg."""
    return Case(name, "yolo", _instead(content, file), code, file if code else "", **rest)


def image_cases() -> Iterator[Case]:
    """All cases that are about the image files themselves."""
    yield from _no_image()
    yield from _broken()
    yield from _names()
    yield from _orientations()
    yield from _kinds()
    yield from _frames()
    yield from _sizes()
    yield from _copies()


def _no_image() -> Iterator[Case]:
    yield _case("a zero-byte image", b"", "image-empty")
    yield _case("a web page named jpg", _HTML, "image-html")
    yield _case("a Git LFS pointer named jpg", _LFS, "image-lfs-pointer")
    yield _case("text named jpg", b"hello\n", "image-format", field="first bytes", value="hello")
    yield _case("an SVG named jpg", b"<svg width='64'/>", "image-format", value="<svg")
    yield _case("random bytes named jpg", bytes(range(7, 250)), "image-format")
    for name, thing in (("a folder", Folder()), ("a named pipe", Pipe())):
        spoil = replace("train2017/b.jpg", thing)
        yield Case(f"{name} named jpg", "coco", spoil, "image-unreadable", "b.jpg")
    for format in ("PPM", "TGA", "ICO", "PCX", "JPEG2000", "EPS"):
        content = encode(picture(1), format)
        yield _case(f"an exotic {format} file", content, "image-format", field="first bytes")


def _broken() -> Iterator[Case]:
    jpeg = encode(picture(ord("b")))
    yield _case(
        "a JPEG cut short", jpeg[: len(jpeg) * 3 // 4], "image-truncated", found_by="decoding"
    )
    yield _case("a JPEG without its end", jpeg[:-40], "image-truncated", found_by="decoding")
    yield _case("a JPEG cut in its header", jpeg[:30], "image-truncated")
    for format in ("PNG", "BMP", "WEBP", "TIFF", "GIF"):
        content = encode(picture(ord("b")), format)
        code = "image-corrupt" if format == "WEBP" else "image-truncated"
        stage = "reading" if format == "WEBP" else "decoding"  # WebP has its length in the header
        name = f"b.{format.lower()}"
        half = content[: len(content) * 2 // 3]
        also = ("image-converted",) if format == "GIF" else ()
        yield _case(f"a {format} cut short", half, code, name, also=also, found_by=stage)
    png = bytearray(encode(picture(ord("b")), "PNG"))
    png[len(png) // 2] ^= 0xFF
    yield _case(
        "a PNG with a flipped byte", bytes(png), "image-corrupt", "b.png", found_by="decoding"
    )
    content = png_with_text(2**21)
    yield _case("a PNG with a bomb of text", content, "image-corrupt", "b.png", value="too large")


def png_with_text(num_characters: int) -> bytes:
    """A PNG with a comment that is small only as long as it is compressed."""
    text = PngImagePlugin.PngInfo()
    text.add_text("comment", " " * num_characters, zip=True)
    return encode(picture(ord("b")), "PNG", pnginfo=text)


def _names() -> Iterator[Case]:
    png = encode(picture(ord("b")), "PNG")
    jpeg = encode(picture(ord("b")))
    yield _case("a PNG named jpg", png, "image-extension", field="format", value="PNG")
    yield _case("a JPEG named gif", jpeg, "image-extension", "b.gif", field="format", value="JPEG")
    yield _case("an upper-case extension", jpeg, file="b.JPG")
    yield _case("a mixed-case extension", png, file="b.Png")
    yield Case(
        "a missing image in VOC", "voc", remove("JPEGImages/b.jpg"), "image-missing", "b.jpg"
    )
    yield Case(
        "a missing image in COCO", "coco", remove("train2017/b.jpg"), "image-missing", "b.jpg"
    )


def _exif(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(picture(ord("b")), exif=exif)


def _orientations() -> Iterator[Case]:
    for number in range(2, 9):
        yield _case(
            f"EXIF orientation {number}",
            _exif(number),
            "image-rotated",
            field="orientation",
            value=str(number),
        )
    yield _case("EXIF orientation 9 that does not exist", _exif(9))

    def turned(size: tuple[int, int]) -> Callable[[Files], None]:
        def spoil(files: Files) -> None:
            files["JPEGImages/b.jpg"] = _exif(6)
            files["Annotations/b.xml"] = voc_xml("b", size=size).encode()

        return spoil

    yield Case(
        "EXIF rotation with the size before it",
        "voc",
        turned(SIZE),
        "image-size-differs",
        "b.xml",
        "size",
        "EXIF orientation 6",
        also=("image-rotated",),
    )
    yield Case(
        "EXIF rotation with the size after it",
        "voc",
        turned((SIZE[1], SIZE[0])),
        "image-rotated",
        "b.jpg",
        "orientation",
        also=("box-clipped",),
    )


def _kinds() -> Iterator[Case]:
    image = picture(ord("b"))
    deep = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    yield _case("a 16-bit PNG", encode(deep, "PNG"), "image-16-bit", "b.png", field="mode")
    yield _case("a 16-bit TIFF", encode(deep, "TIFF"), "image-16-bit", "b.tif", field="mode")
    real = encode(image.convert("F"), "TIFF")
    yield _case(
        "a floating point TIFF",
        real,
        "image-mode",
        "b.tif",
        field="mode",
        value="'F'",
    )
    long = Image.fromarray(np.asarray(image.convert("L")).astype(np.int32) * 2**20)
    yield _case(
        "a 32-bit TIFF",
        encode(long, "TIFF"),
        "image-mode",
        "b.tif",
        field="mode",
        value="'I'",
    )
    for mode, format in (
        ("RGBA", "PNG"),
        ("LA", "PNG"),
        ("P", "PNG"),
        ("1", "PNG"),
        ("CMYK", "JPEG"),
        ("YCbCr", "TIFF"),
        ("LAB", "TIFF"),
        ("RGBA", "WEBP"),
        ("P", "BMP"),
    ):
        made = _converted(image, mode)
        yield _case(
            f"pixels of mode {mode} in a {format}",
            encode(made, format),
            "image-converted",
            f"b.{format.lower()}",
            field="mode",
            value=f"'{mode}'",
        )
    palette = encode(image.convert("P"), "PNG", transparency=3)
    yield _case("a palette with a transparent colour", palette, "image-converted", "b.png")
    yield _case("a grey JPEG", encode(image.convert("L")))
    yield _case("a progressive JPEG", encode(image, progressive=True))


def _converted(image: Image.Image, mode: str) -> Image.Image:
    if mode == "LAB":
        return Image.frombytes("LAB", image.size, image.tobytes())
    made = image.convert(mode)
    if mode == "RGBA":
        made.putalpha(128)  # a WebP file without transparent places is read as RGB
    return made


def _frames() -> Iterator[Case]:
    first, second = picture(ord("b")), picture(5)
    for format in ("GIF", "PNG", "WEBP", "TIFF"):
        content = encode(first, format, save_all=True, append_images=[second])
        yield _case(
            f"several frames in a {format}",
            content,
            "image-animated",
            f"b.{format.lower()}",
            field="format",
            value=format,
            also=("image-converted",) if format == "GIF" else (),
        )


def png_bomb(width: int, height: int) -> bytes:
    """A small PNG that unpacks to width x height grey pixels of one value."""
    packer = zlib.compressobj(9)
    row = bytes(1 + width)
    packed = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    return png_of(width, height, packed)


def png_of(width: int, height: int, packed: bytes) -> bytes:
    """A grey PNG with a valid header, whatever its pixels are."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def _sizes() -> Iterator[Case]:
    limit: dict[str, Any] = {"field": "size", "images": (2, 1), "objects": (3, 2)}
    bomb = png_bomb(21_000, 7_000)  # 147 MP: 441 MB as RGB
    yield _case("a decompression bomb", bomb, "image-too-large", "b.png", value="21000", **limit)
    over = png_bomb(10_000, 5_001)
    yield _case(
        "a PNG just over the limit", over, "image-too-large", "b.png", value="5001", **limit
    )
    vast = bytearray(encode(picture(3), "BMP"))
    vast[18:26] = struct.pack("<ii", 60_000, 60_000)
    yield _case(
        "a BMP that claims 3.6 gigapixels",
        bytes(vast),
        "image-too-large",
        "b.bmp",
        value="3600000000 pixels",
        **limit,
    )
    yield _case("an image 1 pixel wide", encode(picture(3, (1, 90))), "image-thin", value="(1, 90)")
    yield _case("an image 1 pixel high", encode(picture(3, (90, 1))), "image-thin", value="(90, 1)")
    yield _case("an image of 1 pixel", encode(picture(3, (1, 1))), "image-thin", value="(1, 1)")

    def other_size(files: Files) -> None:
        files["train2017/b.jpg"] = encode(picture(3, (32, 24)))

    yield Case(
        "a COCO size that is not the image's",
        "coco",
        other_size,
        "image-size-differs",
        "instances_train2017.json",
        "size",
        "(64, 48)",
    )
    yield Case(
        "a VOC size that is not the image's",
        "voc",
        lambda files: files.update({"JPEGImages/b.jpg": encode(picture(3, (32, 24)))}),
        "image-size-differs",
        "b.xml",
        "size",
        "32 x 24",
    )


def _copies() -> Iterator[Case]:
    def in_both(files: Files) -> None:
        files["images/val/c.jpg"] = files["images/train/b.jpg"]

    def twice(files: Files) -> None:
        files["images/train/b.jpg"] = files["images/train/a.jpg"]

    yield Case(
        "the same image in train and val",
        "yolo",
        in_both,
        "image-in-two-splits",
        ".jpg",
        found_by="checking",
    )
    yield Case(
        "the same image twice in train", "yolo", twice, "image-twice", ".jpg", found_by="checking"
    )
