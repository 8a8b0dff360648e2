"""A model package's description of the GGUF files of one `general.architecture`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from aethermind.text.gguf_tokenizer import SplitRule

__all__ = ["GgufFamily", "SplitRule"]


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """How the GGUF files of one architecture differ from those of a decoder of Llama's shape.

    Attributes:
        architecture: its name in `architectures` of config.json.
        splits: rules for splitting text, by the values of `tokenizer.ggml.pre` in its files.
        modules: modules that its layers have in addition to Llama's, GGUF's name to Hugging Face's within a layer.
        interleaved: GGUF's names of modules whose rows its converter stored for interleaved rotation, with pairs side
            by side; they are read in Hugging Face's order, halves of a head.
        mixture: the architecture of files with experts, where they share the name with dense ones.
        metadata: further fields of config.json, and those that are stored under other keys than Llama's, by name, with
            their keys under the architecture: `{"logit_scale": "logit_scale"}`.
        fields: further fields of config.json that are the same for all its models, and not in its files.
    """

    architecture: str
    splits: Mapping[str, SplitRule]
    modules: Mapping[str, str] = field(default_factory=dict)
    interleaved: Collection[str] = ()
    mixture: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
