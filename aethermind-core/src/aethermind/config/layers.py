"""The value of each setting and where it came from: file, then variables, then flags, the last one wins.

A layer is checked whether or not another one wins over it, so that what is wrong is said at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args

from pydantic import TypeAdapter, ValidationError

from aethermind.config.file import read_file
from aethermind.config.section import Section, Setting
from aethermind.config.suggest import did_you_mean
from aethermind.errors import SettingsError

__all__ = ["Configuration", "DEFAULT", "Value", "resolve"]

DEFAULT = "default"
"""The origin of a value that nobody gave."""


class Value(NamedTuple):
    """What a setting is, and who said so: `default`, `FILE:key`, a variable, or `flag --x`."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """Every setting of a table, by full names such as `engine.block_size`, with its value, defaults included."""

    settings: Mapping[str, Setting]
    values: Mapping[str, Value]


def resolve(
    sections: Sequence[Section],
    *,
    file: Path | None = None,
    variables: Mapping[str, str] | None = None,
    flags: Mapping[str, Value] | None = None,
) -> Configuration:
    """Merge the layers. SettingsError for an unknown section or key, and for a value that is not allowed.

    Of `variables` those count that set something; `flags` go by full name and have the type of their setting already.
    """
    settings = {one.name: one for section in sections for one in section.settings.values()}
    adapters = {section.name: TypeAdapter(section.type) for section in sections}
    values = {name: Value(one.default, DEFAULT) for name, one in settings.items()}
    for one, raw in _in_file(file, settings) if file is not None else ():
        where = f"{file}:{one.name}"
        values[one.name] = Value(_check(adapters[one.section], one, raw, where, is_text=False), where)
    for one, variable, text in _in_variables(variables or {}, settings):
        values[one.name] = Value(_check(adapters[one.section], one, text, variable, is_text=True), variable)
    values.update(flags or {})
    for section in sections:
        _check_together(section, values)
    return Configuration(settings, values)


def _in_file(file: Path, settings: Mapping[str, Setting]) -> Iterator[tuple[Setting, Any]]:
    names = list(dict.fromkeys(one.section for one in settings.values()))
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
            if (name := f"{section}.{key}") not in settings:
                keys = ", ".join(one.key for one in settings.values() if one.section == section)
                raise SettingsError(
                    f"{file} has an unknown key {name}{did_you_mean(name, settings)} Keys of {section} are {keys}."
                )
            yield settings[name], value


def _in_variables(variables: Mapping[str, str], settings: Mapping[str, Setting]) -> Iterator[tuple[Setting, str, str]]:
    for one in settings.values():
        given = [(name, variables[name]) for name in one.variables if variables.get(name)]
        if len({text for _, text in given}) > 1:
            (first, text), (second, other) = given
            raise SettingsError(f"{first}={text} and {second}={other} both set {one.name}. Unset one of them.")
        if given:
            yield one, *given[0]


def _check(adapter: TypeAdapter[Any], one: Setting, raw: Any, where: str, *, is_text: bool) -> Any:
    """A value as its setting's type. What a file gives has a type already; what a variable gives is read as text."""
    may_be_list = "tuple" in str(one.type)
    is_list = may_be_list and not (isinstance(one.type, UnionType) and str in get_args(one.type))
    try:
        if is_text:
            value = json.loads(raw) if may_be_list and raw.startswith("[") else (raw,) if is_list else raw
            checked = adapter.validate_python({one.key: value})
        else:
            value = [raw] if is_list and isinstance(raw, str) else raw
            checked = adapter.validate_json(json.dumps({one.key: value}, default=str), strict=True)
    except ValidationError as error:
        raise SettingsError(_sentence(error, one, raw, where)) from None
    except (ValueError, RecursionError) as error:
        shown = "wrong:" if one.is_secret else f"{raw!r} but"
        raise SettingsError(f"{where} is {shown} should be a JSON list: {error}.") from None
    return getattr(checked, one.key)


def _sentence(error: ValidationError, one: Setting, raw: Any, where: str) -> str:
    (first, *_) = error.errors(include_url=False)
    if first["type"] == "value_error":
        return f"{where}: {first['ctx']['error']}"
    accepted = first["msg"].partition(",")[0] if first["type"].endswith("_parsing") else first["msg"]
    if one.is_secret:
        return f"{where} is wrong: {accepted.replace('Input', one.name, 1)}."
    return f"{where} is {raw!r}: {accepted.replace('Input', one.name, 1)}."


def _check_together(section: Section, values: Mapping[str, Value]) -> None:
    """What is wrong with a section's values only in company."""
    of_section = {key: values[one.name] for key, one in section.settings.items()}
    try:
        section.type(**{key: value for key, (value, _) in of_section.items()})
    except ValueError as error:
        origins = sorted({origin for _, origin in of_section.values()} - {DEFAULT})
        raise SettingsError(f"{', '.join(origins)}: {error}") from None
