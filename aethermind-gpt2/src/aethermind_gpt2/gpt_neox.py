"""GPT-NeoX (Black et al. 2022, arXiv:2204.06745) as a graph: parallel blocks with a norm each, partial rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.model import read_decoder_config
from aethermind.model.blocks import DecoderVariant, GeluMlps, is_gelu_approximate
from aethermind.model.known_fields import FieldTable, ignored, used
from aethermind_gpt2.fused_qkv import FusedQkvDecoder, StoredNames

__all__ = ["GPT_NEOX"]

_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "vocab_size": 50432,
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.25,
    "hidden_act": "gelu",
}
_GELUS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")
_UNUSED = (
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
)
_FIELDS: FieldTable = {
    **used("is the part of each head that is rotated", "partial_rotary_factor", "rotary_pct"),
    **used("is the frequency base of the rotary embedding", "rotary_emb_base"),
    **used("is the epsilon of norms", "layer_norm_eps"),
    **used("says whether attention and feed-forward network read the same residual", "use_parallel_residual"),
    **used("says whether projections of attention have biases", "attention_bias"),
    **ignored("layer_norm_eps is the epsilon of norms", "rms_norm_eps"),
    **ignored("all heads have keys and values, and see all tokens", *_UNUSED),
    **ignored("is for encoder-decoder models", "is_decoder"),
}
_NAMES = StoredNames(
    prefix="gpt_neox.",
    layers="layers",
    outside={"model.embed_tokens": "embed_in", "model.norm": "final_layer_norm"},
    in_layer={
        "input_layernorm": "input_layernorm",
        "post_attention_layernorm": "post_attention_layernorm",
        "self_attn.o_proj": "attention.dense",
        "mlp.dense_h_to_4h": "mlp.dense_h_to_4h",
        "mlp.dense_4h_to_h": "mlp.dense_4h_to_h",
    },
    qkv="attention.query_key_value",
    has_rows_by_head=True,
    head="embed_out",
)


class GptNeoxArchitecture:
    """`GPTNeoXForCausalLM`: GPT-NeoX-20B, Pythia and others."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq", "*.attention.bias", "*.attention.masked_bias")
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> FusedQkvDecoder:
        """Create the model of a config.json; ConfigError names a bad or unsupported field."""
        present = {name: value for name, value in raw.items() if value is not None and name not in _UNUSED}
        old_names = {"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"}
        names = {name: old for name, old in old_names.items() if name not in present}
        names["rms_norm_eps"] = "layer_norm_eps"
        fields = {**_DEFAULTS, **present}
        config = read_decoder_config(fields, defaults={}, has_partial_rotary=True, activations=_GELUS, names=names)
        is_parallel, has_bias = fields.get("use_parallel_residual", True), bool(fields.get("attention_bias", True))
        is_approximate = is_gelu_approximate("hidden_act", fields["hidden_act"])
        mlp_names = ("dense_h_to_4h", "dense_4h_to_h")
        variant = DecoderVariant(
            has_layer_norm=True,
            has_norm_bias=True,
            is_parallel=bool(is_parallel),
            parallel_norm="post_attention_layernorm" if is_parallel else None,
            has_qkv_bias=has_bias,
            has_output_bias=has_bias,
            mlp=GeluMlps(mlp_names, config.hidden_size, config.intermediate_size, is_approximate),
        )
        return FusedQkvDecoder(config, variant, stored_names=_NAMES)


GPT_NEOX = GptNeoxArchitecture()
