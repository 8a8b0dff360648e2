"""LFM2 as a graph (Liquid AI 2025, arXiv:2511.23404): gated short convolutions in most layers, attention in the others.

A short convolution reads the last few tokens only, so the state of a sequence in such a layer is a few rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.checkpoint import AdaptedTensors, StoredTensors, TensorSlice
from aethermind.errors import ConfigError
from aethermind.graph import GraphBuilder, Value
from aethermind.model import (
    DecoderConfig,
    LayerCache,
    StepInputs,
    hybrid_layout,
    positive_int,
    positive_number,
    read_attention_layers,
    read_decoder_config,
)
from aethermind.model.blocks import (
    DecoderVariant,
    ShortConvConfig,
    VariantModel,
    attention,
    short_conv_mixer,
)
from aethermind.model.known_fields import FieldTable, ignored, used

__all__ = ["LFM2"]

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 65536,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "norm_eps": 1e-5,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "conv_L_cache": 3,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
}
_FIELDS: FieldTable = {
    **used("is the epsilon of norms", "norm_eps"),
    **used("is the number of tokens that a convolution sees", "conv_L_cache"),
    **used("says whether convolutions and their projections have biases", "conv_bias"),
    **used("say which layers have attention", "layer_types", "full_attn_idxs"),
    **used("is the older name of intermediate_size", "block_ff_dim"),
    **used("is the older name of tie_word_embeddings", "tie_embedding"),
    **used("say how intermediate_size is reduced", "block_auto_adjust_ff_dim", "block_ffn_dim_multiplier"),
    **used("say how intermediate_size is reduced", "block_multiple_of"),
    **ignored("follows from the tensors", "block_dim", "conv_dim", "conv_dim_out", "num_heads", "block_use_swiglu"),
    **ignored("is norm_eps", "block_norm_eps"),
    **ignored("is rope_theta", "theta"),
    **ignored("keys and queries always have positions", "use_pos_enc"),
    **ignored("matters in training only", "block_mlp_init_scale", "block_out_init_scale"),
    **ignored("matters in training only", "block_use_xavier_init", "conv_use_xavier_init"),
}


@dataclass(frozen=True, slots=True)
class _HybridMixer:
    """Writes the short convolution or the attention of a layer, for `DecoderVariant.attention`."""

    config: DecoderConfig
    convolution: ShortConvConfig
    has_attention: tuple[bool, ...]

    def __call__(
        self, builder: GraphBuilder, x_TD: Value, rope_table_TR: Value | None, inputs: StepInputs, layer: int
    ) -> Value:
        base = f"model.layers.{layer}"
        if not self.has_attention[layer]:
            return short_conv_mixer(builder, x_TD, inputs, layer, self.convolution, f"{base}.conv")
        name = f"{base}.self_attn"
        return attention(
            builder, x_TD, rope_table_TR, inputs, self.config, layer, name, has_qkv_bias=False, has_qk_norm=True
        )


_RENAMED = {
    "self_attn.q_norm": "self_attn.q_layernorm",
    "self_attn.k_norm": "self_attn.k_layernorm",
    "self_attn.o_proj": "self_attn.out_proj",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}
"""The graph's names of modules of a layer, with the checkpoint's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lfm2(VariantModel):
    """An LFM2 model."""

    convolution: ShortConvConfig
    has_attention: tuple[bool, ...]

    def cache_layout(self) -> tuple[LayerCache, ...]:
        """Return what layers cache: keys and values of all tokens with attention, a state of each sequence without."""
        return hybrid_layout(self.config, self.convolution.state, self.has_attention)

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Rename modules, and slice the projections of convolutions out of the stored ones."""
        slices = {"model.norm.weight": TensorSlice("model.embedding_norm.weight")}
        for layer in range(self.config.num_hidden_layers):
            base = f"model.layers.{layer}"
            for name, stored_name in _RENAMED.items():
                slices[f"{base}.{name}.weight"] = TensorSlice(f"{base}.{stored_name}.weight")
            slices.update(self.convolution.slices(f"{base}.conv"))
        return AdaptedTensors(stored, slices)


class Lfm2Architecture:
    """`Lfm2ForCausalLM`: LFM2 from 350M to 2.6B."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> Lfm2:
        """Create the model of a config.json; ConfigError names a bad field."""
        fields = {**_DEFAULTS, **{name: value for name, value in raw.items() if value is not None}}
        if "rope_parameters" in fields:
            fields["rope_parameters"] = {"rope_theta": fields["rope_theta"], **fields["rope_parameters"]}
        layer_types, indices, *_ = (
            fields.pop(name, None) for name in ("layer_types", "full_attn_idxs", "sliding_window", "use_sliding_window")
        )
        fields["tie_word_embeddings"] = fields.get("tie_embedding", fields["tie_word_embeddings"])
        fields["intermediate_size"] = _intermediate_size(fields)
        config = read_decoder_config(fields, defaults={}, names={"rms_norm_eps": "norm_eps"})
        has_attention = _attention_layers(layer_types, indices, config.num_hidden_layers)
        convolution = ShortConvConfig(
            config.hidden_size, positive_int(fields, "conv_L_cache"), has_bias=bool(fields.get("conv_bias", False))
        )
        variant = DecoderVariant(
            before_attention="operator_norm",
            before_mlp="ffn_norm",
            attention=_HybridMixer(config, convolution, has_attention),
        )
        return Lfm2(config, variant, convolution=convolution, has_attention=has_attention)


def _intermediate_size(fields: Mapping[str, Any]) -> int:
    """Return the intermediate size of feed-forward networks.

    With `block_auto_adjust_ff_dim` it is two thirds of the field in config.json, times a factor, rounded up to a
    multiple of `block_multiple_of`.
    """
    name = "block_ff_dim" if "block_ff_dim" in fields else "intermediate_size"
    width = positive_int(fields, name, default=12288)
    if not fields["block_auto_adjust_ff_dim"]:
        return width
    width = int(positive_number(fields, "block_ffn_dim_multiplier") * int(2 * width / 3))
    multiple = positive_int(fields, "block_multiple_of")
    return -(-width // multiple) * multiple


def _attention_layers(layer_types: Any, indices: Any, num_layers: int) -> tuple[bool, ...]:
    """Return whether each layer has attention: by `layer_types`, or if that is None, by `full_attn_idxs`."""
    if layer_types is None:
        if indices is not None and not isinstance(indices, list):
            raise ConfigError(f"full_attn_idxs in config.json should be a list of layers, got {indices!r:.80}.")
        return tuple(indices is None or layer in indices for layer in range(num_layers))
    return read_attention_layers(layer_types, "conv", num_layers)


LFM2 = Lfm2Architecture()
