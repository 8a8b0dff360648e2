"""The check of a model's JSON files against the tables: refused fields raise, unapplied and unknown ones warn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from aethermind.errors import ConfigError
from aethermind.log import get_logger
from aethermind.model.known_fields.tables import (
    CONFIG_FIELDS,
    GENERATION_FIELDS,
    QUANTIZATION_FIELDS,
    TOKENIZER_FIELDS,
    FieldTable,
    Handling,
)

__all__ = ["KnowsFields", "check_fields", "config_fields"]

logger = get_logger(__name__)

_TABLES: Mapping[str, FieldTable] = {
    "generation_config.json": GENERATION_FIELDS,
    "tokenizer_config.json": TOKENIZER_FIELDS,
    "quantization_config": QUANTIZATION_FIELDS,
}


@runtime_checkable
class KnowsFields(Protocol):
    """An architecture whose package lists the fields of config.json that it reads or ignores."""

    known_fields: FieldTable


def config_fields(architecture: object) -> FieldTable | None:
    """The table of config.json for an architecture; None if its package does not list its fields."""
    return {**CONFIG_FIELDS, **architecture.known_fields} if isinstance(architecture, KnowsFields) else None


def check_fields(path: Path, files: Mapping[str, Mapping[str, Any]], architecture: object) -> None:
    """Check a model's files, given by their names; one warning per file lists the fields that are not followed.

    Raises:
        ConfigError: a field needs something unsupported without which the model's answers would be wrong.
    """
    for file, contents in files.items():
        table = config_fields(architecture) if file == "config.json" else _TABLES[file]
        if table is None:
            continue
        refuse_fields(path, file, contents, table)
        for sentence in fields_not_followed(file, contents, table):
            logger.warning("%s: %s", path, sentence)


def refuse_fields(path: Path, file: str, contents: Mapping[str, Any], table: FieldTable) -> None:
    """Raise ConfigError for the first refused field."""
    for name, value in contents.items():
        field = table.get(name)
        if field is not None and field.handling is Handling.REFUSED and field.has_effect(value):
            raise ConfigError(f"{name} is {value!r:.80} in {file} of {str(path)!r}: {field.text}.")


def fields_not_followed(file: str, contents: Mapping[str, Any], table: FieldTable) -> list[str]:
    """One sentence about fields that are not applied, and one about unknown fields."""
    effective = {name: value for name, value in contents.items() if name in table and table[name].has_effect(value)}
    reasons = [
        f"{name} is {value!r:.40} ({table[name].text})"
        for name, value in effective.items()
        if table[name].handling is Handling.NOT_APPLIED
    ]
    unknown = [name for name, value in contents.items() if value is not None and not _is_known(file, name, table)]
    sentences = []
    if reasons:
        sentences.append(f"{file} asks for what is not supported here: {'; '.join(reasons)}.")
    if unknown:
        sentences.append(f"{file} has fields that are not known here and are ignored: {', '.join(map(str, unknown))}.")
    return sentences


def _is_known(file: str, name: str, table: FieldTable) -> bool:
    """Further special tokens may be called `…_token`; names that begin with an underscore are notes."""
    is_role = file == "tokenizer_config.json" and name.endswith("_token")
    return name in table or is_role or name.startswith("_")
