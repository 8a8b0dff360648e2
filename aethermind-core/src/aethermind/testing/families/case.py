"""One small model of a family, as its author declares it; importing this costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

__all__ = ["ModelCase", "Outputs", "Reference", "SMALL", "standard_cases", "variations"]

SMALL: Mapping[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
"""A decoder of Llama's shape that is computed in no time, with sizes that no vector register divides."""

_STANDARD: Mapping[str, Mapping[str, Any]] = {
    "small": {},
    "tied": {"tie_word_embeddings": True, "num_key_value_heads": 4},
    "one_kv_head": {"num_key_value_heads": 1, "head_dim": 64},
}

Outputs = Callable[[Sequence[int]], Any]
"""From a text's token ids to float64 [T, vocab_size] logits, or [T, hidden_size] hidden states of an encoder."""


class Reference(Protocol):
    """Somebody else's implementation of a family."""

    def write(self, case: ModelCase, directory: Path) -> None:
        """Write config.json and model.safetensors with random weights, the same for every call."""
        ...

    def outputs(self, case: ModelCase, directory: Path) -> Outputs:
        """What the checkpoint in a directory computes."""
        ...


@dataclass(frozen=True, eq=False)
class ModelCase:
    """One model to try.

    Attributes:
        name: what varies, as the report shows it.
        architecture: the name in `architectures` of config.json.
        config: the rest of config.json, small enough to be computed often.
        reference: what it is compared with; None for the class of transformers that the architecture names.
        max_model_len: the context to ask for where it is longer than the model was made for.
        rewrite_config: config.json as others spell it, from how transformers writes it.
        max_shard_size: of the files that transformers writes.
    """

    name: str
    architecture: str
    config: Mapping[str, Any] = field(default_factory=lambda: SMALL)
    reference: Reference | None = None
    max_model_len: int | None = None
    rewrite_config: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    max_shard_size: str = "1GB"

    def __str__(self) -> str:
        return self.name


def variations(
    architecture: str,
    changes: Mapping[str, Mapping[str, Any]],
    *,
    base: Mapping[str, Any] = SMALL,
    reference: Reference | None = None,
) -> tuple[ModelCase, ...]:
    """A case for each named change to a configuration."""
    return tuple(ModelCase(name, architecture, {**base, **change}, reference) for name, change in changes.items())


def standard_cases(architecture: str) -> tuple[ModelCase, ...]:
    """What is tried of a family whose package declares nothing: a decoder of Llama's shape in three."""
    return variations(architecture, _STANDARD)
