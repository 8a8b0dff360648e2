"""GLM-4 and GLM-4-0414 as graphs: interleaved rotation of a part of each head, and fused gate and up projections.

GLM-4 (GLM team 2024, arXiv:2406.12793). GLM-4-0414 also has norms after attention and after the feed-forward network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.checkpoint import AdaptedTensors, StoredTensors, TensorSlice, interleaved_heads
from aethermind.model import read_decoder_config
from aethermind.model.blocks import DecoderVariant, VariantModel
from aethermind.model.known_fields import FieldTable, used

__all__ = ["GLM", "GLM4"]

_DEFAULTS: Mapping[str, Any] = {
    "rms_norm_eps": 1.5625e-7,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "partial_rotary_factor": 0.5,
    "tie_word_embeddings": False,
}
_FIELDS: FieldTable = {
    **used("is the part of each head that is rotated", "partial_rotary_factor"),
    **used("says whether projections of queries, keys and values have biases", "attention_bias", "use_qkv_bias"),
}


@dataclass(frozen=True, slots=True)
class Glm(VariantModel):
    """A GLM-4 model."""

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Put queries and keys in the order of half-split rotation, and slice the fused projections."""
        config = self.config
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        slices = interleaved_heads(stored.names, heads, config.head_dim, config.rope.head_dim)
        for layer in range(config.num_hidden_layers):
            base, num_gate_rows = f"model.layers.{layer}.mlp", config.intermediate_size
            slices[f"{base}.gate_proj.weight"] = TensorSlice(f"{base}.gate_up_proj.weight", end=num_gate_rows)
            slices[f"{base}.up_proj.weight"] = TensorSlice(f"{base}.gate_up_proj.weight", begin=num_gate_rows)
        return AdaptedTensors(stored, slices)


@dataclass(frozen=True, slots=True)
class GlmArchitecture:
    """`GlmForCausalLM` (GLM-4-9B), or `Glm4ForCausalLM` (GLM-4-0414), with norms after blocks, too."""

    has_output_norms: bool

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> Glm:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        has_bias = raw.get("use_qkv_bias", raw.get("attention_bias", True))
        variant = DecoderVariant(
            after_attention="post_self_attn_layernorm" if self.has_output_norms else None,
            after_mlp="post_mlp_layernorm" if self.has_output_norms else None,
            has_qkv_bias=bool(has_bias),
        )
        return Glm(read_decoder_config(raw, defaults=_DEFAULTS, has_partial_rotary=True), variant)


GLM = GlmArchitecture(has_output_norms=False)
GLM4 = GlmArchitecture(has_output_norms=True)
