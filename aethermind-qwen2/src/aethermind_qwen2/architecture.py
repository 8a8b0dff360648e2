"""Qwen2, Qwen2.5 and Qwen3 as graphs.

Qwen2 and Qwen2.5 have biases on Q, K and V (Yang et al. 2024, arXiv:2407.10671). Qwen3 has no biases by default, and
norms of the heads of Q and K instead (Yang et al. 2025, arXiv:2505.09388). Otherwise they are like Llama.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.model import read_decoder_config
from aethermind.model.blocks import DecoderVariant, VariantModel
from aethermind.model.known_fields import FieldTable, ignored, used

__all__ = ["QWEN2", "QWEN3"]

_COMMON: Mapping[str, Any] = {"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "tie_word_embeddings": False}

_QWEN2_FIELDS: FieldTable = {
    **ignored("follows from the tensors: Qwen2 has biases on Q, K and V", "attention_bias", "qkv_bias"),
    **ignored("applies to image inputs only", "use_mrope", "mrope_section"),
}
_QWEN3_FIELDS: FieldTable = {**used("says whether projections of attention have biases", "attention_bias")}


class Qwen2Architecture:
    """`Qwen2ForCausalLM`: Qwen2 and Qwen2.5."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _QWEN2_FIELDS

    def create(self, raw: Mapping[str, Any]) -> VariantModel:
        defaults = {**_COMMON, "max_window_layers": 28, "sliding_window": 4096}
        return VariantModel(read_decoder_config(raw, defaults=defaults), DecoderVariant(has_qkv_bias=True))


class Qwen3Architecture:
    """`Qwen3ForCausalLM`: the dense Qwen3 models."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _QWEN3_FIELDS

    def create(self, raw: Mapping[str, Any]) -> VariantModel:
        defaults = {**_COMMON, "head_dim": 128, "max_window_layers": 28, "sliding_window": 4096}
        has_bias = bool(raw.get("attention_bias", False))
        variant = DecoderVariant(has_qkv_bias=has_bias, has_output_bias=has_bias, has_qk_norm=True)
        return VariantModel(read_decoder_config(raw, defaults=defaults), variant)


QWEN2 = Qwen2Architecture()
QWEN3 = Qwen3Architecture()
