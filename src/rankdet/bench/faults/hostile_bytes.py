"""Pickles, zips and safetensors written by hand: those who make them keep no rules.

Pickles are spelt out in their opcodes; nothing here can read one.
"""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from typing import Any

NAME = "stem.0.weight"  # of a tensor that a file of weights has


def text(value: str) -> bytes:
    """The opcode that makes a text."""
    content = value.encode()
    return b"X" + struct.pack("<I", len(content)) + content


def number(value: int) -> bytes:
    """The opcode that makes a number."""
    content = value.to_bytes(16, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content


def numbers(*values: int) -> bytes:
    """The opcodes of a tuple of numbers."""
    return b"(" + b"".join(map(number, values)) + b"t"


def call(module: str, name: str, *arguments: bytes) -> bytes:
    """The opcodes that call a function."""
    return f"c{module}\n{name}\n".encode() + b"(" + b"".join(arguments) + b"tR"


def pickled(content: bytes, protocol: int = 2) -> bytes:
    """A whole pickle."""
    return b"\x80" + bytes([protocol]) + content + b"."


def tensor(
    size: tuple[int, ...],
    strides: tuple[int, ...],
    num_stored: int,
    *,
    offset: int = 0,
    storage_name: str = "0",
) -> bytes:
    """The opcodes of a tensor of float32 over a storage of the archive."""
    storage = (
        b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(storage_name) + text("cpu")
    ) + (number(num_stored) + b"tQ")
    arguments = (storage, number(offset), numbers(*size), numbers(*strides), b"\x89")
    return call(
        "torch._utils", "_rebuild_tensor_v2", *arguments, call("collections", "OrderedDict")
    )


def state_dict(content: bytes) -> bytes:
    """The opcodes of a dict with one entry."""
    return b"}" + text(NAME) + content + b"s"


def archive(members: Mapping[str, bytes], *, prefix: str = "archive/") -> bytes:
    """A zip like that of `torch.save`."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, content in members.items():
            file.writestr(prefix + name, content)
    return stream.getvalue()


def saved(pickle: bytes, storage: bytes = b"", **options: Any) -> bytes:
    """What `torch.save` would have made of this pickle and one storage."""
    members = {"data.pkl": pickle, "byteorder": b"little", "data/0": storage, "version": b"3\n"}
    return archive(members, **options)


def with_claimed_size(zipped: bytes, name: str, size: int) -> bytes:
    """The zip, whose directory claims that a member has so many bytes."""
    start = zipped.index(b"PK\x01\x02")
    while name.encode() not in zipped[start + 46 : start + 46 + 200]:
        start = zipped.index(b"PK\x01\x02", start + 4)
    sizes = struct.pack("<II", size, size)
    return zipped[: start + 20] + sizes + zipped[start + 28 :]


def repeated_member(content: bytes, count: int) -> bytes:
    """A zip with many members, all of which are the same bytes of the file."""
    one = archive({"data/0": content}, prefix="")
    start, end = one.index(b"PK\x01\x02"), one.index(b"PK\x05\x06")
    entry = one[start:end]
    directory = entry * count
    tail = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, count, count, len(directory), start, 0)
    return one[:start] + directory + tail


def old_format(content: bytes) -> bytes:
    """A file as torch wrote them before 1.6: pickles one after the other."""
    magic = b"\x8a\x0a" + (0x1950A86A20F9469CFC6C).to_bytes(10, "little")
    parts = (magic, number(1001), b"}" + text("little_endian") + b"\x88s", content, b"]")
    return b"".join(map(pickled, parts))


def tar(content: bytes) -> bytes:
    """A file as torch wrote them in its first years."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as file:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def safetensors(header: Mapping[str, Any] | bytes, content: bytes = b"", size: int = -1) -> bytes:
    """A file of safetensors. size: what it claims to be that of the header."""
    written = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(written) if size < 0 else size) + written + content


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    """What the header of a safetensors file says of a tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
