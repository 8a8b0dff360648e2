"""How a directory written by sentence-transformers makes vectors of texts: how they are pooled, and how long texts are.

`modules.json` lists what is computed one after the other, each with a folder of its own. Nothing is assumed of a module
that is not known: its vectors would be others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aethermind.errors import ConfigError
from aethermind.file_faults import remedy
from aethermind.model.hf_config import read_optional_json

__all__ = ["read_pooling", "read_text_limit"]

_MODES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""What was written before there was `pooling_mode`."""
_NEUTRAL = ("Transformer", "Normalize", "Dropout")
"""The model itself, what `LLM.embed` does unless told otherwise, and what does nothing but in training."""
_USUAL_FOLDER = "1_Pooling"
_NO_LIMIT = 2**31


def read_pooling(directory: Path) -> str | None:
    """How vectors are pooled (last, mean, cls), None where nothing is said; ConfigError for what is not computed."""
    modules = _modules(directory)
    pooled = [folder for kind, folder in modules if kind == "Pooling"]
    for kind in (kind for kind, _ in modules if kind not in (*_NEUTRAL, "Pooling")):
        raise _not_computed(directory, f"modules.json has a module {kind!r:.80}")
    if len(pooled) > 1:
        raise _not_computed(directory, f"modules.json has {len(pooled)} modules that pool")
    described = read_optional_json(directory / (pooled[0] if pooled else _USUAL_FOLDER) / "config.json")
    modes = _modes(described)
    if len(modes) > 1 or not set(modes) <= set(_MODES):
        raise _not_computed(directory, f"vectors are pooled by {', '.join(modes)}")
    return _MODES[modes[0]] if modes else None


def read_text_limit(directory: Path) -> int | None:
    """The tokens that are left of a longer text before its vector is computed; None where texts are not cut."""
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


def _modes(described: Mapping[str, Any]) -> list[str]:
    mode = described.get("pooling_mode")
    if mode is None:
        return [name for flag, name in _FLAGS.items() if described.get(flag) is True]
    return [str(one) for one in mode] if isinstance(mode, list) else [str(mode)]


def _modules(directory: Path) -> list[tuple[str, str]]:
    """The kind of each module, and its folder."""
    path = directory / "modules.json"
    if not path.is_file():
        return []
    try:
        found = [
            (str(module["type"]).rpartition(".")[2], str(module.get("path", "")))
            for module in json.loads(path.read_text(encoding="utf-8"))
        ]
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{str(path)!r} is not a list of modules ({type(error).__name__}). "
            + remedy(path, error, otherwise="Download or write it again.")
        ) from None
    for kind, folder in found:
        if folder == ".." or set(folder) & set("/\\:\0"):  # a module lies in the model's directory
            raise ConfigError(f"{str(path)!r} puts {kind!r:.80} into {folder!r:.80}, which is no folder beside it.")
    return found


def _not_computed(directory: Path, what: str) -> ConfigError:
    return ConfigError(
        f"The vectors of {str(directory)!r} are not computed as it says: {what}. Say which pooling to use instead: "
        "last, mean or cls."
    )
