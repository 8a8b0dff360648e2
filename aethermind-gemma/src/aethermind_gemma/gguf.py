"""Gemma 2 and Gemma 3 in GGUF files."""

from __future__ import annotations

from typing import Any

from aethermind.model.gguf_family import GgufFamily

__all__ = ["GEMMA2", "GEMMA3"]

_MODULES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_METADATA = {
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope_local_base_freq": "rope.freq_base_swa",
}
_FIELDS: dict[str, Any] = {"norm_weight_offset": 0.0}
"""The converter adds 1 to the weights of norms."""

GEMMA2, GEMMA3 = (
    GgufFamily(name, {}, modules=_MODULES, fields=_FIELDS, metadata=_METADATA, is_writable=True)
    for name in ("Gemma2ForCausalLM", "Gemma3ForCausalLM")
)
