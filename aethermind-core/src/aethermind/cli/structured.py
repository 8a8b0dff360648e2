"""What an answer must look like, as flags say it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aethermind.cli.prompt_text import read_text
from aethermind.errors import InvalidArgumentError

if TYPE_CHECKING:
    from aethermind.sampling.structured import StructuredOutputs

__all__ = ["read_structured_outputs"]


def read_structured_outputs(
    json_schema: str | None, regex: str | None, choice: str | None, grammar: Path | None
) -> StructuredOutputs | None:
    """The demand that one of four flags makes, None where none is given.

    InvalidArgumentError for several of them, files that cannot be read, and what StructuredOutputs refuses.
    """
    flags = {"--json-schema": json_schema, "--regex": regex, "--choice": choice, "--grammar": grammar}
    given = [flag for flag, value in flags.items() if value is not None]
    if not given:
        return None
    if len(given) > 1:
        raise InvalidArgumentError(f"{' and '.join(given)} exclude each other; keep one of them.")
    from aethermind.sampling.structured import StructuredOutputs

    if json_schema is not None:
        is_file = not json_schema.lstrip().startswith(("{", "[", '"'))
        schema = _read(json_schema, "--json-schema") if is_file else json_schema
        return StructuredOutputs(json=schema)
    if regex is not None:
        return StructuredOutputs(regex=regex)
    if choice is not None:
        return StructuredOutputs(choice=choice.split(","))
    return StructuredOutputs(grammar=_read(str(grammar), "--grammar"))


def _read(path: str, flag: str) -> str:
    return read_text(None, Path(path), noun=flag.removeprefix("--").replace("-", " "), option=flag)
