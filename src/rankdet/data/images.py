"""The one place where image files are opened: for their size and for their pixels.

Content is trusted, names are not. The header is looked at before anything is decoded: a file of a
few kilobytes can claim gigabytes of pixels. Size and pixels are those after the EXIF rotation.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from rankdet.data.findings import Finding, data_error
from rankdet.errors import DataError

MAX_PIXELS = 50_000_000
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF")
EXTENSIONS = {
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".jpe": "JPEG",
    ".jfif": "JPEG",
    ".png": "PNG",
    ".bmp": "BMP",
    ".dib": "BMP",
    ".webp": "WEBP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".gif": "GIF",
}

_ORIENTATION = 0x0112  # the EXIF tag
_THIN = 8  # pixels
_SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N")


@dataclass(frozen=True)
class Header:
    """What is known of an image before it is decoded; width and height after the EXIF rotation."""

    width: int
    height: int
    format: str
    mode: str
    orientation: int
    is_animated: bool


def read_header(path: Path, max_pixels: int = MAX_PIXELS) -> Header:
    """Size and kind of an image, from the start of the file; DataError if it is none of ours."""
    with _opened(path, max_pixels) as image:
        return _header(image)


def decode(path: Path, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """The pixels of an image, (height, width, 3) uint8 RGB, rotated as EXIF says; or DataError."""
    with _opened(path, max_pixels) as image:
        image.load()
        return _rgb(image, path)


def image_findings(path: Path, header: Header) -> list[Finding]:
    """Notes on what is unusual about an image that can be used."""
    found = []

    def note(code: str, field: str, value: object) -> None:
        found.append(Finding.of(code, file=path, field=field, value=value))

    expected = EXTENSIONS.get(path.suffix.lower())
    if expected != header.format:
        note("image-extension", "format", header.format)
    if header.is_animated:
        note("image-animated", "format", header.format)
    if header.mode in (*_SIXTEEN_BIT, "I"):
        note("image-16-bit", "mode", header.mode)
    elif header.mode not in ("RGB", "L"):
        note("image-converted", "mode", header.mode)
    if header.orientation != 1:
        note("image-rotated", "orientation", header.orientation)
    if min(header.width, header.height) < _THIN:
        note("image-thin", "size", (header.width, header.height))
    return found


@contextmanager
def _opened(path: Path, max_pixels: int) -> Iterator[Image.Image]:
    """An open image within the limit; whatever goes wrong inside of `with` becomes a DataError.

    Pillow raises far more than OSError on broken files (SyntaxError, struct.error, KeyError, ...):
    here, and only here, everything is caught.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # our own limit is below Pillow's
            with Image.open(path, formats=FORMATS) as image:
                width, height = image.size
                if width * height > max_pixels:
                    raise data_error(
                        "image-too-large",
                        file=path,
                        field="size",
                        value=(width, height),
                        detail=f"The limit is {max_pixels} pixels.",
                    )
                yield image
    except Exception as error:
        raise _explained(error, path) from error


def _explained(error: Exception, path: Path) -> Exception:
    """The DataError that says what is wrong with a file on which `error` was raised."""
    if isinstance(error, DataError):
        return error
    if isinstance(error, Image.DecompressionBombError):
        return data_error("image-too-large", file=path)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return data_error("image-missing", file=path)
    try:
        with path.open("rb") as stream:
            start = stream.read(512)
    except (OSError, ValueError) as second:
        return data_error("image-unreadable", file=path, detail=f"{type(second).__name__}.")
    if not start:
        return data_error("image-empty", file=path)
    lower = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if lower.startswith((b"<!doctype", b"<html", b"<head", b"<body", b"<?xml")):
        return data_error("image-html", file=path)
    if lower.startswith(b"version https://git-lfs"):
        return data_error("image-lfs-pointer", file=path)
    if isinstance(error, UnidentifiedImageError):
        return data_error("image-format", file=path, field="first bytes", value=start[:16])
    reason = " ".join(str(error).split())[:100] or type(error).__name__
    code = "image-truncated" if "truncated" in reason else "image-corrupt"
    return data_error(code, file=path, detail=f"The decoder says: {reason}.")


def _header(image: Image.Image) -> Header:
    orientation = image.getexif().get(_ORIENTATION, 1)
    if orientation not in range(1, 9):
        orientation = 1
    width, height = image.size
    if orientation >= 5:
        width, height = height, width
    is_animated = bool(getattr(image, "is_animated", False))
    return Header(width, height, image.format or "", image.mode, orientation, is_animated)


def _rgb(image: Image.Image, path: Path) -> np.ndarray:
    """The loaded image as RGB bytes. A plain convert turns 16 bits into a white picture."""
    turned = ImageOps.exif_transpose(image)
    if turned.mode in _SIXTEEN_BIT or turned.mode == "I":
        values = np.asarray(turned).astype(np.int64)
        if turned.mode == "I" and (values.min() < 0 or values.max() > 0xFFFF):
            raise data_error("image-mode", file=path, field="mode", value=turned.mode)
        grey = (values >> 8).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if turned.mode == "F":
        raise data_error("image-mode", file=path, field="mode", value=turned.mode)
    if turned.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in turned.info:
        # Transparent places get white behind them, as viewers show them, not a random colour.
        rgba = turned.convert("RGBA")
        turned = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return np.array(turned.convert("RGB"))
