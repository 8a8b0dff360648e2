"""Decoders whose checkpoints are made for interleaved rotation, of pairs of neighbours (GPT-J, RoFormer)."""

from __future__ import annotations

from dataclasses import dataclass

from aethermind.checkpoint import AdaptedTensors, StoredTensors, interleaved_heads
from aethermind.model.blocks import VariantModel

__all__ = ["InterleavedRopeModel"]


@dataclass(frozen=True, slots=True)
class InterleavedRopeModel(VariantModel):
    """A decoder in whose checkpoint the rotated pairs are the elements (2i, 2i + 1) of each head."""

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Reorder the rows of queries and keys for half-split rotation, which the graph computes."""
        config = self.config
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        return AdaptedTensors(stored, interleaved_heads(stored.names, heads, config.head_dim))
