"""Llama and Mistral as graphs: the common decoder, usually without biases, and without QK norm.

Llama 2 (Touvron et al. 2023, arXiv:2307.09288), Llama 3 (Dubey et al. 2024, arXiv:2407.21783), Mistral (Jiang et al.
2023, arXiv:2310.06825), whose layers may all have sliding-window attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.errors import ConfigError
from aethermind.model import read_decoder_config
from aethermind.model.blocks import DecoderVariant, VariantModel
from aethermind.model.known_fields import FieldTable, ignored, refused, used

__all__ = ["LLAMA", "MISTRAL"]

_LLAMA: Mapping[str, Any] = {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "tie_word_embeddings": False}
_MISTRAL: Mapping[str, Any] = {**_LLAMA, "max_position_embeddings": 131072, "num_key_value_heads": 8}

_LLAMA_FIELDS: FieldTable = {
    **used("says whether projections of attention have biases", "attention_bias"),
    **refused("biases in feed-forward networks are not computed; take another model", mlp_bias=False),
}
_MISTRAL_FIELDS: FieldTable = {
    **ignored("follows from the tensors: Mistral has no biases", "attention_bias", "mlp_bias")
}


class LlamaArchitecture:
    """`LlamaForCausalLM`: Llama 2 and 3, and the many models that follow them."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _LLAMA_FIELDS

    def create(self, raw: Mapping[str, Any]) -> VariantModel:
        if raw.get("mlp_bias", False):
            raise ConfigError("mlp_bias is true in config.json; this package has no biases in feed-forward networks.")
        has_bias = bool(raw.get("attention_bias", False))
        variant = DecoderVariant(has_qkv_bias=has_bias, has_output_bias=has_bias)
        return VariantModel(read_decoder_config(raw, defaults=_LLAMA), variant)


class MistralArchitecture:
    """`MistralForCausalLM`: a sliding window applies to every layer, unless layer types say otherwise."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _MISTRAL_FIELDS

    def create(self, raw: Mapping[str, Any]) -> VariantModel:
        fields = {"sliding_window": 4096, **raw}
        has_window = fields["sliding_window"] is not None and raw.get("layer_types") is None
        windows = {"use_sliding_window": True, "max_window_layers": 0} if has_window else {}
        return VariantModel(read_decoder_config({**fields, **windows}, defaults=_MISTRAL))


LLAMA = LlamaArchitecture()
MISTRAL = MistralArchitecture()
