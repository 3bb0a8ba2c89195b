"""Settings as plain mappings, as YAML, and as `section.key=value` on the command line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

from rankdet.config.rules import NO_VALUE, SettingError, closest, kind_of
from rankdet.config.sections import SECTIONS, Config, LossConfig
from rankdet.config.yaml_text import parse_yaml, read_text, yaml_text
from rankdet.errors import ConfigError, message, shorten

_NULL = ("", "null", "~")


def to_dict(config: Config) -> dict[str, Any]:
    """The settings as mappings, lists and plain values, for YAML and JSON.

    >>> to_dict(Config())["detector"]["anchor_ratios"]
    [0.5, 1.0, 2.0]
    """
    result: dict[str, Any] = dataclasses.asdict(config)
    for section in SECTIONS:
        for key, value in result[section].items():
            if isinstance(value, tuple):
                result[section][key] = list(value)
    return result


def from_dict(mapping: Mapping[str, Any]) -> Config:
    """The settings of a mapping over the defaults; SettingError if there is no such setting."""
    return merge(Config(), mapping)


def completed(stored: Any) -> Any:
    """A stored mapping with the settings that it lacks at their defaults, as JSON has them.

    Those have been added since it was written, and their defaults are what was done before there
    was a choice. What is no mapping of settings comes back as it is.

    >>> completed({"training": {"epochs": 3}})["detector"]["name"]
    'retinanet'
    """
    if not isinstance(stored, dict):
        return stored
    try:
        return json.loads(json.dumps(to_dict(from_dict(stored))))
    except ConfigError:  # of a setting that is gone, or that breaks its rule
        return stored


def merge(base: Config, mapping: Mapping[str, Any]) -> Config:
    """`base` with the settings of `mapping` in place of its own.

    Another loss does not inherit the settings of the loss in `base`.

    >>> merge(Config(), {"training": {"epochs": 3}, "seed": 7}).training.epochs
    3
    """
    changes: dict[str, Any] = {}
    for name, value in mapping.items():
        if name not in SECTIONS:
            _refuse_unknown(name, _names_of(Config), "")
            changes[name] = value
            continue
        if not isinstance(value, Mapping):
            rule = f"expected the settings of the section {name}"
            raise SettingError(name, value, rule, f"Write them below {name}:, one on each line.")
        for key in value:
            _refuse_unknown(key, _names_of(SECTIONS[name]), f"{name}.")
        section = getattr(base, name)
        if isinstance(section, LossConfig) and value.get("name", section.name) != section.name:
            section = dataclasses.replace(section, settings={})
        changes[name] = dataclasses.replace(section, **value)
    return dataclasses.replace(base, **changes)


def _refuse_unknown(name: Any, known: Sequence[str], prefix: str) -> None:
    if name in known:
        return
    key = prefix + (name if isinstance(name, str) else shorten(name))
    hint = closest(str(name), known)
    if not hint and not prefix:
        hint = _home_of(str(name))
    if not hint:
        hint = f"There {'is' if len(known) == 1 else 'are'}: {', '.join(known)}."
    if prefix == "loss.":
        hint += " Settings of the loss itself are written loss.settings.NAME."
    raise SettingError(key, NO_VALUE, "there is no such setting", hint)


def _home_of(name: str) -> str:
    """A question whether the setting of this name in some section was meant."""
    for section in SECTIONS:
        if name in _names_of(SECTIONS[section]):
            return f"Did you mean {section}.{name}?"
    return ""


def _names_of(section: type[Any]) -> list[str]:
    return [entry.name for entry in dataclasses.fields(section)]


def dump(config: Config) -> str:
    """All settings as YAML, which `read_config` reads back as an equal Config."""
    return yaml_text(to_dict(config))


def read_config(path: Path, base: Config | None = None) -> Config:
    """The settings of a YAML file over those of `base`; errors name the file and the line."""
    mapping, lines = _read(path)
    try:
        return merge(Config() if base is None else base, mapping)
    except SettingError as error:
        raise error.at(str(path), lines.get(error.key)) from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """What a YAML file holds, before its settings are looked at, and the line of each key."""
    data, lines = parse_yaml(read_text(path), str(path))
    if data is None:
        return {}, {}
    if not isinstance(data, dict):
        rule = "expected sections of settings"
        hint = f"The sections are: {', '.join(SECTIONS)}."
        raise ConfigError(message(rule, file=str(path), value=shorten(data), hint=hint))
    return data, lines


def apply_settings(
    config: Config, texts: Sequence[str], options: Mapping[str, Any] | None = None
) -> Config:
    """`config` with the settings of the mapping `options`, then with each `section.key=value`.

    All of them are changed before any rule is checked: two that depend on each other may come in
    any order. The value is YAML; lists need no brackets, and texts no quotes.

    >>> apply_settings(Config(), ["evaluation.scales=400,500,600"]).evaluation.scales
    (400, 500, 600)
    """
    changes: dict[str, Any] = {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in (options or {}).items()
    }
    loss_settings: dict[str, Any] = {}
    for text in texts:
        parts, value = _parse_setting(text)
        if parts[:2] == ["loss", "settings"] and len(parts) == 3:
            loss_settings[parts[2]] = value
        elif len(parts) == 1:
            changes[parts[0]] = value
        else:
            changes.setdefault(parts[0], {})[parts[1]] = value
    if loss_settings:
        loss = merge(config, {"loss": changes.get("loss", {})}).loss
        changes["loss"] = {
            **changes.get("loss", {}),
            "settings": {**loss.settings, **loss_settings},
        }
    return merge(config, changes)


def _parse_setting(text: str) -> tuple[list[str], Any]:
    """The parts of the key, and the value."""
    key, equals, raw = text.partition("=")
    key, raw = key.strip(), raw.strip()
    parts = key.split(".")
    if not equals or not all(parts):
        raise ConfigError(
            message("expected section.key=value", field="--set", value=shorten(text), hint=_EXAMPLE)
        )
    if len(parts) == 1:
        if key in SECTIONS:
            known = ", ".join(_names_of(SECTIONS[key]))
            raise SettingError(key, NO_VALUE, "this is a section", f"Its settings are: {known}.")
        _refuse_unknown(key, _names_of(Config), "")
        return parts, _parse_value(Config, key, raw, text)
    _refuse_unknown(parts[0], _names_of(Config), "")
    if parts[0] not in SECTIONS:
        hint = f"Write {parts[0]}=VALUE."
        raise SettingError(key, NO_VALUE, "there is no such setting", hint)
    section = SECTIONS[parts[0]]
    _refuse_unknown(parts[1], _names_of(section), f"{parts[0]}.")
    if parts[:2] == ["loss", "settings"] and len(parts) == 3:
        return parts, parse_yaml(raw, f"--set {shorten(text)}")[0]
    if len(parts) > 2:
        name = ".NAME" if parts[:2] == ["loss", "settings"] else ""
        hint = f"Write {parts[0]}.{parts[1]}{name}=VALUE."
        raise SettingError(key, NO_VALUE, "there is no such setting", hint)
    return parts, _parse_value(section, parts[1], raw, text)


_EXAMPLE = f"For example training.epochs=12. The sections are: {', '.join(SECTIONS)}."


def _parse_value(section: type, name: str, raw: str, text: str) -> Any:
    """The value as the type of its setting wants it: raw text, a list, or else YAML."""
    kind, is_optional = kind_of(section, name)
    if is_optional and raw in _NULL:
        return None
    is_quoted = raw[:1] in ("'", '"')
    if kind is str and not is_quoted:
        return raw
    if get_origin(kind) is tuple and not raw.startswith("["):
        raw = f"[{raw}]"
    return parse_yaml(raw, f"--set {shorten(text)}")[0]
