"""Files spoilt at random, the same ones for the same seed: text with an eye for tokens, and bytes.

>>> mutated(b"0 0.5 0.5 0.2 0.2", "txt", random.Random(3), b"") != b"0 0.5 0.5 0.2 0.2"
True
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable

_MAX_BYTES = 2**20
_NUMBERS = (
    *("0", "-0", "-1", "1", "0.5", "1e308", "-1e308", "1e999", "1e-320", "NaN", "nan", "Infinity"),
    *("-inf", "9" * 30, "9" * 400, "9" * 5000, "2147483648", "9223372036854775808", "1.0", "0x1F"),
    *("1_000", "١٢٣", "²", "", " ", "left", "1,5", "--1", "1e", "+5", "00012", "1:30:00", "1/2"),
)
_VALUES = (
    *("null", "true", "[]", "{}", "[[]]", '""', '"text"', "~", "1", "-1", "[1, 2, 3, 4, 5]"),
    *("!!set", '{"a": 1}', '"\\ud800"', '"\\u0000"', '"../../x"', '"/"', "*a", "&a b"),
    *("!!binary x", "? a", "2024-01-01", "2024-13-45", "<<: 1", "'", '"', "|", ">", "- - -"),
    *("&amp;", "<a/>", "<![CDATA["),
)
_PATHS = (
    *("/", "..", ".", "~", "../..", "a/../..", "//", "\\", "C:\\x", "a\0b", "x" * 5000, "\ud7ff"),
    *("*",),
)
_ENCODINGS = (
    *("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp037", "utf-7"),
)
_TOKEN = re.compile(r"[\w.+-]+|\s+|[^\w\s]")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_WORD = re.compile(r"[A-Za-z_][\w./]*")

TextMutation = Callable[[str, random.Random], str]
ByteMutation = Callable[[bytes, random.Random], bytes]


def mutated(content: bytes, kind: str, source: random.Random, other: bytes) -> bytes:
    """The content of a file after one to four mutations. other: a file to splice with."""
    for _ in range(source.choice((1, 1, 1, 2, 2, 3, 4))):
        if source.random() < 0.06:
            content = _spliced(content, other, source)
        elif kind == "image" or source.random() < 0.35:
            mutation = source.choice(_IMAGE_MUTATIONS if kind == "image" else _BYTE_MUTATIONS)
            content = mutation(content, source)
        else:
            text = content.decode("utf-8", errors="surrogateescape")
            text = source.choice(_TEXT_MUTATIONS)(text, source)
            content = text.encode("utf-8", errors="surrogateescape")
        content = content[:_MAX_BYTES]
    return content


def _span(length: int, source: random.Random, longest: int = 200) -> tuple[int, int]:
    start = source.randrange(length + 1)
    return start, min(length, start + source.randint(1, longest))


def _spliced(content: bytes, other: bytes, source: random.Random) -> bytes:
    return content[: source.randrange(len(content) + 1)] + other[source.randrange(len(other) + 1) :]


def _flip_bits(content: bytes, source: random.Random) -> bytes:
    spoilt = bytearray(content)
    for _ in range(source.choice((1, 1, 2, 8, 40)) if spoilt else 0):
        spoilt[source.randrange(len(spoilt))] ^= 1 << source.randrange(8)
    return bytes(spoilt)


def _insert_bytes(content: bytes, source: random.Random) -> bytes:
    start = source.randrange(len(content) + 1)
    return content[:start] + source.randbytes(source.randint(1, 20)) + content[start:]


def _delete_span(content: bytes, source: random.Random) -> bytes:
    start, end = _span(len(content), source)
    return content[:start] + content[end:]


def _double_span(content: bytes, source: random.Random) -> bytes:
    start, end = _span(len(content), source)
    return content[:end] + content[start:]


def _repeat_span(content: bytes, source: random.Random) -> bytes:
    """Many copies of a span; seldom a megabyte of them, which is slow to make and to read."""
    start, end = _span(len(content), source, 60)
    most = _MAX_BYTES if source.random() < 0.03 else 20_000
    copies = most // max(1, end - start)
    return content[:start] + content[start:end] * source.randint(1, copies) + content[end:]


def _zero_span(content: bytes, source: random.Random) -> bytes:
    start, end = _span(len(content), source)
    return content[:start] + bytes([source.choice((0, 255))]) * (end - start) + content[end:]


def _truncate(content: bytes, source: random.Random) -> bytes:
    return content[: source.randrange(len(content) + 1)]


def _spoil_header(content: bytes, source: random.Random) -> bytes:
    """Another number in one of the first fields, where sizes, offsets and counts stand."""
    value = source.choice((0, 1, 2, 255, 256, 7000, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF))
    order = source.choice("<>")
    field = struct.pack(f"{order}I", value) if value > 0xFFFF else struct.pack(f"{order}H", value)
    start = source.randrange(min(len(content), 200) + 1)
    return content[:start] + field + content[start + len(field) :]


_BYTE_MUTATIONS: tuple[ByteMutation, ...] = (
    *(_flip_bits, _insert_bytes, _delete_span, _double_span, _repeat_span, _zero_span, _truncate),
)
_IMAGE_MUTATIONS = (*_BYTE_MUTATIONS, _spoil_header, _spoil_header, _flip_bits, _truncate)


def _exchange(pattern: re.Pattern[str], choices: tuple[str, ...]) -> TextMutation:
    """A mutation that puts one of `choices` in the place of a match of the pattern."""

    def mutate(text: str, source: random.Random) -> str:
        matches = list(pattern.finditer(text[:100_000]))
        if not matches:
            return text + source.choice(choices)
        match = source.choice(matches)
        return text[: match.start()] + source.choice(choices) + text[match.end() :]

    return mutate


def _swap_tokens(text: str, source: random.Random) -> str:
    tokens = _TOKEN.findall(text)
    if len(tokens) > 1:
        first, second = source.randrange(len(tokens)), source.randrange(len(tokens))
        tokens[first], tokens[second] = tokens[second], tokens[first]
    return "".join(tokens)


def _drop_or_double_sign(text: str, source: random.Random) -> str:
    """A bracket, quote or comma less, or one more."""
    places = [i for i, sign in enumerate(text[:100_000]) if sign in "[]{}<>\"',:&/-"]
    if not places:
        return text
    place = source.choice(places)
    return text[:place] + text[place] * source.choice((0, 2)) + text[place + 1 :]


def _shuffle_lines(text: str, source: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    how = source.randrange(3)
    if how == 0:
        source.shuffle(lines)
    elif lines and how == 1:
        lines.append(source.choice(lines))
    elif lines:
        del lines[source.randrange(len(lines))]
    return "".join(lines)


def _recode(text: str, source: random.Random) -> str:
    """The text in another encoding, as the bytes of it that a text can carry."""
    content = text.encode(source.choice(_ENCODINGS), errors="replace")
    return content.decode("utf-8", errors="surrogateescape")


def _line_ends(text: str, source: random.Random) -> str:
    return text.replace("\n", source.choice(("\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\0", "")))


def _nest(text: str, source: random.Random) -> str:
    """Many levels of brackets or elements in the place of a number."""
    levels = source.choice((10, 63, 64, 65, 200, 1000, 5000))
    opening, closing = source.choice((("[", "]"), ('{"a":', "}"), ("<a>", "</a>"), ("- ", "")))
    filling = opening * levels + source.choice(("1", "")) + closing * source.choice((levels, 0))
    return _NUMBER.sub(lambda _: filling, text, count=1)


def _rename_key(text: str, source: random.Random) -> str:
    """A word of the file in the place of another."""
    words = _WORD.findall(text[:100_000])
    return _exchange(_WORD, tuple(words[:200]) or ("word",))(text, source)


_TEXT_MUTATIONS: tuple[TextMutation, ...] = (
    _exchange(_NUMBER, _NUMBERS),
    _exchange(_NUMBER, _NUMBERS),
    _exchange(_NUMBER, _VALUES),
    _exchange(_WORD, _VALUES),
    _exchange(_WORD, _PATHS),
    _exchange(_WORD, ("", "a", "ü", "\U0001f984", "\x1b[31m", "[red]", "<b>", "x" * 5000)),
    *(_swap_tokens, _drop_or_double_sign, _shuffle_lines, _recode, _line_ends, _nest, _rename_key),
)
