"""The JSON files of a model directory in the Hugging Face layout: config.json, and those of sentence-transformers.

`modules.json` of sentence-transformers lists modules that are computed one after another, each with a folder of its
own. An unknown module is refused, because it would change the embeddings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aethermind.errors import ConfigError, remedy

__all__ = [
    "architecture_name",
    "read_hf_config",
    "read_optional_json",
    "read_pooling",
    "read_text_limit",
    "require_directory",
]


def read_hf_config(directory: Path) -> dict[str, Any]:
    """Read `directory/config.json`; ConfigError says what is missing or broken and what to do."""
    require_directory(directory)
    path = directory / "config.json"
    if not path.is_file():
        found = ", ".join(sorted(entry.name for entry in directory.iterdir())[:5]) or "nothing"
        advice = "the directory of a Hugging Face model, or a .gguf file"
        if (directory / "adapter_config.json").is_file():
            advice = "the model that this LoRA adapter belongs to, and this directory as adapters"
        if (directory / "snapshots").is_dir():  # a model in the cache of huggingface_hub
            advice = "one of the directories in its snapshots"
        raise ConfigError(f"{str(directory)!r} holds no config.json (found {found}). Pass {advice}.")
    return _read_object(path)


def require_directory(directory: Path) -> None:
    """Raise ConfigError unless the directory exists."""
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
    """Read a JSON file; an empty dict if there is none, ConfigError if it is broken."""
    return _read_object(path) if path.is_file() else {}


def architecture_name(raw: Mapping[str, Any], directory: Path) -> str:
    """Return the first entry of `architectures`, else `model_type`; ConfigError if there is neither."""
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
    """Return the end of a sentence about a JSON file that could not be read, such as "is not valid JSON (…)"."""
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror or error})"
    return f"is not valid JSON ({error})"


_POOLING_OF_MODE = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
"""The names of `LLM.embed` for the modes of sentence-transformers that are supported."""
_MODE_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""The flags of older files, which have no `pooling_mode`, and the mode that each stands for."""
_MODULES_WITHOUT_EFFECT = ("Transformer", "Normalize", "Dropout")
"""The model itself, what `LLM.embed` does by default, and a module for training only."""
_POOLING_FOLDER = "1_Pooling"
_NO_LIMIT = 2**31


def read_pooling(directory: Path) -> str | None:
    """Read the pooling of embeddings (last, mean, cls), None if unspecified; ConfigError for an unsupported one."""
    modules = _modules(directory)
    pooling_folders = [folder for kind, folder in modules if kind == "Pooling"]
    for kind in (kind for kind, _ in modules if kind not in (*_MODULES_WITHOUT_EFFECT, "Pooling")):
        raise _unsupported(directory, f"modules.json has a module {kind!r:.80}")
    if len(pooling_folders) > 1:
        raise _unsupported(directory, f"modules.json has {len(pooling_folders)} modules that pool")
    folder = pooling_folders[0] if pooling_folders else _POOLING_FOLDER
    modes = _pooling_modes(read_optional_json(directory / folder / "config.json"))
    if len(modes) > 1 or not set(modes) <= set(_POOLING_OF_MODE):
        raise _unsupported(directory, f"vectors are pooled by {', '.join(modes)}")
    return _POOLING_OF_MODE[modes[0]] if modes else None


def read_text_limit(directory: Path) -> int | None:
    """Read the number of tokens to which texts are truncated; None if they are not."""
    if not (directory / "modules.json").is_file():
        return None
    limit = read_optional_json(directory / "sentence_bert_config.json").get("max_seq_length")
    if limit is None:
        limit = read_optional_json(directory / "tokenizer_config.json").get("model_max_length")
    if limit is None or (isinstance(limit, int | float) and limit >= _NO_LIMIT):
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit <= 0:
        raise ConfigError(f"max_seq_length of {str(directory)!r} should be a positive integer, got {limit!r}.")
    return limit


def _pooling_modes(config: Mapping[str, Any]) -> list[str]:
    """Return the modes in the config.json of a pooling module."""
    mode = config.get("pooling_mode")
    if mode is None:
        return [name for flag, name in _MODE_FLAGS.items() if config.get(flag) is True]
    return [str(each) for each in mode] if isinstance(mode, list) else [str(mode)]


def _modules(directory: Path) -> list[tuple[str, str]]:
    """Return the kind and the folder of each module in modules.json; ConfigError if it is broken."""
    path = directory / "modules.json"
    if not path.is_file():
        return []
    try:
        modules = [
            (str(module["type"]).rpartition(".")[2], str(module.get("path", "")))
            for module in json.loads(path.read_text(encoding="utf-8"))
        ]
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{str(path)!r} is not a list of modules ({type(error).__name__}). "
            + remedy(path, error, otherwise="Download or write it again.")
        ) from None
    for kind, folder in modules:
        if folder == ".." or set(folder) & set("/\\:\0"):  # folders outside the model's directory are not read
            raise ConfigError(f"{str(path)!r} puts {kind!r:.80} into {folder!r:.80}, which is no folder beside it.")
    return modules


def _unsupported(directory: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"The vectors of {str(directory)!r} are not computed as it says: {reason}. Say which pooling to use instead: "
        "last, mean or cls."
    )
