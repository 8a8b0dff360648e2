"""JSON files of a tokenizer, whose faults are TokenizerErrors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aethermind.errors import TokenizerError
from aethermind.file_faults import remedy

__all__ = ["flat", "read_json_object"]


def read_json_object(path: Path) -> dict[str, Any]:
    """A file's contents, empty where there is none; TokenizerError where it is not a JSON object."""
    if not path.is_file():
        return {}
    try:
        contents = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not readable JSON: {flat(error)}. {remedy(path, error)}") from error
    if not isinstance(contents, dict):
        raise TokenizerError(f"{path} holds a JSON {type(contents).__name__}, not an object. Fetch the file again.")
    return contents


def flat(error: Exception) -> str:
    """An error's words as a part of one sentence."""
    return " ".join(str(error).split()).rstrip(".")
