"""A configuration: the value of each setting, and its origin.

Three layers are merged: the file, then environment variables, then flags; the last one wins. Every value of every layer
is checked, also one that a later layer overrides, so that mistakes in a file are reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args

from pydantic import TypeAdapter, ValidationError

from aethermind.config.file import read_file
from aethermind.config.section import Section, Setting
from aethermind.errors import SettingsError, did_you_mean
from aethermind.log import get_logger

__all__ = ["Configuration", "DEFAULT", "SettingValue", "resolve"]

DEFAULT = "default"
"""The origin of a value that no layer sets."""

_HIDDEN = "(hidden)"
"""Printed in place of a secret."""

_PASSWORD = re.compile(r"(://[^/@:\s]*:)[^/@\s]+@")
"""The password in a URL."""

_log = get_logger(__name__)


class SettingValue(NamedTuple):
    """A setting's value and its origin: `default`, `FILE:key`, a variable, or `flag --x`."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """Every setting of a table, by full names such as `engine.block_size`, with its value, defaults included."""

    settings: Mapping[str, Setting]
    values: Mapping[str, SettingValue]

    def to_toml(self) -> str:
        """Return TOML that sets the same values, with origins as comments; unset and secret ones are comments only."""
        return "\n".join(self._lines())

    def to_record(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return values and origins by section and key, for JSON."""
        record: dict[str, dict[str, dict[str, Any]]] = {}
        for name, setting in self.settings.items():
            value, origin = self.values[name]
            shown = _HIDDEN if setting.is_secret and value is not None else _without_passwords(value)
            record.setdefault(setting.section, {})[setting.key] = {"value": shown, "origin": origin}
        return record

    def _lines(self) -> Iterator[str]:
        for position, (section, settings) in enumerate(
            groupby(self.settings.values(), lambda setting: setting.section)
        ):
            yield from ("", f"[{section}]") if position else (f"[{section}]",)
            for setting in settings:
                value, origin = self.values[setting.name]
                if value is None:
                    yield f"# {setting.key} = ...  # {_printable(origin)}; unset: {setting.unset}"
                elif setting.is_secret:
                    yield f"# {setting.key} is set and {_HIDDEN}  # {_printable(origin)}"
                else:
                    yield f"{setting.key} = {_toml_value(_without_passwords(value))}  # {_printable(origin)}"


def resolve(
    sections: Sequence[Section],
    *,
    file: Path | None = None,
    variables: Mapping[str, str] | None = None,
    flags: Mapping[str, SettingValue] | None = None,
) -> Configuration:
    """Merge the layers into a configuration of all settings in `sections`.

    SettingsError for an unknown section or key, and for a value that is not allowed. `variables` are environment
    variables, of which those that set no setting are ignored. `flags` are keyed by full name and have the type
    of their setting already.
    """
    settings = {setting.name: setting for section in sections for setting in section.settings.values()}
    owners = {f"{section.name}.{key}": cls for section in sections for cls in section.types for key in _keys(cls)}
    adapters = {name: TypeAdapter(owners[name]) for name in settings}
    values = {name: SettingValue(setting.default, DEFAULT) for name, setting in settings.items()}
    for setting, key, raw in _settings_in_file(file, settings) if file is not None else ():
        where = f"{file}:{setting.section}.{key}"
        values[setting.name] = SettingValue(_convert(adapters[setting.name], setting, raw, where, is_text=False), where)
    for setting, variable, text in _settings_in_variables(variables or {}, settings):
        values[setting.name] = SettingValue(
            _convert(adapters[setting.name], setting, text, variable, is_text=True), variable
        )
    values.update(flags or {})
    for section in sections:
        for cls in section.types:
            _check_combination(section.name, cls, values)
    return Configuration(settings, values)


def _keys(cls: Any) -> Iterator[str]:
    return iter(cls.__dataclass_fields__)


def _settings_in_file(file: Path, settings: Mapping[str, Setting]) -> Iterator[tuple[Setting, str, Any]]:
    """Yield each setting that a file sets, with the key that the file uses, and the value."""
    names = list(dict.fromkeys(setting.section for setting in settings.values()))
    renamed = {f"{setting.section}.{old}": setting for setting in settings.values() for old in setting.old_names}
    for section, content in read_file(file).items():
        if section not in names:
            raise SettingsError(
                f"{file} has an unknown section {section!r}{did_you_mean(section, names)} "
                f"Sections are {', '.join(names)}."
            )
        if content is None:  # in YAML, a section without keys
            continue
        if not isinstance(content, dict):
            raise SettingsError(f"{file} gives {section} the value {content!r}. It is a section: put keys into it.")
        for key, value in content.items():
            setting = settings.get(name := f"{section}.{key}") or renamed.get(name)
            if setting is None:
                keys = ", ".join(setting.key for setting in settings.values() if setting.section == section)
                raise SettingsError(
                    f"{file} has an unknown key {name}{did_you_mean(name, settings)} Keys of {section} are {keys}."
                )
            if key != setting.key:
                if setting.key in content:
                    raise SettingsError(
                        f"{file} has {name} and {setting.name}, which mean the same. Keep {setting.name}."
                    )
                _log.warning("%s: %s is deprecated; use %s", file, name, setting.name)
            yield setting, key, value


def _settings_in_variables(
    variables: Mapping[str, str], settings: Mapping[str, Setting]
) -> Iterator[tuple[Setting, str, str]]:
    for setting in settings.values():
        given = [(name, variables[name]) for name in setting.variables if variables.get(name)]
        if len({text for _, text in given}) > 1:
            first, second = (f"{name}={text}" for name, text in given[:2])
            raise SettingsError(f"{first} and {second} both set {setting.name}. Unset one of them.")
        if given:
            yield setting, *given[0]


def _convert(adapter: TypeAdapter[Any], setting: Setting, raw: Any, where: str, *, is_text: bool) -> Any:
    """Convert a value to its setting's type: text of a variable (`is_text`), or a value of a file, which has a type.

    SettingsError if the setting does not accept it; `where` names the origin in messages.
    """
    may_be_list = "tuple" in str(setting.type)
    is_list = may_be_list and not (isinstance(setting.type, UnionType) and str in get_args(setting.type))
    try:
        if is_text:
            value = json.loads(raw) if may_be_list and raw.startswith("[") else (raw,) if is_list else raw
            checked = adapter.validate_python({setting.key: value})
        else:
            value = [raw] if is_list and isinstance(raw, str) else raw
            checked = adapter.validate_json(json.dumps({setting.key: value}, default=str), strict=True)
    except ValidationError as error:
        raise SettingsError(_message(error, setting, raw, where)) from None
    except (ValueError, RecursionError) as error:
        shown = "wrong:" if setting.is_secret else f"{raw!r} but"
        raise SettingsError(f"{where} is {shown} should be a JSON list: {error}.") from None
    return getattr(checked, setting.key)


def _message(error: ValidationError, setting: Setting, raw: Any, where: str) -> str:
    (first, *_) = error.errors(include_url=False)
    if first["type"] == "value_error":
        return f"{where}: {first['ctx']['error']}"
    accepted = first["msg"].partition(",")[0] if first["type"].endswith("_parsing") else first["msg"]
    if setting.is_secret:
        return f"{where} is wrong: {accepted.replace('Input', setting.name, 1)}."
    return f"{where} is {raw!r}: {accepted.replace('Input', setting.name, 1)}."


def _check_combination(section: str, cls: type[Any], values: Mapping[str, SettingValue]) -> None:
    """Construct a dataclass of settings, which raises ValueError for values that are wrong only in combination."""
    found = {key: values[f"{section}.{key}"] for key in _keys(cls)}
    try:
        cls(**{key: value for key, (value, _) in found.items()})
    except ValueError as error:
        origins = sorted({origin for _, origin in found.values()} - {DEFAULT})
        raise SettingsError(f"{', '.join(origins)}: {error}") from None


def _without_passwords(value: Any) -> Any:
    return _PASSWORD.sub(rf"\1{_HIDDEN}@", value) if isinstance(value, str) else value


def _toml_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
