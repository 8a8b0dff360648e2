"""Which tokens of a GGUF file end an answer.

The file names one of each kind at most, while models have several: generation_config.json lists them, and the converter
writes the first. Others are known by their texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aethermind.checkpoint.gguf import GgufStrings
from aethermind.text.gguf_tokenizer import CONTROL

__all__ = ["end_token_ids"]

_NAMED = ("eos", "eot", "eom")
_TEXTS = frozenset(
    {
        "</s>",
        "<EOT>",
        "<end_of_turn>",
        "<eos>",
        "<|end_of_text|>",
        "<|end|>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|im_end|>",
        "<｜end▁of▁sentence｜>",
    }
)
"""What models write behind a text or a turn, and nothing else does."""


def end_token_ids(metadata: Mapping[str, Any]) -> list[int]:
    """The tokens that the metadata names as ends, as they are there, then control tokens with the text of an end."""
    named = [metadata[key] for name in _NAMED if (key := f"tokenizer.ggml.{name}_token_id") in metadata]
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, GgufStrings) or not isinstance(types, np.ndarray):  # then there is no tokenizer either
        return named
    control = np.flatnonzero(types[: len(tokens)] == CONTROL).tolist()
    known = (token_id for token_id, text in zip(control, tokens.picked(control), strict=True) if text in _TEXTS)
    return list(dict.fromkeys([*named, *known]))
