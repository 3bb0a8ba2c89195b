"""Text, XML, JSON and YAML of strangers, read with limits: plain data comes back, or a DataError.

No DTDs, entities, tags, aliases, duplicate keys, NaN, or nesting beyond what annotations need;
sizes are checked before anything is read.
"""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ParseError, TreeBuilder

import defusedxml
import yaml
from defusedxml.ElementTree import DefusedXMLParser

from rankdet.data.findings import data_error

MAX_XML_BYTES = 16 * 2**20
MAX_JSON_BYTES = 4 * 2**30
MAX_TEXT_BYTES = 16 * 2**20  # label files, lists of images and YAML
MAX_DEPTH = 64

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
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise data_error("file-unreadable", file=path, detail=f"{reason}.") from error


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
    parser = DefusedXMLParser(target=_ShallowTree(), forbid_dtd=True)
    try:
        parser.feed(content)
        root = parser.close()
    except ParseError as error:
        line = error.position[0]
        detail = f"The parser says: {error.msg}."
        raise data_error("xml-malformed", file=path, where=line, detail=detail) from error
    except defusedxml.DefusedXmlException as error:
        raise data_error("xml-forbidden", file=path) from error
    except RecursionError as error:
        raise data_error("xml-too-deep", file=path) from error
    except (LookupError, ValueError) as error:  # an encoding that does not exist or does not fit
        detail = " ".join(str(error).split())[:100] + "."
        raise data_error("xml-malformed", file=path, detail=detail) from error
    assert isinstance(root, Element)
    return root


def read_json(path: Path) -> Any:
    """The content of a JSON file; strict: no NaN, no duplicate keys, no deep nesting."""
    text = decode_text(read_bytes(path, MAX_JSON_BYTES), path)

    def refuse_constant(name: str) -> None:
        raise data_error("json-not-finite", file=path, value=name)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise data_error("json-duplicate-key", file=path, field="key", value=twice)
        return result

    try:
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        detail = f"Line {error.lineno}, column {error.colno}: {error.msg}."
        raise data_error("json-malformed", file=path, detail=detail) from error
    except RecursionError as error:
        raise data_error("json-too-deep", file=path) from error
    except ValueError as error:  # an integer of more digits than Python converts
        detail = " ".join(str(error).split())[:100] + "."
        raise data_error("json-malformed", file=path, detail=detail) from error


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML without aliases (whose expansion can explode), deep nesting and duplicate keys."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise _Refused("yaml-forbidden", self.peek_event())  # type: ignore[no-untyped-call]
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Refused("yaml-too-deep", self.peek_event())  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        if len(mapping) < len(node.value):
            raise _Refused("yaml-duplicate-key", node)
        return mapping


class _Refused(Exception):
    """A rule of ours that YAML breaks, with the node or event where."""

    def __init__(self, code: str, place: Any) -> None:
        super().__init__(code)
        self.code = code
        self.line: int = place.start_mark.line + 1


def read_yaml(path: Path) -> Any:
    """The content of a YAML file: mappings, lists, texts and numbers."""
    text = decode_text(read_bytes(path, MAX_TEXT_BYTES), path)
    try:
        return _StrictLoader(text).get_single_data()
    except _Refused as error:
        raise data_error(error.code, file=path, where=error.line) from error
    except yaml.constructor.ConstructorError as error:
        raise data_error("yaml-forbidden", file=path, where=_line(error)) from error
    except yaml.YAMLError as error:
        raise data_error("yaml-malformed", file=path, where=_line(error)) from error
    except RecursionError as error:
        raise data_error("yaml-too-deep", file=path) from error
    except (ValueError, TypeError, AttributeError) as error:  # dates that do not exist, odd keys
        detail = " ".join(str(error).split())[:100] + "."
        raise data_error("yaml-malformed", file=path, detail=detail) from error


def _line(error: yaml.YAMLError) -> int | str:
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else int(mark.line) + 1
