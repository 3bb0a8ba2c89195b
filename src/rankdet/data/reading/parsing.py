"""Text, XML, JSON and YAML of strangers, read with limits: plain data comes back, or a DataError.

No DTDs, entities, tags, aliases, duplicate keys, NaN, or nesting beyond what annotations need;
sizes are checked before anything is read.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ParseError, TreeBuilder

import defusedxml
import yaml
from defusedxml.ElementTree import DefusedXMLParser

from rankdet import strict_yaml
from rankdet.data.reading.findings import data_error
from rankdet.errors import DataError, shorten, system_reason

# Above what real files need (VOC's XML: 100 KB; 13,000 class names in YAML: 300 KB; COCO: 0.5 GB; a
# list of 1.7 million images: 150 MB), and low enough that no file takes long. Measured on the worst
# content, for each megabyte: XML 0.4 s and 30 MB, YAML 10 s and 340 MB.
MAX_XML_BYTES = 4 * 2**20
MAX_JSON_BYTES = 4 * 2**30
MAX_YAML_BYTES = 2**19
MAX_TEXT_BYTES = 2**20  # the labels of one image: some 25,000 lines
MAX_LIST_BYTES = 256 * 2**20  # lists of images
MAX_DEPTH = 64

# Encodings with several bytes to a character that XML files are found in; the parser knows UTF-8,
# UTF-16 and those with one byte.
_ASIAN_ENCODINGS = ("gb2312", "gbk", "gb18030", "big5", "shift_jis", "euc-jp", "euc-kr")
_DECLARED = re.compile(rb"""<\?xml[^>]*?encoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
_JSON_NOT_FINITE = re.compile(r"[\[:,\s](?:NaN|-?Infinity)\s*[\],}]")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?(nan|inf|infinity)", re.IGNORECASE)
_LONGEST_COORDINATE = 100  # characters of a number in VOC or YOLO
_YAML_FAULTS = {"number-too-long": "yaml-malformed"}  # the others are called as their rules

_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """The whole file, if it is a plain file of at most `max_bytes`."""
    try:
        if not path.exists():
            raise data_error("data-missing", file=path)
        if not path.is_file():
            raise data_error("file-unreadable", file=path, detail="It is not a plain file.")
        size = path.stat().st_size
        if size > max_bytes:
            detail = f"The limit is {max_bytes} bytes."
            raise data_error("file-too-large", file=path, field="size", value=size, detail=detail)
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        detail = f"{system_reason(error)}."
        raise data_error("file-unreadable", file=path, detail=detail) from error


