"""Checkpoints of a base model alone, as encoders of texts are published: its names, and no output matrix.

Where a whole model has `model.embed_tokens.weight` and `lm_head.weight`, one that was saved as its base has
`embed_tokens.weight` and nothing that makes logits.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from aethermind.checkpoint.adapted import AdaptedTensors, Part
from aethermind.errors import CheckpointError

if TYPE_CHECKING:
    from aethermind.checkpoint.source import StoredTensors
    from aethermind.model.source import ModelSource

__all__ = ["HEAD", "is_base_model", "with_whole_names"]

HEAD = "lm_head.weight"
_PREFIX = "model."
_TABLE = "embed_tokens.weight"


def is_base_model(source: ModelSource, wanted: Collection[str]) -> bool:
    """Whether a checkpoint lacks the output matrix that is among the `wanted`, because a base model has none."""
    if not {HEAD, _PREFIX + _TABLE} <= set(wanted):
        return False
    try:
        stored = source.names()
    except CheckpointError:  # whoever opens the weights is told
        return False
    return _TABLE in stored and HEAD not in stored


def with_whole_names(stored: StoredTensors, wanted: Collection[str]) -> StoredTensors:
    """A base model's tensors by the names that they have in the whole; others as they are."""
    names = set(stored.names)
    if _TABLE not in names or any(name.startswith(_PREFIX) for name in names):
        return stored
    return AdaptedTensors(stored, {_PREFIX + name: Part(name) for name in names if _PREFIX + name in wanted})
