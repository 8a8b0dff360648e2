"""BLOOM (BigScience 2022, arXiv:2211.05100) as a graph: ALiBi, and a norm of embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aethermind.errors import ConfigError
from aethermind.model import positive_int, read_decoder_config
from aethermind.model.blocks import DecoderVariant, GeluMlps
from aethermind.model.known_fields import FieldTable, ignored, refused, used
from aethermind_gpt2.fused_qkv import FusedQkvDecoder, StoredNames

__all__ = ["BLOOM"]

_NAMES = {
    "hidden_size": "n_embed",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "seq_length",
    "rms_norm_eps": "layer_norm_epsilon",
}
"""Fields of `DecoderConfig` that have another name in config.json; some files have the usual names for the first three.
"""
_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "seq_length": 2048,
    "vocab_size": 250880,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
_DECODER_FIELDS = (*_DEFAULTS, *_NAMES.values(), "eos_token_id", "dtype", "torch_dtype")
_NORM = "word_embeddings_layernorm"
_FIELDS: FieldTable = {
    **used("are sizes of the graph", "n_embed", "n_layer", "n_head"),
    **used("is the longest context", "seq_length"),
    **used("is the epsilon of norms", "layer_norm_epsilon"),
    **ignored("follows from hidden_size: four times as much", "n_inner"),
    **ignored("chooses among kernels of the code that trained BLOOM", "masked_softmax_fusion", "bias_dropout_fusion"),
    **ignored("chooses among kernels of the code that trained BLOOM", "skip_bias_add", "skip_bias_add_qkv"),
    **ignored("scores of attention are computed in float32 anyway", "attention_softmax_in_fp32"),
    **ignored("splits products of matrices without changing them", "slow_but_exact"),
    **ignored("is for training", "offset_alibi"),
    **refused(
        "residuals that are normed are not computed; take another model", apply_residual_connection_post_layernorm=False
    ),
}
_STORED = StoredNames(
    prefix="transformer.",
    layers="h",
    outside={"model.embed_tokens": "word_embeddings", f"model.{_NORM}": _NORM, "model.norm": "ln_f"},
    in_layer={
        "input_layernorm": "input_layernorm",
        "post_attention_layernorm": "post_attention_layernorm",
        "self_attn.o_proj": "self_attention.dense",
        "mlp.dense_h_to_4h": "mlp.dense_h_to_4h",
        "mlp.dense_4h_to_h": "mlp.dense_4h_to_h",
    },
    qkv="self_attention.query_key_value",
    has_rows_by_head=True,
)


class BloomArchitecture:
    """`BloomForCausalLM`: BLOOM and BLOOMZ."""

    ignored_names = ("lm_head.weight",)
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> FusedQkvDecoder:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        from aethermind.ops.catalog.attention import alibi_slopes

        if raw.get("apply_residual_connection_post_layernorm"):
            raise ConfigError("apply_residual_connection_post_layernorm is true in config.json; this is not computed.")
        fields = {name: raw[name] for name in _DECODER_FIELDS if raw.get(name) is not None}
        width = positive_int({**_DEFAULTS, **fields}, "n_embed" if "n_embed" in fields else "hidden_size")
        fields["intermediate_size"] = 4 * width
        config = read_decoder_config(fields, defaults=_DEFAULTS, has_rotary=False, names=_NAMES)
        config = replace(config, layer_ropes=(None,) * config.num_hidden_layers)
        variant = DecoderVariant(
            has_layer_norm=True,
            has_norm_bias=True,
            has_qkv_bias=True,
            has_output_bias=True,
            embedding_norm=_NORM,
            slopes=tuple(alibi_slopes(config.num_attention_heads).tolist()),
            mlp=GeluMlps(("dense_h_to_4h", "dense_4h_to_h"), width, 4 * width, is_approximate=True),
        )
        return FusedQkvDecoder(config, variant, stored_names=_STORED)


BLOOM = BloomArchitecture()
