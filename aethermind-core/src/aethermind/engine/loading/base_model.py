"""Checkpoints that have the table of embeddings or the output matrix by another name, or not at all.

Where a whole model has `model.embed_tokens.weight` and `lm_head.weight`, one that was saved as its base, as encoders of
texts are published, has `embed_tokens.weight` and nothing that makes logits. Of two names of one tied matrix,
safetensors' `save_model` keeps the first of the alphabet, which is the output's.
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
    """A base model's tensors by the names that they have in the whole, and a tied model's only matrix by that of its
    embeddings; others as they are.
    """
    names = set(stored.names)
    if _PREFIX + _TABLE in wanted and HEAD not in wanted and HEAD in names and not names & {_TABLE, _PREFIX + _TABLE}:
        return AdaptedTensors(stored, {_PREFIX + _TABLE: Part(HEAD)})
    if _TABLE not in names or any(name.startswith(_PREFIX) for name in names):
        return stored
    return AdaptedTensors(stored, {_PREFIX + name: Part(name) for name in names if _PREFIX + name in wanted})
