"""Files of weights, made by somebody who wants harm."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from rankdet.bench.faults import hostile_bytes as raw

_HUGE = 10**11
_PACKED = 300  # million bytes of zeros, which deflate makes a thousandth of


@dataclass(frozen=True)
class HostileFile:
    """A file of weights. content: its bytes, None for what is made by `special_file`."""

    name: str
    content: bytes | None


def hostile_files(marker: Path, sound: dict[str, Tensor]) -> Iterator[HostileFile]:
    """All of them. marker: what a payload would write. sound: tensors that would be taken."""
    for name, content in (*_code(marker), *_archives(), *_tensors(sound), *_headers()):
        yield HostileFile(name, content)
    for name in _SPECIAL:
        yield HostileFile(name, None)


def write_special(name: str, path: Path) -> None:
    """Make what is not a plain file, or larger than can be held."""
    _SPECIAL[name](path)


def _write_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _write_loop(path: Path) -> None:
    path.symlink_to(path)


def _write_terabyte(path: Path) -> None:
    with path.open("wb") as stream:
        stream.write(raw.saved(raw.pickled(b"}")))
        stream.truncate(2**40)


def _write_bomb(path: Path) -> None:
    count = _PACKED * 10**6 // 4
    large = raw.tensor((count,), (1,), count, storage_name="1")
    path.write_bytes(raw.saved(raw.pickled(raw.state_dict(large))))
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as file,
        file.open("archive/data/1", "w", force_zip64=True) as stream,
    ):
        for _ in range(_PACKED):
            stream.write(bytes(10**6))


_SPECIAL = {
    "a zip bomb": _write_bomb,
    "a named pipe": os.mkfifo,
    "a device": _write_device,
    "a link to itself": _write_loop,
    "a file of a terabyte": _write_terabyte,
}


_Contents = Iterator[tuple[str, bytes]]


def _code(marker: Path) -> _Contents:
    """Payloads that would run while the file is read, and leave the marker."""
    shell = raw.text(f"touch {marker}")
    python = raw.text(f"__import__('pathlib').Path({str(marker)!r}).touch()")
    system = raw.call("os", "system", shell)
    yield "code by os.system", raw.saved(raw.pickled(system))
    yield "code by posix.system", raw.saved(raw.pickled(raw.call("posix", "system", shell)))
    yield "code by eval", raw.saved(raw.pickled(raw.call("builtins", "eval", python)))
    yield "code by exec", raw.saved(raw.pickled(raw.call("__builtin__", "exec", python)))
    stacked = raw.text("os") + raw.text("system") + b"\x93(" + shell + b"tR"
    yield "code by a name on the stack", raw.saved(raw.pickled(stacked, protocol=4))
    yield "code in a state dict", raw.saved(raw.pickled(raw.state_dict(system)))
    namespace = b"cargparse\nNamespace\n)\x81}" + raw.text("run") + system + b"sb"
    yield "code in a namespace", raw.saved(raw.pickled(namespace))
    getter = raw.call("builtins", "getattr", b"ctorch\nTensor\n", raw.text("__reduce__"))
    yield "code by getattr", raw.saved(raw.pickled(getter))
    yield "code in the format of before 1.6", raw.old_format(system)
    yield "code in a bare pickle", raw.pickled(system)
    yield "code in a tar", raw.tar(raw.pickled(system))
    yield "code in a zip in a zip", raw.saved(raw.saved(raw.pickled(system)))
    yield "a program of TorchScript", raw.archive({"constants.pkl": b"", "data.pkl": b""})


def _archives() -> _Contents:
    """Zips that are not what they say, and pickles that want memory."""
    one = raw.pickled(raw.state_dict(raw.tensor((1,), (1,), 1)))
    large = raw.pickled(raw.state_dict(raw.tensor((10**9,), (1,), 10**9)))
    claiming = raw.with_claimed_size(raw.saved(large, bytes(4)), "data/0", 2**32 - 2)
    yield "a zip that claims gigabytes", claiming
    yield "a zip of overlapping members", raw.repeated_member(bytes(10**6), 5000)
    yield "a zip cut off", raw.saved(one, bytes(4))[:-30]
    yield "a zip with names that lead outside", raw.saved(one, bytes(4), prefix="../../../")
    yield "a zip with absolute names", raw.saved(one, bytes(4), prefix="/tmp/")
    yield (
        "a pickle that wants 100 GB",
        raw.saved(raw.pickled(raw.call("builtins", "bytearray", raw.number(_HUGE)))),
    )
    beyond = raw.state_dict(raw.tensor((10**6,), (1,), 10**6))
    yield "a storage beyond its file", raw.saved(raw.pickled(beyond), bytes(4))
    spread = raw.state_dict(raw.tensor((_HUGE,), (0,), 1))
    yield "a tensor spread over one number", raw.saved(raw.pickled(spread), bytes(4))
    outside = raw.state_dict(raw.tensor((1,), (1,), 1, offset=10**6))
    yield "a tensor outside of its storage", raw.saved(raw.pickled(outside), bytes(4))
    negative = raw.state_dict(raw.tensor((-1,), (1,), 1))
    yield "a tensor of negative size", raw.saved(raw.pickled(negative), bytes(4))
    yield "an empty file", b""
    yield "a web page", b"<!doctype html><html></html>"


def _headers() -> _Contents:
    """Files of safetensors whose header is wrong."""
    yield "a header of an exabyte", raw.safetensors({}, size=2**60)
    yield "a header longer than the file", raw.safetensors({}, size=1000)
    yield "a header of 100,000 brackets", raw.safetensors(b'{"a":' + b"[" * 100_000)
    yield "numbers outside of the file", raw.safetensors({raw.NAME: raw.entry([100], 0, 400)})
    overlapping = {raw.NAME: raw.entry([2], 0, 8), "other": raw.entry([2], 4, 12)}
    yield "overlapping tensors", raw.safetensors(overlapping, bytes(12))
    yield "a negative shape", raw.safetensors({raw.NAME: raw.entry([-1], 0, 4)}, bytes(4))
    yield (
        "a shape beyond all numbers",
        raw.safetensors({raw.NAME: raw.entry([2**40, 2**40], 0, 4)}, bytes(4)),
    )
    twice = json.dumps({raw.NAME: raw.entry([1], 0, 4)})[:-1] + ", "
    twice += json.dumps({raw.NAME: raw.entry([1], 4, 8)})[1:]
    yield "one name twice", raw.safetensors(twice.encode(), bytes(8))
    yield "reversed offsets", raw.safetensors({raw.NAME: raw.entry([1], 4, 0)}, bytes(4))


def _tensors(sound: dict[str, Tensor]) -> _Contents:
    """Files that can be read, with tensors that are not those of the network."""
    first = sound[raw.NAME]
    for name, wrong in (
        ("weights that are not numbers", torch.full_like(first, torch.nan)),
        ("weights of another shape", first[:, :, :1]),
        ("weights of another type", first.to(torch.complex64)),
        ("weights of truth values", first > 0),
    ):
        changed = {**sound, raw.NAME: wrong.contiguous()}
        yield name, safetensors.torch.save(changed)
    missing = {name: value for name, value in sound.items() if name != raw.NAME}
    yield "weights with one missing", safetensors.torch.save(missing)
