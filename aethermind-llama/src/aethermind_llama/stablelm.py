"""StableLM 2 and StableLM 3B as graphs: LayerNorm, and rotation of the first elements of each head only.

StableLM 2 (Bellagente et al. 2024, arXiv:2402.17834).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.errors import ConfigError
from aethermind.model import read_decoder_config
from aethermind.model.blocks import DecoderVariant, VariantModel
from aethermind.model.known_fields import FieldTable, refused, used

__all__ = ["STABLELM"]

_DEFAULTS: Mapping[str, Any] = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "partial_rotary_factor": 0.25,
    "tie_word_embeddings": False,
}
_FIELDS: FieldTable = {
    **used("is the epsilon of norms", "layer_norm_eps"),
    **used("is the part of each head that is rotated", "partial_rotary_factor"),
    **used("says whether projections of queries, keys and values have biases", "use_qkv_bias"),
    **used("says whether attention and feed-forward network read the same input", "use_parallel_residual"),
    **refused("norms of single heads are not computed; take another model", qk_layernorm=False),
}


class StableLmArchitecture:
    """`StableLmForCausalLM`: StableLM 3B, StableLM Zephyr and StableLM 2 1.6B."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> VariantModel:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        if raw.get("qk_layernorm"):
            raise ConfigError("qk_layernorm is true in config.json; this package computes no norms of single heads.")
        variant = DecoderVariant(
            has_layer_norm=True,
            has_norm_bias=True,
            is_parallel=bool(raw.get("use_parallel_residual", False)),
            has_qkv_bias=bool(raw.get("use_qkv_bias", False)),
        )
        names = {"rms_norm_eps": "layer_norm_eps"}
        config = read_decoder_config(raw, defaults=_DEFAULTS, has_partial_rotary=True, names=names)
        return VariantModel(config, variant)


STABLELM = StableLmArchitecture()
