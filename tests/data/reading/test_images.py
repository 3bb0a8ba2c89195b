"""Image files of every kind and in every state: the right pixels, or a DataError that says why."""

from __future__ import annotations

import io
import os
import stat
import struct
import subprocess
import sys
import threading
import time
import warnings
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

from rankdet.bench.bad_data import fingerprint
from rankdet.data.reading import images
from rankdet.data.reading.images import Header, decode, image_findings, read_header
from rankdet.errors import DataError

WIDTH, HEIGHT = 24, 16

# Set by the module for all, but pytest puts its own filters on top.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL.*")


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    """A picture that looks different after every rotation and mirroring."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    noise = np.random.default_rng(0).integers(0, 60, (HEIGHT, WIDTH))
    return Image.fromarray(np.stack([x * 10, y * 15, noise], axis=-1).astype(np.uint8))


def encoded(image: Image.Image, format: str, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def refused(path: Path, code: str, **options) -> DataError:
    """The error, which is the same for the header and for the pixels."""
    found = []
    for read in (read_header, decode):
        with pytest.raises(DataError) as caught:
            read(path, **options)
        found.append(caught.value)
    assert found[0].code == found[1].code == code
    assert str(found[0]) == str(found[1])
    assert str(found[0]).isprintable()
    assert found[0].__cause__ is not found[0]
    return found[0]


def decoded(path: Path) -> np.ndarray:
    """The pixels, after a look that the header says the same."""
    pixels = decode(path)
    header = read_header(path)
    assert pixels.shape == (header.height, header.width, 3)
    assert pixels.dtype == np.uint8
    assert pixels.flags.writeable
    assert pixels.flags.c_contiguous
    return pixels


def notes(path: Path) -> list[str]:
    return [finding.code for finding in image_findings(path, read_header(path))]


# ---- whole and cut files


def test_plain_pixels_are_what_was_saved(tmp_path, picture):
    for format in ("PNG", "BMP", "TIFF"):
        path = tmp_path / f"a.{format.lower()}"
        picture.save(path)
        np.testing.assert_array_equal(decoded(path), np.asarray(picture))
        assert read_header(path) == Header(WIDTH, HEIGHT, format, "RGB", 1, is_animated=False)
        assert notes(path) == []
    picture.save(tmp_path / "a.webp", lossless=True)
    np.testing.assert_array_equal(decoded(tmp_path / "a.webp"), np.asarray(picture))
    picture.save(tmp_path / "a.jpg", quality=95)
    assert np.abs(decoded(tmp_path / "a.jpg").astype(int) - np.asarray(picture)).mean() < 20


KINDS = {
    "jpeg": ("JPEG", {}),
    "progressive jpeg": ("JPEG", {"progressive": True}),
    "jpeg with restarts": ("JPEG", {"restart_marker_blocks": 1}),
    "png": ("PNG", {}),
    "bmp": ("BMP", {}),
    "webp": ("WEBP", {}),
    "lossless webp": ("WEBP", {"lossless": True}),
    "tiff": ("TIFF", {}),
    "tiff lzw": ("TIFF", {"compression": "tiff_lzw"}),
    "gif": ("GIF", {}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_lenient", [False, True])
def test_a_cut_file_gives_the_same_picture_or_an_error(
    tmp_path, picture, kind, is_lenient, monkeypatch
):
    # Other code may have told Pillow to fill up what is missing with grey.
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", is_lenient)
    format, options = KINDS[kind]
    content = encoded(picture, format, **options)
    path = tmp_path / "a.img"
    path.write_bytes(content)
    whole = decode(path)
    lengths = [*range(0, len(content), len(content) // 40), *range(len(content) - 30, len(content))]
    for length in lengths if len(content) > 300 else range(len(content)):
        path.write_bytes(content[:length])
        try:
            pixels = decode(path)
        except DataError as error:
            assert error.code in (  # noqa: PT017
                "image-truncated",
                "image-corrupt",
                "image-empty",
                "image-format",
            )
            continue
        np.testing.assert_array_equal(pixels, whole, err_msg=f"cut after {length} bytes")
        assert length > len(content) - 24  # the end of a PNG has no pixels
    assert is_lenient == ImageFile.LOAD_TRUNCATED_IMAGES


def test_a_file_cut_in_the_middle_is_called_truncated(tmp_path, picture):
    for format, options in (
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("GIF", {}),
    ):
        content = encoded(picture.resize((200, 200)), format, **options)
        path = tmp_path / "a.img"
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(DataError, match="the image ends too early"):
            decode(path)
    path.write_bytes(encoded(picture, "JPEG")[:300])
    with pytest.raises(DataError, match="the image ends too early"):  # inside of the header
        decode(path)


def test_pillows_switch_is_given_back_when_several_threads_are_done(tmp_path, picture, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    path = tmp_path / "a.jpg"
    path.write_bytes(encoded(picture.resize((300, 300)), "JPEG")[:-500])
    errors = []

    def work() -> None:
        for _ in range(20):
            try:
                decode(path)
            except DataError as error:
                errors.append(error.code)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == ["image-truncated"] * 80
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def test_a_broken_header_of_a_known_format_is_not_called_unknown(tmp_path, picture):
    path = tmp_path / "a.tif"
    path.write_bytes(encoded(picture, "TIFF", compression="tiff_lzw")[:-30])
    error = refused(path, "image-corrupt")
    assert "begins as a TIFF file" in str(error)
    for start, name in (
        (b"\xff\xd8\xff\xe0", "JPEG"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (b"BM", "BMP"),
        (b"RIFF\x10\0\0\0WEBP", "WebP"),
        (b"GIF89a", "GIF"),
        (b"GIF87a", "GIF"),
        (b"MM\0*", "TIFF"),
    ):
        path.write_bytes(start)
        with pytest.raises(DataError, match=f"begins as a {name} file|ends too early|The decoder"):
            decode(path)
    path.write_bytes(b"RIFF\x10\0\0\0WAVEfmt ")
    refused(path, "image-format")


@pytest.mark.parametrize("kind", KINDS)
def test_random_damage_gives_a_picture_or_an_error(tmp_path, picture, kind):
    format, options = KINDS[kind]
    content = encoded(picture, format, **options)
    random = np.random.default_rng(1)
    path = tmp_path / "a.img"
    for _ in range(60):
        damaged = bytearray(content)
        for place in random.integers(0, len(content), 4):
            damaged[place] = random.integers(0, 256)
        path.write_bytes(damaged)
        try:
            pixels = decode(path, max_pixels=1_000_000)
        except DataError:
            continue
        header = read_header(path)
        assert pixels.shape == (header.height, header.width, 3)


# ---- what is no image


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "image-empty"),
        (b"<!DOCTYPE html><html></html>", "image-html"),
        (b"\xef\xbb\xbf \r\n<HTML>", "image-html"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "image-html"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "image-lfs-pointer"),
        (b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>", "image-format"),
        (b"<svg/>", "image-format"),
        (b"P6 1 1 255 abc", "image-format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "image-format"),
        (b"%PDF-1.4\n", "image-format"),
        (b"8BPS\0\1" + bytes(100), "image-format"),
        (b"\0\0\0\x18ftypheic" + bytes(100), "image-format"),
        (b"\0" * 1000, "image-format"),
        (b"just text", "image-format"),
    ],
)
def test_a_file_that_is_no_image_is_called_what_it_is(tmp_path, content, code):
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    error = refused(path, code)
    assert error.file == str(path)


@pytest.mark.parametrize("format", ["PPM", "EPS", "ICO", "PCX", "TGA", "PDF", "SGI"])
def test_other_formats_are_refused_though_pillow_could_read_them(tmp_path, picture, format):
    path = tmp_path / "a.jpg"
    path.write_bytes(encoded(picture, format))
    error = refused(path, "image-format")
    assert "expected a JPEG, PNG, BMP, WebP, TIFF or GIF file" in str(error)
    assert error.value.startswith("b'")


def test_what_is_no_plain_file_is_refused_without_waiting(tmp_path):
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "broken.jpg").symlink_to("nowhere")
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    (tmp_path / "file").write_bytes(b"x")
    refused(tmp_path / "folder.jpg", "image-unreadable")
    refused(tmp_path / "pipe.jpg", "image-unreadable")
    refused(Path("/dev/zero"), "image-unreadable")
    refused(tmp_path / "missing.jpg", "image-missing")
    refused(tmp_path / "broken.jpg", "image-missing")
    refused(tmp_path / "file" / "a.jpg", "image-missing")
    refused(tmp_path / "a\0b.jpg", "image-missing")
    for name in ("loop.jpg", "x" * 300):
        with pytest.raises(DataError):
            decode(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_rights_is_refused(tmp_path, picture):
    path = tmp_path / "a.png"
    picture.save(path)
    path.chmod(0)
    error = refused(path, "image-unreadable")
    path.chmod(stat.S_IRWXU)
    assert "Permission denied" in str(error)


def test_errors_of_any_type_become_data_errors(tmp_path, picture, monkeypatch):
    path = tmp_path / "a.png"
    picture.save(path)
    for kind in (SyntaxError, struct.error, KeyError, MemoryError, IndexError, RuntimeError):
        monkeypatch.setattr(Image.Image, "getexif", lambda *_: {})
        monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *_, kind=kind: _raise(kind("odd.")))
        with pytest.raises(DataError, match=r"The decoder says: .*odd\.") as caught:
            decode(path)
        assert caught.value.code == "image-corrupt"
        assert isinstance(caught.value.__cause__, kind)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *_: _raise(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        decode(path)


def _raise(error: BaseException) -> None:
    raise error


# ---- names


@pytest.mark.parametrize(
    "name",
    [
        "ü 日本.png",
        "a\nb\x1b[31m.png",
        "-rf.png",
        "%s{}.png",
        "x" * 250 + ".png",
        os.fsdecode(b"\xff.png"),
    ],
)
def test_names_may_be_odd(tmp_path, picture, name):
    path = tmp_path / name
    picture.save(path)
    np.testing.assert_array_equal(decoded(path), np.asarray(picture))


@pytest.mark.parametrize(
    ("name", "format", "is_noted"),
    [
        ("a.JPG", "JPEG", False),
        ("a.Jpeg", "JPEG", False),
        ("a.PNG", "PNG", False),
        ("a.TIFF", "TIFF", False),
        ("a.jpg", "PNG", True),
        ("a.png", "JPEG", True),
        ("a", "PNG", True),
        ("a.xyz", "GIF", True),
    ],
)
def test_content_is_trusted_and_a_name_that_lies_is_noted(
    tmp_path, picture, name, format, is_noted
):
    path = tmp_path / name
    path.write_bytes(encoded(picture, format))
    decoded(path)
    assert read_header(path).format == format
    assert ("image-extension" in notes(path)) == is_noted


# ---- rotation


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("JPEG", {"quality": 95}),
        ("PNG", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("WEBP", {"lossless": True}),
    ],
)
def test_size_and_pixels_follow_the_exif_orientation(
    tmp_path, picture, format, options, orientation
):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a.img"
    path.write_bytes(encoded(picture, format, exif=exif, **options))
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    header = read_header(path)
    assert header.orientation == orientation
    assert (header.width, header.height) == (expected.shape[1], expected.shape[0])
    assert (header.width < header.height) == (orientation >= 5)
    np.testing.assert_array_equal(decoded(path), expected)
    assert ("image-rotated" in notes(path)) == (orientation != 1)


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum


def png(
    width: int,
    height: int,
    pixels: bytes | None = None,
    *,
    depth: int = 8,
    colour: int = 2,
    before: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """A PNG by hand; black unless the pixels (with a filter byte before each row) are given."""
    if pixels is None:
        pixels = bytes((width * 3 + 1) * height)
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [chunk(b"IHDR", head), before, chunk(b"IDAT", zlib.compress(pixels, 1)), after]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


XMP = b'XML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation="6"/>'


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("kind", ["eXIf", "iTXt", "tEXt"])
def test_a_png_may_tell_its_orientation_before_or_after_its_pixels(tmp_path, kind, is_after):
    exif = Image.Exif()
    exif[0x0112] = 6
    raw = exif.tobytes()
    content = {
        "eXIf": raw[6:],
        "iTXt": XMP,
        "tEXt": b"Raw profile type exif\0\nexif\n%d\n%s" % (len(raw), raw.hex().encode()),
    }[kind]
    place = {"after" if is_after else "before": chunk(kind.encode(), content)}
    path = tmp_path / "a.png"
    path.write_bytes(png(9, 5, **place))
    assert decoded(path).shape == (9, 5, 3)
    assert read_header(path).orientation == 6


def test_other_data_may_stand_between_the_pixels_and_the_orientation(tmp_path):
    between = chunk(b"tEXt", b"date:create\0now")
    path = tmp_path / "a.png"
    path.write_bytes(png(9, 5, before=between, after=between + chunk(b"iTXt", XMP) + between))
    assert decoded(path).shape == (9, 5, 3)


def test_the_header_of_a_png_is_read_without_its_pixels(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    text = chunk(b"tEXt", b"date:create\0now")
    path.write_bytes(png(5, 9, before=chunk(b"iTXt", XMP), after=text))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *_: pytest.fail("it was decoded"))
    assert read_header(path).width == 9


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0II*\0", b"Exif\0\0nonsense", b"Exif\0\0MM\0*\xff\xff\xff\xff"]
)
def test_broken_exif_data_count_as_none(tmp_path, picture, exif):
    path = tmp_path / "a.jpg"
    path.write_bytes(encoded(picture, "JPEG", exif=exif))
    with warnings.catch_warnings(record=True):
        assert decoded(path).shape == (HEIGHT, WIDTH, 3)


def test_exif_data_on_which_the_library_fails_count_as_none(tmp_path, picture, monkeypatch):
    path = tmp_path / "a.png"
    picture.save(path)
    monkeypatch.setattr(Image.Image, "getexif", lambda *_: _raise(SyntaxError("not a TIFF file")))
    np.testing.assert_array_equal(decoded(path), np.asarray(picture))
    assert read_header(path).orientation == 1


@pytest.mark.parametrize("orientation", [0, 9, 255])
def test_orientations_that_do_not_exist_count_as_none(tmp_path, picture, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a.jpg"
    path.write_bytes(encoded(picture, "JPEG", exif=exif))
    assert decoded(path).shape == (HEIGHT, WIDTH, 3)
    assert read_header(path).orientation == 1


# ---- kinds of pixels


GREY = np.arange(HEIGHT * WIDTH, dtype=np.uint16).reshape(HEIGHT, WIDTH) * 170


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_16_bit_grey_gives_the_upper_8_bits(tmp_path, format, order):
    path = tmp_path / f"a.{format.lower()}"
    Image.fromarray(GREY.astype(f"{order}u2")).save(path)
    np.testing.assert_array_equal(decoded(path), np.repeat((GREY >> 8)[:, :, None], 3, axis=2))
    assert notes(path) == ["image-16-bit"]


def test_16_bit_colour_gives_the_upper_8_bits(tmp_path):
    values = (np.arange(60).reshape(4, 5, 3) * 1000).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    path = tmp_path / "a.png"
    path.write_bytes(png(5, 4, rows, depth=16))
    np.testing.assert_array_equal(decoded(path), values >> 8)


def tiff(tags: dict[int, tuple[int, ...]], data: bytes) -> bytes:
    """A TIFF by hand: tags as number: (type, values); the pixels stand at byte 8."""
    entries = {273: (4, 8), 277: (3, 1), 279: (4, len(data)), 259: (3, 1), 262: (3, 1), **tags}
    directory = struct.pack("<H", len(entries)) + b"".join(
        struct.pack("<HHII", tag, kind, len(values), sum(v << 16 * i for i, v in enumerate(values)))
        for tag, (kind, *values) in sorted(entries.items())
    )
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + directory + bytes(4)


def test_12_bit_grey_gives_the_upper_8_bits(tmp_path):
    path = tmp_path / "a.tif"
    path.write_bytes(tiff({256: (4, 2), 257: (4, 1), 258: (3, 12)}, b"\xff\xf8\x00"))
    assert decoded(path).tolist() == [[[255] * 3, [128] * 3]]


@pytest.mark.parametrize("mode", ["I", "F"])
def test_32_bit_pixels_are_refused_by_the_header_already(tmp_path, picture, mode):
    path = tmp_path / "a.tif"
    picture.convert("L").convert(mode).save(path)
    assert refused(path, "image-mode").value == f"'{mode}'"


@pytest.mark.parametrize(
    ("mode", "format"),
    [
        ("1", "PNG"),
        ("1", "TIFF"),
        ("L", "PNG"),
        ("L", "JPEG"),
        ("P", "PNG"),
        ("P", "BMP"),
        ("LA", "PNG"),
        ("RGBA", "PNG"),
        ("RGBA", "WEBP"),
        ("CMYK", "TIFF"),
        ("YCbCr", "TIFF"),
        ("LAB", "TIFF"),
    ],
)
def test_opaque_pixels_of_other_kinds_are_those_of_pillows_convert(tmp_path, picture, mode, format):
    path = tmp_path / f"a.{format.lower()}"
    image = Image.new("LAB", (4, 3), (130, 10, 20)) if mode == "LAB" else picture.convert(mode)
    image.save(path, format)
    with Image.open(path) as image:
        expected = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(decoded(path), expected)
    is_plain = read_header(path).mode in ("L", "RGB")
    assert notes(path) == ([] if format == "JPEG" or is_plain else ["image-converted"]) + (
        ["image-thin"] if mode == "LAB" else []
    )


def test_cmyk_jpegs_are_the_right_way_round(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95))
    assert b"Adobe" in path.read_bytes()
    red, green, blue = decoded(path)[8, 8].tolist()
    assert red > 240
    assert green < 15
    assert blue < 15


def test_transparent_places_are_white(tmp_path):
    image = Image.new("RGBA", (9, 9), (200, 0, 0, 255))
    image.putpixel((0, 0), (0, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 0, 128))
    for name in ("a.png", "a.webp"):
        image.save(tmp_path / name, lossless=True)
        pixels = decoded(tmp_path / name)
        assert pixels[0, 0].tolist() == [255] * 3
        assert pixels[0, 1].tolist() == [127] * 3
        assert pixels[5, 5].tolist() == [200, 0, 0]
    Image.new("LA", (9, 9), (0, 0)).save(tmp_path / "b.png")
    assert decoded(tmp_path / "b.png").min() == 255


def test_grey_that_was_multiplied_with_its_transparency_is_read(tmp_path):
    """Pillow opens such a TIFF in the mode "La", which it converts to "LA" alone."""
    tags = {256: (4, 3), 257: (4, 1), 258: (3, 8, 8), 277: (3, 2), 338: (3, 1)}
    path = tmp_path / "a.tif"
    path.write_bytes(tiff(tags, bytes([100, 255, 0, 0, 50, 127])))
    assert read_header(path).mode == "La"
    assert decoded(path)[0, :, 0].tolist() == [100, 255, 178]


def test_a_palette_with_transparency_for_each_pixel_is_put_on_white():
    image = Image.new("PA", (2, 1))
    image.putpixel((1, 0), (0, 255))
    assert images._band_rgb(image, 8)[0].tolist() == [[255] * 3, [0] * 3]


def test_a_transparent_colour_of_a_palette_or_of_rgb_is_white(tmp_path):
    palette = Image.new("P", (9, 9), 1)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((0, 0), 0)
    for name in ("a.png", "a.gif"):
        palette.save(tmp_path / name, transparency=0)
        pixels = decoded(tmp_path / name)
        assert pixels[0, 0].tolist() == [255] * 3
        assert pixels[1, 1].tolist() == [40, 50, 60]
    colour = Image.new("RGB", (9, 9), (1, 2, 3))
    colour.putpixel((0, 0), (9, 9, 9))
    colour.save(tmp_path / "c.png", transparency=(1, 2, 3))
    pixels = decoded(tmp_path / "c.png")
    assert pixels[1, 1].tolist() == [255] * 3
    assert pixels[0, 0].tolist() == [9] * 3


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L", "I;16"])
def test_large_images_are_converted_in_bands_to_the_same_pixels(
    tmp_path, picture, monkeypatch, mode, orientation
):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a.png"
    image = Image.fromarray(GREY) if mode == "I;16" else picture.convert(mode)
    if mode == "RGBA":
        image.putalpha(picture.convert("L"))
    image.save(path, exif=exif)
    whole = decoded(path)
    for num_pixels in (1, 5 * WIDTH, 15 * WIDTH):
        monkeypatch.setattr(images, "_BAND_PIXELS", num_pixels)
        np.testing.assert_array_equal(decoded(path), whole)


# ---- several pictures in a file


@pytest.mark.parametrize(
    ("format", "options"),
    [("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {}), ("MPO", {})],
)
def test_the_first_of_several_frames_is_used_and_noted(tmp_path, picture, format, options):
    first, second = Image.new("RGB", (9, 9), "white"), Image.new("RGB", (9, 9), "black")
    content = encoded(first, format, save_all=True, append_images=[second], **options)
    path = tmp_path / "a.img"
    path.write_bytes(content)
    assert decoded(path).min() > 250
    assert read_header(path).is_animated
    assert "image-animated" in notes(path)


def test_several_pictures_in_a_jpeg_are_a_jpeg(tmp_path, picture):
    path = tmp_path / "a.jpg"
    path.write_bytes(encoded(picture, "MPO", save_all=True, append_images=[picture]))
    assert read_header(path).format == "JPEG"
    assert notes(path) == ["image-animated"]


@pytest.mark.parametrize("format", ["GIF", "TIFF", "PNG"])
def test_a_file_cut_after_its_first_frame_can_be_used(tmp_path, picture, format):
    one = encoded(picture, format)
    two = encoded(picture, format, save_all=True, append_images=[picture.rotate(180)])
    path = tmp_path / "a.img"
    for length in range(len(one) + 60, len(two), 13):
        path.write_bytes(two[:length])
        assert decoded(path).shape == (HEIGHT, WIDTH, 3)


# ---- sizes


@pytest.mark.parametrize(
    ("size", "is_thin"), [((1, 200), True), ((200, 1), True), ((7, 9), True), ((8, 8), False)]
)
def test_thin_images_are_read_and_noted(tmp_path, size, is_thin):
    path = tmp_path / "a.png"
    Image.new("RGB", size).save(path)
    decoded(path)
    assert ("image-thin" in notes(path)) == is_thin
    for finding in image_findings(path, read_header(path)):
        assert (finding.field, finding.value) == ("size", str(size))


def test_the_limit_of_pixels_is_inclusive_and_named(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGB", (30, 20)).save(path)
    assert decode(path, max_pixels=600).shape == (20, 30, 3)
    error = refused(path, "image-too-large", max_pixels=599)
    assert error.value == "(30, 20)"
    assert "The limit is 599 pixels." in str(error)
    assert "--max-pixels" in str(error)


def test_a_raised_limit_is_not_stopped_by_pillows_own(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    path = tmp_path / "a.png"
    Image.new("RGB", (100, 50)).save(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode(path, max_pixels=5000).shape == (50, 100, 3)


def test_pillows_limit_may_be_switched_off_and_ours_still_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    path = tmp_path / "a.png"
    Image.new("RGB", (30, 20)).save(path)
    assert decode(path).shape == (20, 30, 3)
    refused(path, "image-too-large", max_pixels=599)
    assert Image.MAX_IMAGE_PIXELS is None


def test_pillows_limit_is_never_lowered(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    path = tmp_path / "a.png"
    Image.new("RGB", (9, 9)).save(path)
    decode(path, max_pixels=100)
    assert Image.MAX_IMAGE_PIXELS == 1000


def test_an_image_beyond_pillows_limit_is_refused_with_its_pixels(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    path = tmp_path / "a.png"
    Image.new("RGB", (30, 20)).save(path)
    error = refused(path, "image-too-large", max_pixels=99)
    assert error.value == "'600 pixels'"
    assert "The limit is 99 pixels." in str(error)


MEASURE = """
import resource, sys, time
from pathlib import Path
import numpy, PIL.Image
from rankdet.data.reading import images
from rankdet.errors import DataError
PIL.Image.init()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name in sys.argv[1:]:
    for read in (images.read_header, images.decode):
        started = time.process_time()
        try:
            read(Path(name))
            outcome = "read"
        except DataError as error:
            outcome = error.code
        megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(outcome, time.process_time() - started, megabytes)
