"""The configuration file: its location, and its tables in TOML, YAML or JSON."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from aethermind.env import expand_home
from aethermind.errors import SettingsError

__all__ = ["find_file", "read_file"]

_SUFFIXES = (".toml", ".yaml", ".yml", ".json")


def find_file(named: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the path of the configuration file, or None if there is none.

    The path is `named` (the value of --config), else AETHERMIND_CONFIG, else `aethermind.toml` (.yaml, .yml, .json) in
    the working directory, else `config.toml` (.yaml, .yml, .json) in `aethermind` under XDG_CONFIG_HOME or ~/.config.
    SettingsError if a named file is missing, or if two files are in the same place.
    """
    for path, origin in ((named, "--config"), (os.environ.get("AETHERMIND_CONFIG"), "AETHERMIND_CONFIG")):
        if path:
            file = expand_home(path)
            if not file.exists():
                raise SettingsError(f"{origin} names {os.fspath(path)}, which does not exist. Name an existing file.")
            return file
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    for stem in (Path("aethermind"), Path(home, "aethermind", "config")):
        present = [path for suffix in _SUFFIXES if os.path.isfile(path := stem.with_suffix(suffix))]
        if len(present) > 1:
            raise SettingsError(f"{present[0]} and {present[1]} are side by side. Keep one of them.")
        if present:
            return present[0]
    return None


def read_file(path: Path) -> dict[str, Any]:
    """Return the tables (sections) of a file by name. SettingsError if it cannot be read or is not a mapping."""
    if path.suffix not in _SUFFIXES:
        raise SettingsError(f"{path} has an unknown ending. Configuration files end in {', '.join(_SUFFIXES)}.")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}. Name another file with --config.") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text (byte {error.start}). Convert it first.") from None
    if path.suffix == ".toml":
        return _read_toml(path, text)
    content = _read_json(path, text) if path.suffix == ".json" else _read_yaml(path, text)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path} holds a {type(content).__name__}, not sections. Begin it with one, such as model:")
    return content


def _read_toml(path: Path, text: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}. Correct it.") from None


def _read_json(path: Path, text: str) -> Any:
    import json

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if duplicate := next((name for name in names if names.count(name) > 1), None):
            raise SettingsError(f"{path} has {duplicate} twice. Remove one of them.")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=refuse_duplicates) if text.strip() else None
    except (json.JSONDecodeError, RecursionError) as error:
        raise SettingsError(f"{path} is not valid JSON: {error}. Correct it.") from None


def _read_yaml(path: Path, text: str) -> Any:
    import yaml

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise SettingsError(f"{path} has an alias (*name), which can stand for any amount. Write the value out.")
        _refuse_duplicates(path, yaml.compose(text, yaml.SafeLoader))
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise SettingsError(f"{path} is not valid YAML: {reason}. Correct it.") from None


def _refuse_duplicates(path: Path, document: Any) -> None:
    """Raise SettingsError for a section or key that occurs twice; PyYAML would silently take the last one."""
    mappings = [document, *(value for _, value in document.value)] if _is_mapping(document) else []
    for mapping in filter(_is_mapping, mappings):
        seen = set()
        for key, _ in mapping.value:
            if key.value.__hash__ and key.value in seen:
                line = key.start_mark.line + 1
                raise SettingsError(f"{path} has {key.value} twice, again in line {line}. Remove one of them.")
            if key.value.__hash__:
                seen.add(key.value)


def _is_mapping(node: Any) -> bool:
    return getattr(node, "id", "") == "mapping"
