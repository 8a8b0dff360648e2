"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini as graphs: Llama, whose checkpoints have fused projections.

Phi-3 (Abdin et al. 2024, arXiv:2404.14219), Phi-4 (Abdin et al. 2024, arXiv:2412.08905). Models for long contexts have
LongRoPE (Ding et al. 2024, arXiv:2402.13753); Phi-4-mini rotates a part of each head only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.checkpoint import AdaptedTensors, StoredTensors, TensorSlice
from aethermind.graph import GraphBuilder, Value
from aethermind.model import DecoderConfig, LayerCache, StepInputs, read_decoder_config, windowed_layout
from aethermind.model.blocks import decoder
from aethermind.model.known_fields import FieldTable, ignored, used

__all__ = ["PHI3"]

_DEFAULTS: Mapping[str, Any] = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
_FIELDS: FieldTable = {
    **used("is the part of each head that is rotated", "partial_rotary_factor"),
    **used(
        "is the context beyond which long factors of the rotary embedding apply", "original_max_position_embeddings"
    ),
    **ignored("follows from the tensors: Phi-3 has no biases", "attention_bias"),
    **ignored("matters while a model is trained", "embd_pdrop", "resid_pdrop"),
}


@dataclass(frozen=True, slots=True)
class Phi3:
    """A Phi-3 or Phi-4 model."""

    config: DecoderConfig

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        """Build the logits, float32 [R, vocab_size]."""
        return decoder(builder, inputs, self.config, max_model_len, has_qkv_bias=False, has_qk_norm=False)

    def cache_layout(self) -> tuple[LayerCache, ...]:
        """Return what layers cache: keys and values of all tokens, or of those in a layer's window."""
        return windowed_layout(self.config)

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Slice the projections of attention and of the feed-forward network out of each layer's two fused matrices."""
        config = self.config
        q_end = config.num_attention_heads * config.head_dim
        k_end = q_end + config.num_key_value_heads * config.head_dim
        slices = {}
        for layer in range(config.num_hidden_layers):
            base = f"model.layers.{layer}"
            fused = f"{base}.self_attn.qkv_proj.weight"
            for name, begin, end in (("q", 0, q_end), ("k", q_end, k_end), ("v", k_end, None)):
                slices[f"{base}.self_attn.{name}_proj.weight"] = TensorSlice(fused, begin=begin, end=end)
            fused, gate_end = f"{base}.mlp.gate_up_proj.weight", config.intermediate_size
            slices[f"{base}.mlp.gate_proj.weight"] = TensorSlice(fused, end=gate_end)
            slices[f"{base}.mlp.up_proj.weight"] = TensorSlice(fused, begin=gate_end)
        return AdaptedTensors(stored, slices)


class Phi3Architecture:
    """`Phi3ForCausalLM`: Phi-3, Phi-3.5 mini, Phi-4 and Phi-4-mini. A sliding window applies to all layers."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> Phi3:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        fields = dict(raw)
        if raw.get("sliding_window") and raw.get("layer_types") is None:
            fields |= {"use_sliding_window": True, "max_window_layers": 0}
        return Phi3(read_decoder_config(fields, defaults=_DEFAULTS, has_partial_rotary=True))


PHI3 = Phi3Architecture()
