"""MPT (MosaicML 2023) as a graph: ALiBi, and no biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aethermind.errors import ConfigError
from aethermind.model import positive_int, positive_number, read_decoder_config
from aethermind.model.blocks import DecoderVariant, GeluMlps
from aethermind.model.known_fields import FieldTable, ignored, refused, used
from aethermind_gpt2.fused_qkv import FusedQkvDecoder, StoredNames

__all__ = ["MPT"]

_NAMES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "layer_norm_epsilon",
}
_DEFAULTS: Mapping[str, Any] = {
    "d_model": 2048,
    "n_layers": 24,
    "n_heads": 16,
    "max_seq_len": 2048,
    "vocab_size": 50368,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
_DECODER_FIELDS = ("vocab_size", "tie_word_embeddings", "eos_token_id", "dtype", "torch_dtype")
"""Fields of `DecoderConfig` that have the usual name in MPT's config.json."""
_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "attn_type": (None, "multihead_attention"),
    "prefix_lm": (None, False),
    "qk_ln": (None, False),
    "alibi": (None, True),
}
"""The supported values of fields of attn_config."""
_TRAINING = "matters while a model is trained"
_FIELDS: FieldTable = {
    **used("are sizes of the graph", "d_model", "n_layers", "n_heads"),
    **used("is the longest context", "max_seq_len"),
    **used("is the epsilon of norms", "layer_norm_epsilon"),
    **used("says how attention is computed; forms other than plain heads with ALiBi are refused", "attn_config"),
    **ignored("positions are ALiBi's", "learned_pos_emb"),
    **ignored("says where weights are created", "init_device", "init_config"),
    **ignored(_TRAINING, "resid_pdrop", "emb_pdrop", "embedding_fraction", "norm_type", "verbose"),
    **refused("networks that are not four times as wide are not computed; take another model", expansion_ratio=4),
    **refused("biases are not computed; take another model", no_bias=True),
    **refused("factors of logits are not computed; take another model", logit_scale=None),
}
_STORED = StoredNames(
    prefix="transformer.",
    layers="blocks",
    outside={"model.embed_tokens": "wte", "model.norm": "norm_f"},
    in_layer={
        "input_layernorm": "norm_1",
        "post_attention_layernorm": "norm_2",
        "self_attn.o_proj": "attn.out_proj",
        "mlp.up_proj": "ffn.up_proj",
        "mlp.down_proj": "ffn.down_proj",
    },
    qkv="attn.Wqkv",
    has_rows_by_head=False,
)


class MptArchitecture:
    """`MptForCausalLM`: MPT-7B and MPT-30B."""

    ignored_names = ("lm_head.weight",)
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> FusedQkvDecoder:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        from aethermind.ops.catalog.attention import alibi_slopes

        fields = {**_DEFAULTS, **{name: value for name, value in raw.items() if value is not None}}
        attention = fields.get("attn_config", {})
        if not isinstance(attention, Mapping):
            raise ConfigError(f"attn_config in config.json should be an object, got {attention!r:.80}.")
        for name, supported in _SUPPORTED.items():
            if attention.get(name) not in supported:
                raise ConfigError(
                    f"{name} in attn_config is {attention[name]!r:.80}; this package computes {supported[1]}."
                )
        decoder_fields = {name: fields[name] for name in (*_NAMES.values(), *_DECODER_FIELDS) if name in fields}
        decoder_fields["intermediate_size"] = 4 * positive_int(fields, "d_model")
        config = read_decoder_config(decoder_fields, defaults={}, has_rotary=False, names=_NAMES)
        config = replace(config, layer_ropes=(None,) * config.num_hidden_layers)
        has_scale = attention.get("softmax_scale") is not None
        max_bias = positive_number(attention, "alibi_bias_max", default=8)
        variant = DecoderVariant(
            has_layer_norm=True,
            attention_scale=positive_number(attention, "softmax_scale") if has_scale else None,
            qkv_limit=positive_number(attention, "clip_qkv") if attention.get("clip_qkv") else 0.0,
            slopes=tuple(alibi_slopes(config.num_attention_heads, max_bias).tolist()),
            mlp=GeluMlps(
                ("up_proj", "down_proj"),
                config.hidden_size,
                config.intermediate_size,
                is_approximate=False,
                has_bias=False,
            ),
        )
        return FusedQkvDecoder(config, variant, stored_names=_STORED)


MPT = MptArchitecture()
