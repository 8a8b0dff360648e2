"""Decoders of this package whose checkpoints rotate interleaved pairs of elements (GPT-J, RoFormer)."""

from __future__ import annotations

from dataclasses import dataclass

from aethermind.checkpoint import AdaptedTensors, StoredTensors, interleaved_heads
from aethermind.model.blocks import VariantModel

__all__ = ["InterleavedRopeModel"]


@dataclass(frozen=True, slots=True)
class InterleavedRopeModel(VariantModel):
    """A decoder whose rotary pairs are elements (2i, 2i + 1) of each head in the checkpoint."""

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Put queries and keys in the order of half-split rotation."""
        config = self.config
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        return AdaptedTensors(stored, interleaved_heads(stored.names, heads, config.head_dim))
