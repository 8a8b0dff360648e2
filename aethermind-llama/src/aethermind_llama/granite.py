"""Granite 3 as a graph: Llama with factors on embeddings, attention scores, residual sums and logits.

The factors come from maximal update parametrisation (Yang et al. 2022, arXiv:2203.03466).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.errors import ConfigError
from aethermind.model import positive_number, read_decoder_config
from aethermind.model.blocks import DecoderVariant, VariantModel
from aethermind.model.known_fields import FieldTable, refused, used

__all__ = ["GRANITE"]

_DEFAULTS: Mapping[str, Any] = {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "tie_word_embeddings": False}

_FIELDS: FieldTable = {
    **used("is a factor of embeddings, of blocks' outputs or of attention scores", "embedding_multiplier"),
    **used("is a factor of embeddings, of blocks' outputs or of attention scores", "residual_multiplier"),
    **used("is a factor of embeddings, of blocks' outputs or of attention scores", "attention_multiplier"),
    **used("divides logits", "logits_scaling"),
    **used("says whether projections of attention have biases", "attention_bias"),
    **refused("biases in feed-forward networks are not computed; take another model", mlp_bias=False),
}


class GraniteArchitecture:
    """`GraniteForCausalLM`: Granite 3.0 to 3.3, dense."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> VariantModel:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        if raw.get("mlp_bias", False):
            raise ConfigError("mlp_bias is true in config.json; this package has no biases in feed-forward networks.")
        has_bias = bool(raw.get("attention_bias", False))
        variant = DecoderVariant(
            has_qkv_bias=has_bias,
            has_output_bias=has_bias,
            attention_scale=positive_number(raw, "attention_multiplier", default=1.0),
            embedding_factor=positive_number(raw, "embedding_multiplier", default=1.0),
            residual_factor=positive_number(raw, "residual_multiplier", default=1.0),
            logits_factor=1 / positive_number(raw, "logits_scaling", default=1.0),
        )
        return VariantModel(read_decoder_config(raw, defaults=_DEFAULTS), variant)


GRANITE = GraniteArchitecture()
