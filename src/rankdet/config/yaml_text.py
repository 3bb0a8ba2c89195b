"""YAML of strangers, read with limits: plain data comes back, or a ConfigError with the line.

No tags, aliases, duplicate keys, endless numbers, deep nesting or large files. 1e-3 is a number
here, as everywhere but in YAML 1.1.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from rankdet.errors import ConfigError, message, system_reason
from rankdet.strict_yaml import FLOAT_TAG, Refused, StrictLoader, parse

_MAX_BYTES = 2**19
_MAX_DEPTH = 16
# What is said about a fault, and what to do.
_FAULTS = {
    "forbidden": ("tags and aliases are not allowed", "Write the value out."),
    "too-deep": ("the nesting is too deep", "Settings have two levels."),
    "duplicate-key": ("the key {key!r} occurs twice", "Keep one of them."),
    "number-too-long": ("the number is too long", "Shorten it."),
}

# A float without a point, which YAML 1.1 takes for a text.
_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")


class _Loader(StrictLoader):
    """Strict YAML, and 1e-3 is a number."""


class _Dumper(yaml.SafeDumper):
    """Writes a text in quotes wherever _Loader would not take it for one, and lists on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _list_node(dumper: _Dumper, items: list[Any]) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)


_Dumper.add_representer(list, _list_node)
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(FLOAT_TAG, _FLOAT, list("-+0123456789"))


def parse_yaml(text: str, source: str) -> tuple[Any, dict[str, int]]:
    """(the data, the line of each key such as "training.epochs"); source is named in errors."""
    try:
        data, node = parse(text, _MAX_DEPTH, _Loader)
        return data, dict(_lines(node, ""))
    except Refused as error:
        rule, hint = _FAULTS[error.fault]
        rule = rule.format(key=error.key)
        raise ConfigError(message(rule, file=source, where=error.line, hint=hint)) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = " ".join(str(getattr(error, "problem", None) or "it cannot be read").split())
        raise ConfigError(
            message(
                f"this is not valid YAML: {problem}",
                file=source,
                where="" if mark is None else mark.line + 1,
                hint="Correct it.",
            )
        ) from error
    except (ValueError, OverflowError) as error:  # 2024-13-45 looks like a date, and is none
        reason = " ".join(str(error).split())[:100]
        raise ConfigError(
            message(f"a value cannot be read: {reason}", file=source, hint="Put it in quotes.")
        ) from error


def _lines(node: Any, prefix: str) -> list[tuple[str, int]]:
    """The line of every key in a mapping and in the mappings within."""
    if not isinstance(node, yaml.MappingNode):
        return []
    found = []
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        found.append((name, key.start_mark.line + 1))
        found.extend(_lines(value, f"{name}."))
    return found


def read_text(path: Path) -> str:
    """A small file of text; ConfigError if it is none."""
    try:
        if not path.is_file():
            what = "this is not a plain file" if path.exists() else "there is no such file"
            raise ConfigError(message(what, file=str(path), hint="Check the path."))
        if path.stat().st_size > _MAX_BYTES:
            rule = f"the file is larger than {_MAX_BYTES // 1024} KB, and cannot be settings"
            raise ConfigError(message(rule, file=str(path), hint="Check the path."))
        return path.read_text(encoding="utf-8")
    except OSError as error:
        rule = f"the file cannot be read: {system_reason(error)}"
        raise ConfigError(message(rule, file=str(path))) from error
    except ValueError as error:  # not UTF-8, or a path with a zero in it
        rule = "the file is not text in UTF-8"
        raise ConfigError(message(rule, file=str(path), hint="Save it as UTF-8.")) from error


def yaml_text(data: Any) -> str:
    """YAML that `parse_yaml` reads back as the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
