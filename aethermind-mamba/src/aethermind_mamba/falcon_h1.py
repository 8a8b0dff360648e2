"""Falcon-H1 as a graph (Zuo et al. 2025, arXiv:2507.22448): attention and a Mamba 2 mixer in parallel in every layer.

Both read the same normed input, and their outputs are added. Multipliers from training (maximal update
parametrisation) scale embeddings, keys, gates, slices of projections, outputs and logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.checkpoint import AdaptedTensors, StoredTensors, TensorSlice
from aethermind.graph import GraphBuilder, Value
from aethermind.model import (
    DecoderConfig,
    Hybrid,
    LayerCache,
    Paged,
    StepInputs,
    positive_number,
    read_decoder_config,
    read_numbers,
)
from aethermind.model.blocks import (
    DecoderVariant,
    Mamba2Config,
    attention,
    mamba2_mixer,
    scaled,
    swiglu_mlp,
    variant_decoder,
)
from aethermind.model.known_fields import FieldTable, ignored, refused, used
from aethermind_mamba.mixer_config import read_mixer

__all__ = ["FALCON_H1"]

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 128000,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
_MULTIPLIER = "multiplies what its name says"
_FIELDS: FieldTable = {
    **used("are sizes of the mixers", "mamba_d_ssm", "mamba_expand", "mamba_n_heads", "mamba_d_head"),
    **used("are sizes of the mixers", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
    **used("say which parts have biases", "mamba_conv_bias", "mamba_proj_bias", "projectors_bias"),
    **used("says whether projections of attention have biases", "attention_bias"),
    **used("say whether a mixer's results are normed, and where", "mamba_rms_norm", "mamba_norm_before_gate"),
    **used("are limits of time steps", "time_step_limit"),
    **used(_MULTIPLIER, "lm_head_multiplier", "embedding_multiplier", "key_multiplier", "mlp_multipliers"),
    **used(_MULTIPLIER, "attention_in_multiplier", "attention_out_multiplier"),
    **used(_MULTIPLIER, "ssm_in_multiplier", "ssm_out_multiplier", "ssm_multipliers"),
    **ignored("tokens are processed one by one", "mamba_chunk_size"),
    **ignored("follows from the tensors", "mamba_use_mlp"),
    **ignored("only rows of sampled tokens have logits", "num_logits_to_keep"),
    **ignored("all layers are hybrid", "layers_block_type", "attn_layer_indices"),
    **ignored("matters in training only", "time_step_min", "time_step_max", "time_step_floor", "time_step_rank"),
    **refused("biases of feed-forward networks are not computed; take another model", mlp_bias=False),
}


@dataclass(frozen=True, slots=True)
class _HybridMixer:
    """Writes attention and the Mamba 2 mixer of a layer, and adds their outputs, each times its multiplier."""

    config: DecoderConfig
    mamba: Mamba2Config
    has_bias: bool
    mamba_factor: float
    attention_input_factor: float
    key_factor: float
    attention_factor: float

    def __call__(
        self, builder: GraphBuilder, x_TD: Value, rope_table_TR: Value | None, inputs: StepInputs, layer: int
    ) -> Value:
        base = f"model.layers.{layer}"
        mamba_TD = mamba2_mixer(builder, x_TD, inputs, layer, self.mamba, f"{base}.mamba")
        attention_TD = attention(
            builder,
            scaled(builder, x_TD, self.attention_input_factor),
            rope_table_TR,
            inputs,
            self.config,
            layer,
            f"{base}.self_attn",
            has_qkv_bias=self.has_bias,
            has_qk_norm=False,
            has_output_bias=self.has_bias,
            scale=self.config.head_dim**-0.5 * self.key_factor,
        )
        mamba_TD = scaled(builder, mamba_TD, self.mamba_factor)
        out_TD: Value = builder.op("add", scaled(builder, attention_TD, self.attention_factor), mamba_TD)
        return out_TD


@dataclass(frozen=True, slots=True)
class _FeedForward:
    """Writes down(silu(gate(x) · gate_factor) · up(x)) · factor."""

    config: DecoderConfig
    gate_factor: float
    factor: float

    def __call__(self, builder: GraphBuilder, x_TD: Value, layer: int) -> Value:
        prefix, config = f"model.layers.{layer}.feed_forward", self.config
        if self.gate_factor == 1.0:
            return scaled(builder, swiglu_mlp(builder, x_TD, config, prefix), self.factor)
        shape = (config.intermediate_size, config.hidden_size)
        gate_ID, up_ID = (builder.parameter(f"{prefix}.{name}_proj.weight", shape) for name in ("gate", "up"))
        down_DI = builder.parameter(f"{prefix}.down_proj.weight", shape[::-1])
        with builder.scope(prefix):
            gate_TI = scaled(builder, builder.op("linear", x_TD, gate_ID), self.gate_factor)
            inner_TI = builder.op("silu_mul", gate_TI, builder.op("linear", x_TD, up_ID))
            return scaled(builder, builder.op("linear", inner_TI, down_DI), self.factor)


@dataclass(frozen=True, slots=True)
class FalconH1:
    """A Falcon-H1 model."""

    config: DecoderConfig
    mamba: Mamba2Config
    variant: DecoderVariant

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        """Build the logits, float32 [R, vocab_size]."""
        return variant_decoder(builder, inputs, self.config, max_model_len, self.variant)

    def cache_layout(self) -> tuple[LayerCache, ...]:
        """Return what layers cache: keys and values of all tokens, and a state of each sequence, in every layer."""
        heads, head_dim = self.config.num_key_value_heads, self.config.head_dim
        return (Hybrid(Paged(heads, head_dim, head_dim), self.mamba.state),) * self.config.num_hidden_layers

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Slice the mixers' projections out of the stored ones, and rename the last norm."""
        slices = {"model.norm.weight": TensorSlice("model.final_layernorm.weight")}
        for layer in range(self.config.num_hidden_layers):
            slices.update(self.mamba.slices(f"model.layers.{layer}.mamba"))
        return AdaptedTensors(stored, slices)


class FalconH1Architecture:
    """`FalconH1ForCausalLM`: Falcon-H1 from 0.5B to 34B."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq", "*.mup_vector")
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> FalconH1:
        """Create the model of a config.json; ConfigError names a bad field."""
        fields = {name: value for name, value in raw.items() if value is not None}
        for name in ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers"):  # without effect
            fields.pop(name, None)
        config = read_decoder_config(fields, defaults=_DEFAULTS)
        mamba = read_mixer(fields, config)
        gate_factor, factor = read_numbers(fields, "mlp_multipliers", 2, default=1.0)
        mixer = _HybridMixer(
            config,
            mamba,
            has_bias=bool(fields.get("attention_bias", False)),
            mamba_factor=positive_number(fields, "ssm_out_multiplier", default=1.0),
            attention_input_factor=positive_number(fields, "attention_in_multiplier", default=1.0),
            key_factor=positive_number(fields, "key_multiplier", default=1.0),
            attention_factor=positive_number(fields, "attention_out_multiplier", default=1.0),
        )
        variant = DecoderVariant(
            before_mlp="pre_ff_layernorm",
            token_factor=positive_number(fields, "embedding_multiplier", default=1.0),
            logits_factor=positive_number(fields, "lm_head_multiplier", default=1.0),
            attention=mixer,
            mlp=_FeedForward(config, gate_factor, factor),
        )
        return FalconH1(config, mamba, variant)


FALCON_H1 = FalconH1Architecture()
