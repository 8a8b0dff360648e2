"""A model's files against the tables: what is refused raises, and what is not applied or not known is said once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from aethermind.errors import ConfigError
from aethermind.log import get_logger
from aethermind.model.known_fields.config import CONFIG_FIELDS
from aethermind.model.known_fields.field import Fate, FieldTable
from aethermind.model.known_fields.generation import GENERATION_FIELDS
from aethermind.model.known_fields.quantization import QUANTIZATION_FIELDS
from aethermind.model.known_fields.tokenizer import TOKENIZER_FIELDS

__all__ = ["KnowsFields", "check_fields", "config_fields"]

logger = get_logger(__name__)

_TABLES: Mapping[str, FieldTable] = {
    "generation_config.json": GENERATION_FIELDS,
    "tokenizer_config.json": TOKENIZER_FIELDS,
    "quantization_config": QUANTIZATION_FIELDS,
}


@runtime_checkable
class KnowsFields(Protocol):
    """What an architecture has besides when its package says which fields of config.json it reads or ignores."""

    known_fields: FieldTable


def config_fields(architecture: object) -> FieldTable | None:
    """The table of config.json for an architecture; None where its package does not say what it reads."""
    return {**CONFIG_FIELDS, **architecture.known_fields} if isinstance(architecture, KnowsFields) else None


def check_fields(path: Path, files: Mapping[str, Mapping[str, Any]], architecture: object) -> None:
    """Check what a model's files say, by the names of the files; one warning for each that says what is not done.

    Raises:
        ConfigError: a field asks for something without which the model's answers would be wrong.
    """
    for file, contents in files.items():
        table = config_fields(architecture) if file == "config.json" else _TABLES[file]
        if table is None:
            continue
        refuse_fields(path, file, contents, table)
        for sentence in fields_not_followed(file, contents, table):
            logger.warning("%s: %s", path, sentence)


def refuse_fields(path: Path, file: str, contents: Mapping[str, Any], table: FieldTable) -> None:
    """ConfigError for the first field that is refused."""
    for name, value in contents.items():
        field = table.get(name)
        if field is not None and field.fate is Fate.REFUSED and field.asks(value):
            raise ConfigError(f"{name} is {value!r:.80} in {file} of {str(path)!r}: {field.text}.")


def fields_not_followed(file: str, contents: Mapping[str, Any], table: FieldTable) -> list[str]:
    """A sentence about fields that are not applied, and one about those that are not known."""
    asked = {name: value for name, value in contents.items() if name in table and table[name].asks(value)}
    reasons = [
        f"{name} is {value!r:.40} ({table[name].text})"
        for name, value in asked.items()
        if table[name].fate is Fate.NOT_APPLIED
    ]
    unknown = [name for name, value in contents.items() if value is not None and not _is_known(file, name, table)]
    said = []
    if reasons:
        said.append(f"{file} asks for what is not done here: {'; '.join(reasons)}.")
    if unknown:
        said.append(f"{file} has fields that are not known here and are ignored: {', '.join(map(str, unknown))}.")
    return said


def _is_known(file: str, name: str, table: FieldTable) -> bool:
    """Models may call further special tokens `…_token`; names that begin with an underscore are somebody's notes."""
    is_role = file == "tokenizer_config.json" and name.endswith("_token")
    return name in table or is_role or name.startswith("_")
