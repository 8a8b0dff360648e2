"""What a model package says about GGUF files of one `general.architecture`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from aethermind.text.gguf_tokenizer import SplitRule

__all__ = ["GgufFamily", "SplitRule"]


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """Everything else in such a file is read as that of any decoder of Llama's shape.

    Attributes:
        architecture: its name in `architectures` of config.json.
        splits: how text is split, by the names that `tokenizer.ggml.pre` has in its files.
        modules: what its layers have beyond Llama's: GGUF's name of a module to Hugging Face's within a layer.
        interleaved: GGUF's names of modules whose rows its converter stored for interleaved rotation, pairs side by
            side; they are read in Hugging Face's order, halves of a head.
    """

    architecture: str
    splits: Mapping[str, SplitRule]
    modules: Mapping[str, str] = field(default_factory=dict)
    interleaved: Collection[str] = ()
