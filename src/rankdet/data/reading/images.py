"""The one place where image files are opened: for their size and for their pixels.

Content is trusted, names are not. The header is looked at before anything is decoded: a file of a
few kilobytes can claim gigabytes of pixels. Size and pixels are those after the EXIF rotation.
"""

from __future__ import annotations

import re
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from rankdet.data.reading.findings import Finding, data_error
from rankdet.errors import DataError, system_reason

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
_NO_RANGE = ("I", "F")  # 32 bits, whole or floating point: nobody says what white is
_BAND_PIXELS = 4_000_000  # decoded pixels are converted in bands: no second copy of a large image

# What Pillow says about odd metadata is of no use to anybody who trains a detector. This is set
# once, not around each call: `warnings.catch_warnings` is not safe with threads.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # our limit is lower


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
        return _header(image, path)


def decode(path: Path, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """The pixels of an image, (height, width, 3) uint8 RGB, rotated as EXIF says; or DataError."""
    with _opened(path, max_pixels) as image, _strict():
        return pixels_of(image)


def pixels_of(image: Image.Image) -> np.ndarray:
    """The same of an image that Pillow has opened; ValueError for 32 bits without a range."""
    if image.mode in _NO_RANGE:
        raise ValueError(f"expected an image of 8 or 16 bits, got Pillow's mode {image.mode!r}")
    image.load()
    return _rotated(_rgb(image), _orientation(image))


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
    if header.mode in _SIXTEEN_BIT:
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
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels  # the user raised our limit: Pillow's must not be lower
    try:
        _check_plain_file(path)
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise _too_large(path, (width, height), max_pixels)
            if image.mode in _NO_RANGE:
                raise data_error("image-mode", file=path, field="mode", value=image.mode)
            yield image
    except DataError:
        raise
    except Image.DecompressionBombError as error:  # raised before the size can be asked for
        number = re.search("[0-9]+", str(error))
        raise _too_large(path, number and f"{number[0]} pixels", max_pixels) from error
    except Exception as error:
        raise _explained(error, path) from error


def _check_plain_file(path: Path) -> None:
    """Nothing; DataError for what cannot be an image, such as a pipe, which would block us."""
    if path.is_file():
        return
    if path.exists():
        raise data_error("image-unreadable", file=path, detail="It is not a plain file.")
    raise data_error("image-missing", file=path)


def _too_large(path: Path, size: tuple[int, int] | str | None, max_pixels: int) -> DataError:
    detail = f"The limit is {max_pixels} pixels."
    return data_error("image-too-large", file=path, field="size", value=size, detail=detail)


def _explained(error: Exception, path: Path) -> DataError:
    """The DataError that says what is wrong with a file on which `error` was raised."""
    try:
        with path.open("rb") as stream:
            start = stream.read(512)
    except (OSError, ValueError) as second:
        return data_error("image-unreadable", file=path, detail=f"{system_reason(second)}.")
    if not start:
        return data_error("image-empty", file=path)
    lower = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    is_markup = lower.startswith((b"<!doctype", b"<html", b"<head", b"<body", b"<?xml"))
    if is_markup and b"<svg" not in lower:
        return data_error("image-html", file=path)
    if lower.startswith(b"version https://git-lfs"):
        return data_error("image-lfs-pointer", file=path)
    if isinstance(error, UnidentifiedImageError):
        name = _name_from_signature(start)
        if name is None:
            return data_error("image-format", file=path, field="first bytes", value=start[:16])
        detail = f"It begins as a {name} file, but the rest of its header is missing or broken."
        return data_error("image-corrupt", file=path, detail=detail)
    reason = " ".join(str(error).split())[:100] or type(error).__name__
    code = "image-truncated" if "truncated" in reason.lower() else "image-corrupt"
    return data_error(code, file=path, detail=f"The decoder says: {reason.rstrip('.')}.")


def _name_from_signature(start: bytes) -> str | None:
    """Which of our formats a file's first bytes announce."""
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return "WebP"
    signatures = {
        b"\xff\xd8\xff": "JPEG",
        b"\x89PNG\r\n\x1a\n": "PNG",
        b"BM": "BMP",
        b"II*\0": "TIFF",
        b"MM\0*": "TIFF",
        b"GIF87a": "GIF",
        b"GIF89a": "GIF",
    }
    return next((name for mark, name in signatures.items() if start.startswith(mark)), None)


class _Truncation:
    """How many decoders run, and what Pillow's switch for truncated files was before the first."""

    lock = threading.Lock()
    num_running = 0
    before = False


@contextmanager
def _strict() -> Iterator[None]:
    """Truncated files are errors, even where other code has told Pillow to fill them with grey."""
    with _Truncation.lock:
        if _Truncation.num_running == 0:
            _Truncation.before = ImageFile.LOAD_TRUNCATED_IMAGES
            ImageFile.LOAD_TRUNCATED_IMAGES = False
        _Truncation.num_running += 1
    try:
        yield
    finally:
        with _Truncation.lock:
            _Truncation.num_running -= 1
            if _Truncation.num_running == 0:
                ImageFile.LOAD_TRUNCATED_IMAGES = _Truncation.before


def _header(image: Image.Image, path: Path) -> Header:
    if image.format == "PNG" and _has_late_orientation(path):
        image.load()
    width, height = image.size
    if image.format == "TIFF":  # Pillow may have exchanged them already
        tags = image.tag_v2  # type: ignore[attr-defined]
        width, height = int(tags[256]), int(tags[257])
    orientation = _orientation(image)
    if orientation >= 5:
        width, height = height, width
    # Several pictures in one JPEG file (stereo cameras, some phones) are a format of its own to
    # Pillow, "MPO".
    name = "JPEG" if image.format == "MPO" else image.format or ""
    is_animated = False
    with suppress(Exception):  # a broken second frame does not matter
        is_animated = bool(getattr(image, "is_animated", False))
    return Header(width, height, name, image.mode, orientation, is_animated)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8. Broken EXIF data is common and counts as none."""
    try:
        # Not image.getexif(): for PNG that decodes the whole picture.
        orientation = Image.Image.getexif(image).get(_ORIENTATION, 1)
        return int(orientation) if orientation in range(1, 9) else 1
    except Exception:
        return 1


def _has_late_orientation(path: Path) -> bool:
    """Whether a PNG's EXIF or XMP data follow the pixels: they are then read after these only."""
    is_late = False
    with path.open("rb") as stream:
        stream.seek(8)
        while len(head := stream.read(8)) == 8:
            length, kind = struct.unpack(">I4s", head)
            start = stream.read(min(length, 32))
            if is_late and (
                kind == b"eXIf" or start.startswith((b"Raw profile type exif\0", b"XML:com.adobe"))
            ):
                return True
            is_late = is_late or kind == b"IDAT"
            stream.seek(length - len(start) + 4, 1)
    return False


def _rgb(image: Image.Image) -> np.ndarray:
    """The loaded image as RGB bytes, (height, width, 3), not yet rotated."""
    width, height = image.size
    pixels = np.empty((height, width, 3), dtype=np.uint8)
    num_rows = max(1, _BAND_PIXELS // width)
    shift = _num_bits(image) - 8
    for top in range(0, height, num_rows):
        bottom = min(top + num_rows, height)
        is_all = num_rows >= height
        band = image if is_all else image.crop((0, top, width, bottom))
        pixels[top:bottom] = _band_rgb(band, shift)
    return pixels


def _num_bits(image: Image.Image) -> int:
    """Bits of a grey value of more than 8: 16, but TIFF knows 12 as well."""
    bits = getattr(image, "tag_v2", {}).get(258)
    return 12 if bits == (12,) else 16


def _band_rgb(image: Image.Image, shift: int) -> np.ndarray:
    """RGB bytes. A plain convert turns 16 bits into a white picture, transparent places into any
    colour: the upper 8 bits are taken, and white is put behind, as viewers show it."""
    if image.mode in _SIXTEEN_BIT:
        return (np.asarray(image) >> shift).astype(np.uint8)[:, :, None]
    if image.mode == "La":  # grey multiplied with its transparency: Pillow knows no other way
        image = image.convert("LA")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _rotated(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """The pixels as an EXIF orientation says that they are to be shown."""
    if orientation >= 5:  # rows and columns exchanged
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
