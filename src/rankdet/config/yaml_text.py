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

_MAX_BYTES = 2**19
_MAX_DEPTH = 16
_LONGEST_NUMBER = 400  # characters; the largest float has 309 digits

# A float without a point, which YAML 1.1 takes for a text.
_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
_FLOAT_TAG = "tag:yaml.org,2002:float"
_INT_TAG = "tag:yaml.org,2002:int"


# Both build plain data only. libyaml's, which most installations have, is ten times as fast.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc]
    """Safe YAML without duplicate keys and endless numbers."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise _refused(f"the key {key!r} occurs twice", "Keep one of them.", key_node)
            seen.add(key)
        return mapping

    def construct_scalar(self, node: Any) -> Any:
        # Numbers to the base 60 (1:30:00) take quadratic time, and can be too large for a float.
        if node.tag in (_INT_TAG, _FLOAT_TAG) and len(node.value) > _LONGEST_NUMBER:
            raise _refused("the number is too long", "Shorten it.", node)
        return super().construct_scalar(node)


class _Dumper(yaml.SafeDumper):
    """Writes a text in quotes wherever _Loader would not take it for one, and lists on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _list_node(dumper: _Dumper, items: list[Any]) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)


_Dumper.add_representer(list, _list_node)
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+0123456789"))


class _Refused(Exception):
    """A rule of ours that the text breaks: (rule, hint, line from 1)."""


def _refused(rule: str, hint: str, place: Any) -> _Refused:
    return _Refused(rule, hint, place.start_mark.line + 1)


def parse_yaml(text: str, source: str) -> tuple[Any, dict[str, int]]:
    """(the data, the line of each key such as "training.epochs"); source is named in errors."""
    try:
        _check_events(text)
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        return loader.construct_document(node), dict(_lines(node, ""))
    except _Refused as error:
        rule, hint, line = error.args
        raise ConfigError(message(rule, file=source, where=line, hint=hint)) from error
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


def _check_events(text: str) -> None:
    """_Refused for tags, aliases (whose expansion can explode) and deep nesting."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if not isinstance(event, yaml.NodeEvent):
            continue
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
            raise _refused("tags and aliases are not allowed", "Write the value out.", event)
        if depth >= _MAX_DEPTH:
            raise _refused("the nesting is too deep", "Settings have two levels.", event)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1


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
