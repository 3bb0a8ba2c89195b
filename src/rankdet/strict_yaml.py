"""YAML of strangers as plain data, without what could run code, take for ever, or hide a mistake.

No tags, aliases, duplicate keys, endless numbers or deep nesting. Data sets and settings are read
with it; what is said about a fault, and how large a file may be, is theirs to decide.
"""

from __future__ import annotations

from typing import Any

import yaml

INT_TAG = "tag:yaml.org,2002:int"
FLOAT_TAG = "tag:yaml.org,2002:float"
_LONGEST_NUMBER = 400  # characters; the largest float has 309 digits

# Both build plain data only. libyaml's, which most installations have, is ten times as fast.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Refused(Exception):
    """What a text has and must not have.

    fault: "forbidden" (a tag or an alias), "too-deep", "duplicate-key" or "number-too-long". line:
    where it stands, from 1. key: the one that occurs twice.
    """

    def __init__(self, fault: str, place: Any, key: Any = None) -> None:
        super().__init__(fault)
        self.fault = fault
        self.line: int = place.start_mark.line + 1
        self.key = key


class StrictLoader(_SafeLoader):  # type: ignore[misc]
    """Safe YAML without duplicate keys and endless numbers."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        if len(mapping) < len(node.value):
            raise self._duplicate(node)
        return mapping

    def _duplicate(self, node: Any) -> Refused:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                return Refused("duplicate-key", key_node, key)
            seen.add(key)
        raise AssertionError("no key occurs twice")

    def construct_scalar(self, node: Any) -> Any:
        # Numbers to the base 60 (1:30:00) take quadratic time, and can be too large for a float.
        if node.tag in (INT_TAG, FLOAT_TAG) and len(node.value) > _LONGEST_NUMBER:
            raise Refused("number-too-long", node)
        return super().construct_scalar(node)


def parse(text: str, max_depth: int, loader_class: Any = StrictLoader) -> tuple[Any, Any]:
    """(the data, the node that they were made of); None for both if the text holds nothing.

    loader_class: StrictLoader, or a class made from it. Raises Refused, yaml.YAMLError, and what
    the library lets through: ValueError over a date that does not exist, for instance.

    >>> parse("a: [1, x]", max_depth=8)[0]
    {'a': [1, 'x']}
    """
    _check_events(text, max_depth, loader_class)
    loader = loader_class(text)
    node = loader.get_single_node()
    return (None, None) if node is None else (loader.construct_document(node), node)


def _check_events(text: str, max_depth: int, loader_class: Any) -> None:
    """Refused for tags, aliases (whose expansion can explode) and deep nesting."""
    depth = 0
    for event in yaml.parse(text, Loader=loader_class):
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if not isinstance(event, yaml.NodeEvent):
            continue
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
            raise Refused("forbidden", event)
        if depth >= max_depth:
            raise Refused("too-deep", event)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
