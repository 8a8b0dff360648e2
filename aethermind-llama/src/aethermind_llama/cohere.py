"""Command R, Aya and Command R7B as graphs: attention and feed-forward network read the same LayerNorm without bias.

Rotation is interleaved, and logits are multiplied by a factor. Command R7B (Cohere 2025, arXiv:2504.00698) has sliding
windows in three of four layers; the other layers have no positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aethermind.errors import ConfigError
from aethermind.model import DecoderConfig, periodic_layer_types, positive_int, positive_number, read_decoder_config
from aethermind.model.blocks import DecoderVariant
from aethermind.model.known_fields import FieldTable, refused, used
from aethermind_llama.interleaved_rope import InterleavedRopeModel

__all__ = ["COHERE", "COHERE2"]

_DEFAULTS: Mapping[str, Any] = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}
_COMMON = {
    **used("is the epsilon of norms", "layer_norm_eps"),
    **used("is a factor of logits", "logit_scale"),
    **used("says whether projections of attention have biases", "attention_bias"),
}
_COHERE_FIELDS: FieldTable = {
    **_COMMON,
    **refused("norms of single heads (Command R+) are not computed; take another model", use_qk_norm=False),
}
_COHERE2_FIELDS: FieldTable = {
    **_COMMON,
    **used("is the distance of layers that attend to all tokens", "sliding_window_pattern"),
}


class CohereArchitecture:
    """`CohereForCausalLM`: Command R, Aya 23 and Aya Expanse 8B."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _COHERE_FIELDS

    def create(self, raw: Mapping[str, Any]) -> InterleavedRopeModel:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        if raw.get("use_qk_norm"):
            raise ConfigError("use_qk_norm is true in config.json; this package computes no norms of single heads.")
        return _model(raw, _config(raw))


class Cohere2Architecture:
    """`Cohere2ForCausalLM`: Command R7B and Command A."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _COHERE2_FIELDS

    def create(self, raw: Mapping[str, Any]) -> InterleavedRopeModel:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        fields: dict[str, Any] = {"sliding_window": 4096, **raw}
        if fields.get("layer_types") is None:
            fields["layer_types"] = periodic_layer_types(fields, _period(fields))
        config = _config(fields)
        ropes = tuple(config.rope if window else None for window in config.sliding_windows)
        return _model(raw, replace(config, layer_ropes=ropes))


def _period(fields: Mapping[str, Any]) -> int:
    """Return the distance between two layers that attend to all tokens."""
    present = {name: value for name, value in fields.items() if value is not None}
    return positive_int(present, "sliding_window_pattern", default=4)


def _config(raw: Mapping[str, Any]) -> DecoderConfig:
    return read_decoder_config(raw, defaults=_DEFAULTS, names={"rms_norm_eps": "layer_norm_eps"})


def _model(raw: Mapping[str, Any], config: DecoderConfig) -> InterleavedRopeModel:
    has_bias = bool(raw.get("attention_bias", False))
    variant = DecoderVariant(
        has_layer_norm=True,
        is_parallel=True,
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        logits_factor=positive_number(raw, "logit_scale", default=0.0625),
    )
    return InterleavedRopeModel(config, variant)


COHERE = CohereArchitecture()
COHERE2 = Cohere2Architecture()
