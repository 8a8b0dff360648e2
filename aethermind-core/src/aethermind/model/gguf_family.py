"""What a model package says about GGUF files of one `general.architecture`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aethermind.text.gguf_tokenizer import SplitRule

__all__ = ["GgufFamily"]


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """Everything else in such a file is read as that of any decoder of Llama's shape.

    Attributes:
        architecture: its name in `architectures` of config.json.
        splits: how text is split, by the names that `tokenizer.ggml.pre` has in its files.
    """

    architecture: str
    splits: Mapping[str, SplitRule]
