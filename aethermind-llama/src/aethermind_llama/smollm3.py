"""SmolLM3 as a graph: Llama whose layers partly have no positions (NoPE).

Sources: SmolLM3 (Bakouch et al. 2025); layers without positions (Yang et al. 2025, arXiv:2501.18795).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aethermind.errors import ConfigError
from aethermind.model import read_decoder_config
from aethermind.model.blocks import DecoderVariant, VariantModel
from aethermind.model.known_fields import FieldTable, refused, used

__all__ = ["SMOLLM3"]

_DEFAULTS: Mapping[str, Any] = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "rope_theta": 2000000.0,
    "tie_word_embeddings": True,
}

_FIELDS: FieldTable = {
    **used("says which layers have rotary positions", "no_rope_layers", "no_rope_layer_interval"),
    **used("says whether projections of attention have biases", "attention_bias"),
    **refused("biases in feed-forward networks are not computed; take another model", mlp_bias=False),
}


class SmolLM3Architecture:
    """`SmolLM3ForCausalLM`."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> VariantModel:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        if raw.get("mlp_bias", False):
            raise ConfigError("mlp_bias is true in config.json; this package has no biases in feed-forward networks.")
        windows = {} if raw.get("use_sliding_window") else {"sliding_window": None, "layer_types": None}
        config = read_decoder_config({**raw, **windows}, defaults=_DEFAULTS)
        has_rope = _layers_with_rope(raw, config.num_hidden_layers)
        config = replace(config, layer_ropes=tuple(config.rope if is_rotated else None for is_rotated in has_rope))
        has_bias = bool(raw.get("attention_bias", False))
        return VariantModel(config, DecoderVariant(has_qkv_bias=has_bias, has_output_bias=has_bias))


def _layers_with_rope(raw: Mapping[str, Any], num_layers: int) -> list[bool]:
    """Return whether each layer has rotary positions: `no_rope_layers` has a 1 if it does, despite the field's name."""
    flags = raw.get("no_rope_layers")
    if flags is None:
        interval = raw.get("no_rope_layer_interval", 4)
        if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            raise ConfigError(f"no_rope_layer_interval in config.json should be a positive integer, got {interval!r}.")
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if not isinstance(flags, list) or len(flags) < num_layers or not set(flags) <= {0, 1}:
        raise ConfigError(f"no_rope_layers in config.json should list num_hidden_layers ({num_layers}) zeros and ones.")
    return [bool(flag) for flag in flags[:num_layers]]


SMOLLM3 = SmolLM3Architecture()