"""


def measured(tmp_path: Path, contents: list[bytes]) -> tuple[set[str], float, float]:
    """What the files gave, the most seconds for one and the megabytes, in another process."""
    paths = [tmp_path / f"{number}.png" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, *paths], capture_output=True, text=True, check=True
    )
    assert not result.stderr
    outcomes, seconds, megabytes = zip(*map(str.split, result.stdout.splitlines()), strict=True)
    return set(outcomes), max(map(float, seconds)), max(map(float, megabytes))


def gif_with_screen(width: int, height: int) -> bytes:
    content = bytearray(encoded(Image.new("P", (4, 4)), "GIF"))
    content[6:10] = struct.pack("<HH", width, height)
    return bytes(content)


def test_bombs_are_refused_for_little_time_and_memory(tmp_path):
    claim, screen = png(60000, 60000, b"x"), gif_with_screen(65535, 65535)
    real = png(11000, 5000, bytes(11001 * 5000), colour=0)
    warned = png(10000, 10000, b"x")  # beyond Pillow's limit, but not beyond twice of it
    outcomes, seconds, megabytes = measured(tmp_path, [claim, real, screen, warned])
    assert outcomes == {"image-too-large"}
    assert seconds < 1
    assert megabytes < 30


def test_metadata_cannot_fill_the_memory(tmp_path):
    huge = zlib.compress(bytes(100_000_000), 1)
    part = zlib.compress(bytes(900_000), 1)
    metadata = [
        chunk(b"iCCP", b"x\0\0" + huge),
        chunk(b"zTXt", b"x\0\0" + huge),
        b"".join(chunk(b"zTXt", b"x%d\0\0" % number + part) for number in range(70)),
    ]
    _, seconds, megabytes = measured(tmp_path, [png(8, 8, before=before) for before in metadata])
    assert seconds < 1
    assert megabytes < 90


@pytest.mark.slow
def test_an_image_just_below_the_limit_stays_below_400_megabytes(tmp_path):
    outcomes, _, megabytes = measured(tmp_path, [png(9000, 5000), gif_with_screen(7000, 7000)])
    assert outcomes == {"read"}
    assert megabytes < 400


def test_a_tiff_with_many_tags_pages_or_a_loop_is_read_soon_or_refused(tmp_path):
    tags = {256: (4, 8), 257: (4, 8), 258: (3, 8)}
    one = tiff(tags, bytes(64))
    start = 8 + 64
    many_tags = tiff({**tags, **{50000 + i: (4, i) for i in range(15_000)}}, bytes(64))
    loop = one[:-4] + struct.pack("<I", start)
    page = one[start:-4]
    pages = bytearray(one[:start])
    for _ in range(5000):
        pages += page + struct.pack("<I", len(pages) + len(page) + 4)
    path = tmp_path / "a.tif"
    for content in (many_tags, loop, bytes(pages)):
        path.write_bytes(content)
        started = time.process_time()
        decoded(path)
        assert time.process_time() - started < 2


def test_reading_changes_no_file(tmp_path, picture):
    for name in ("a.jpg", "a.png", "a.tif", "a.gif", "a.webp", "a.bmp"):
        picture.save(tmp_path / name)
    before = fingerprint(tmp_path)
    for path in tmp_path.iterdir():
        decoded(path)
    assert fingerprint(tmp_path) == before


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs a list of open files")
def test_files_are_closed_after_reading_and_after_errors(tmp_path, picture):
    path = tmp_path / "a.jpg"
    before = len(list(Path("/proc/self/fd").iterdir()))
    for content in (encoded(picture, "JPEG"), encoded(picture, "JPEG")[:400], b"text"):
        path.write_bytes(content)
        for read in (read_header, decode, read_header, decode):
            with suppress(DataError):
                read(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
