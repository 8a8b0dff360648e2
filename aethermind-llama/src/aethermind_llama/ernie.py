"""ERNIE 4.5 (dense) as a graph: Llama with interleaved rotation (ERNIE team 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.errors import ConfigError
from aethermind.model import read_decoder_config
from aethermind.model.known_fields import FieldTable, refused
from aethermind_llama.interleaved_rope import InterleavedRopeModel

__all__ = ["ERNIE4_5"]

_DEFAULTS: Mapping[str, Any] = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
_FIELDS: FieldTable = {**refused("biases are not computed; take another model", use_bias=False)}


class ErnieArchitecture:
    """`Ernie4_5ForCausalLM`: ERNIE-4.5-0.3B."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> InterleavedRopeModel:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        if raw.get("use_bias"):
            raise ConfigError("use_bias is true in config.json; this package computes ERNIE 4.5 without biases.")
        return InterleavedRopeModel(read_decoder_config(raw, defaults=_DEFAULTS))


ERNIE4_5 = ErnieArchitecture()
