"""OLMo 2 and OLMo 3 as graphs: the outputs of blocks are normed instead of their inputs, and queries and keys of all
heads at once.

OLMo 2 (OLMo team 2025, arXiv:2501.00656). OLMo 3 (OLMo team 2025, arXiv:2512.13961) has sliding windows in three of
four layers, and scales the rotary embedding of the other layers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aethermind.errors import ConfigError
from aethermind.model import DecoderConfig, periodic_layer_types, read_decoder_config
from aethermind.model.blocks import DecoderVariant, VariantModel
from aethermind.model.known_fields import FieldTable, refused, used

__all__ = ["OLMO2", "OLMO3"]

_DEFAULTS: Mapping[str, Any] = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
_BIAS = used("says whether projections of attention have biases", "attention_bias")
_OLMO2_FIELDS: FieldTable = {
    **_BIAS,
    **refused("OLMo 2 has no windows; take OLMo 3, as Olmo3ForCausalLM", sliding_window=None),
}
_OLMO3_FIELDS: FieldTable = _BIAS

_ROPE_FIELDS = ("rope_parameters", "rope_scaling")
_PERIOD = 4
"""The distance between two layers of OLMo 3 that attend to all tokens."""


class Olmo2Architecture:
    """`Olmo2ForCausalLM`."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _OLMO2_FIELDS

    def create(self, raw: Mapping[str, Any]) -> VariantModel:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        if raw.get("sliding_window") is not None:
            raise ConfigError(
                f"sliding_window is {raw['sliding_window']!r} in config.json; OLMo 2 has no windows. Take OLMo 3, as "
                "Olmo3ForCausalLM."
            )
        return _model(raw, read_decoder_config(raw, defaults=_DEFAULTS))


class Olmo3Architecture:
    """`Olmo3ForCausalLM`."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _OLMO3_FIELDS

    def create(self, raw: Mapping[str, Any]) -> VariantModel:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        fields: dict[str, Any] = {"sliding_window": 4096, **raw}
        if fields.get("layer_types") is None:
            fields["layer_types"] = periodic_layer_types(fields, _PERIOD)
        config = read_decoder_config({**fields, **_rope_of(raw, "full_attention")}, defaults=_DEFAULTS)
        sliding = read_decoder_config({**fields, **_rope_of(raw, "sliding_attention")}, defaults=_DEFAULTS)
        ropes = tuple(sliding.rope if window else config.rope for window in config.sliding_windows)
        return _model(raw, replace(config, layer_ropes=ropes))


def _rope_of(raw: Mapping[str, Any], layer_type: str) -> dict[str, Any]:
    """Return the fields of the rotary embedding for layers of one type; `rope_scaling` is for full attention only."""
    nested = raw.get("rope_parameters")
    if isinstance(nested, Mapping) and layer_type in nested:
        return {"rope_parameters": nested[layer_type], "rope_scaling": None}
    return {} if layer_type == "full_attention" else dict.fromkeys(_ROPE_FIELDS)


def _model(raw: Mapping[str, Any], config: DecoderConfig) -> VariantModel:
    has_bias = bool(raw.get("attention_bias", False))
    variant = DecoderVariant(
        before_attention=None,
        after_attention="post_attention_layernorm",
        before_mlp=None,
        after_mlp="post_feedforward_layernorm",
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_qk_norm=True,
        is_qk_norm_whole=True,
    )
    return VariantModel(config, variant)


OLMO2 = Olmo2Architecture()
OLMO3 = Olmo3Architecture()