def decode_text(content: bytes, path: Path) -> str:
    """The text of a file: UTF-8, or UTF-16 / UTF-32 with their mark, or else DataError.

    >>> decode_text("Größe".encode("utf-8-sig"), Path("a.txt"))
    'Größe'
    """
    encoding = next((name for mark, name in _BOMS.items() if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        value = content[error.start : error.start + 8]
        detail = f"Byte {error.start} is not {encoding}."
        raise data_error(
            "file-encoding", file=path, field="bytes", value=value, detail=detail
        ) from error
    if "\0" in text:
        raise data_error("file-encoding", file=path, detail="It holds null characters.")
    return text


def parse_number(text: str) -> float | None:
    """The number that a text is, which may be NaN or infinite; None if it is none.

    Python's own float() also takes 1_000 and the digits of other scripts.

    >>> parse_number("12.5"), parse_number("nan"), parse_number("1_0")
    (12.5, nan, None)
    """
    if _NOT_FINITE.fullmatch(text):
        return math.nan
    if len(text) > _LONGEST_COORDINATE or _NUMBER.fullmatch(text) is None:
        return None
    return float(text)


def read_lines(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> list[str]:
    """The lines of a text file without their ends (LF, CRLF or CR)."""
    text = decode_text(read_bytes(path, max_bytes), path)
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


class _ShallowTree(TreeBuilder):
    """A tree builder that stops at MAX_DEPTH: deep trees overflow the stack when they are freed."""

    depth = 0

    def start(self, tag: Any, attrs: Any) -> Element:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RecursionError
        return super().start(tag, attrs)

    def end(self, tag: Any) -> Element:
        self.depth -= 1
        return super().end(tag)


def read_xml(path: Path) -> Element:
    """The root element of an XML file in any encoding that it declares."""
    content = read_bytes(path, MAX_XML_BYTES)
    declared = _DECLARED.match(content[:200])
    encoding = declared[1].decode().lower() if declared else "utf-8"
    parser = DefusedXMLParser(target=_ShallowTree(), forbid_dtd=True)
    try:
        parser.feed(content.decode(encoding) if encoding in _ASIAN_ENCODINGS else content)
        root = parser.close()
    except ParseError as error:
        if encoding == "utf-8":
            decode_text(content, path)  # says it better if the encoding is the trouble
        line = error.position[0]
        detail = f"The parser says: {error.msg}."
        raise data_error("xml-malformed", file=path, where=line, detail=detail) from error
    except defusedxml.DefusedXmlException as error:
        raise data_error("xml-forbidden", file=path) from error
    except RecursionError as error:
        raise data_error("xml-too-deep", file=path) from error
    except (LookupError, ValueError) as error:  # an encoding that does not exist or does not fit
        raise data_error("xml-malformed", file=path, detail=_reason(error)) from error
    assert isinstance(root, Element)
    return root


def read_json(path: Path, unused: frozenset[str] = frozenset()) -> Any:
    """The content of a JSON file; strict: no NaN, no duplicate keys, no deep nesting.

    unused: keys that are left out of every object while reading, to save memory.
    """
    text = decode_text(read_bytes(path, MAX_JSON_BYTES), path)

    def refuse_constant(name: str) -> None:
        found = _JSON_NOT_FINITE.search(text)
        near = text[max(found.start() - 30, 0) : found.end() + 30] if found else name
        detail = f"Near {shorten(near)}."
        raise data_error("json-not-finite", file=path, value=name, detail=detail)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            raise _duplicate_key(pairs, path)
        for key in unused:
            result.pop(key, None)
        return result

    try:
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        detail = f"Line {error.lineno}, column {error.colno}: {error.msg}."
        raise data_error("json-malformed", file=path, detail=detail) from error
    except RecursionError as error:
        raise data_error("json-too-deep", file=path) from error
    except ValueError as error:  # an integer of more digits than Python converts
        raise data_error("json-malformed", file=path, detail=_reason(error)) from error


def _duplicate_key(pairs: list[tuple[str, Any]], path: Path) -> DataError:
    """The error for a JSON object with a key that occurs twice; it quotes the object's start."""
    keys: set[str] = set()
    for key, _ in pairs:
        if key in keys:
            break
        keys.add(key)
    detail = f"The object begins {shorten(dict(pairs[:3]))}."
    return data_error("json-duplicate-key", file=path, field="key", value=key, detail=detail)


def _reason(error: Exception) -> str:
    """What a library says about a file, as one short sentence."""
    return " ".join(str(error).split())[:100].rstrip(".") + "."


def read_yaml(path: Path) -> Any:
    """The content of a YAML file: mappings, lists, texts and numbers."""
    text = decode_text(read_bytes(path, MAX_YAML_BYTES), path)
    try:
        return strict_yaml.parse(text, MAX_DEPTH)[0]
    except strict_yaml.Refused as error:
        code = _YAML_FAULTS.get(error.fault, f"yaml-{error.fault}")
        raise data_error(code, file=path, where=error.line) from error
    except yaml.constructor.ConstructorError as error:
        raise data_error(
            "yaml-forbidden", file=path, where=_line(error), detail=_problem(error)
        ) from error
    except yaml.YAMLError as error:
        raise data_error(
            "yaml-malformed", file=path, where=_line(error), detail=_problem(error)
        ) from error
    except RecursionError as error:
        raise data_error("yaml-too-deep", file=path) from error
    except Exception as error:  # dates that do not exist, odd keys: the library checks little
        raise data_error("yaml-malformed", file=path, detail=_reason(error)) from error


def _line(error: yaml.YAMLError) -> int | str:
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else int(mark.line) + 1


def _problem(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None)
    return "" if problem is None else f"The parser says: {problem}."
