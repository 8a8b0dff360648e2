"""Reading config.json: the file itself, before any architecture looks at it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aethermind.errors import ConfigError
from aethermind.file_faults import remedy

__all__ = ["architecture_name", "read_hf_config", "read_optional_json", "require_directory"]


def read_hf_config(directory: Path) -> dict[str, Any]:
    """The contents of `directory/config.json`; ConfigError says what is missing or broken and what to do."""
    require_directory(directory)
    path = directory / "config.json"
    if not path.is_file():
        found = ", ".join(sorted(entry.name for entry in directory.iterdir())[:5]) or "nothing"
        wanted = "the directory of a Hugging Face model, or a .gguf file"
        if (directory / "adapter_config.json").is_file():
            wanted = "the model that this LoRA adapter belongs to, and this directory as adapters"
        if (directory / "snapshots").is_dir():  # a model in the cache of huggingface_hub
            wanted = "one of the directories in its snapshots"
        raise ConfigError(f"{str(directory)!r} holds no config.json (found {found}). Pass {wanted}.")
    return _read_object(path)


def require_directory(directory: Path) -> None:
    """ConfigError unless there is such a directory."""
    if not directory.exists():
        raise ConfigError(
            f"Model directory {str(directory)!r} does not exist. "
            "Pass the path of a Hugging Face model directory or of a .gguf file."
        )
    if not directory.is_dir():
        raise ConfigError(
            f"Model path {str(directory)!r} is a file, and not a .gguf one. "
            "Pass the directory that holds config.json, or a .gguf file."
        )


def read_optional_json(path: Path) -> dict[str, Any]:
    """The contents of a JSON file, or an empty dict when there is none; ConfigError when it is broken."""
    return _read_object(path) if path.is_file() else {}


def architecture_name(raw: Mapping[str, Any], directory: Path) -> str:
    """The first entry of `architectures`, or `model_type` where there are none; ConfigError when there is neither."""
    names = raw.get("architectures") or [raw.get("model_type")]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise ConfigError(
            f"config.json in {str(directory)!r} names no architectures (got {raw.get('architectures')!r}). "
            'Add a line such as "architectures": ["Qwen2ForCausalLM"].'
        )
    return names[0]


def _read_object(path: Path) -> dict[str, Any]:
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path.name} in {str(path.parent)!r} {_fault(error)}. "
            + remedy(path, error, otherwise="Download or write it again.")
        ) from None
    if not isinstance(contents, dict):
        raise ConfigError(f"{path.name} in {str(path.parent)!r} should hold an object, not {type(contents).__name__}.")
    return contents


def _fault(error: Exception) -> str:
    """What is wrong with a JSON file, by what reading it raised."""
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror or error})"
    return f"is not valid JSON ({error})"
