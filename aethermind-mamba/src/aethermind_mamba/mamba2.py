"""Mamba 2 as a graph (Dao and Gu 2024, arXiv:2405.21060): a stack of mixers without attention or feed-forward networks.

A sequence has a state of fixed size instead of keys and values, so neither its memory nor the time of a step grows with
its length.
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
    positive_int,
    positive_number,
    read_decoder_config,
)
from aethermind.model.blocks import Mamba2Config, embedding, lm_head, mamba2_mixer
from aethermind.model.known_fields import FieldTable, ignored, used
from aethermind_mamba.mixer_config import read_time_limits

__all__ = ["MAMBA2"]

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32768,
    "hidden_size": 4096,
    "num_hidden_layers": 64,
    "num_heads": 128,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "expand": 2,
    "layer_norm_epsilon": 1e-5,
}
_MAX_LENGTH = 2**18
"""The longest context if config.json has no field for it. States do not limit the context, but a step's inputs do."""

_DECODER_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "head_dim",
    "hidden_act",
    "layer_norm_epsilon",
    "tie_word_embeddings",
    "eos_token_id",
    "is_causal",
    "dtype",
    "torch_dtype",
)
_FIELDS: FieldTable = {
    **used("are sizes of the mixers", "num_heads", "head_dim", "state_size", "n_groups", "conv_kernel", "expand"),
    **used("is the epsilon of norms", "layer_norm_epsilon"),
    **used("say which parts have biases", "use_bias", "use_conv_bias"),
    **used("are limits of time steps", "time_step_limit"),
    **ignored("follows from expand and hidden_size", "intermediate_size"),
    **ignored("tokens are processed one by one", "chunk_size"),
    **ignored("residuals have the model's dtype", "residual_in_fp32"),
    **ignored("the mixer of this architecture always normalises after the gate", "norm_before_gate", "rms_norm"),
    **ignored("matters in training only", "rescale_prenorm_residual", "time_step_rank", "time_step_init_scheme"),
    **ignored("matters in training only", "time_step_min", "time_step_max", "time_step_floor", "time_step_scale"),
}


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A Mamba 2 model."""

    config: DecoderConfig
    mixer: Mamba2Config

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        """Build the logits, float32 [R, vocab_size]."""
        config, eps = self.config, self.config.rms_norm_eps
        table = "backbone.embeddings.weight"
        residual_TD = embedding(builder, inputs, config, table)
        x_TD = builder.op("rms_norm", residual_TD, self._norm(builder, "layers.0.norm"), eps=eps)
        for layer in range(config.num_hidden_layers):
            out_TD = mamba2_mixer(builder, x_TD, inputs, layer, self.mixer, f"backbone.layers.{layer}.mixer")
            is_last = layer == config.num_hidden_layers - 1
            if is_last:
                out_TD, residual_TD = (
                    builder.op("gather_rows", value, inputs.logits_rows) for value in (out_TD, residual_TD)
                )
            norm_D = self._norm(builder, "norm_f" if is_last else f"layers.{layer + 1}.norm")
            x_TD, residual_TD = builder.op("add_rms_norm", out_TD, residual_TD, norm_D, eps=eps)
        return lm_head(builder, x_TD, config, table if config.tie_word_embeddings else "lm_head.weight")

    def cache_layout(self) -> tuple[LayerCache, ...]:
        """Return what layers cache: a state of each sequence."""
        return (self.mixer.state,) * self.config.num_hidden_layers

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Slice the mixers' projections out of the stored ones, and rename the embeddings of older checkpoints."""
        slices = {"backbone.embeddings.weight": TensorSlice("backbone.embedding.weight")}
        for layer in range(self.config.num_hidden_layers):
            slices.update(self.mixer.slices(f"backbone.layers.{layer}.mixer"))
        return AdaptedTensors(stored, slices)

    def _norm(self, builder: GraphBuilder, name: str) -> Value:
        return builder.parameter(f"backbone.{name}.weight", (self.config.hidden_size,))


class Mamba2Architecture:
    """`Mamba2ForCausalLM`: Mamba 2 and Codestral Mamba."""

    ignored_names = ("lm_head.weight",)
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> Mamba2:
        """Create the model of a config.json; ConfigError names a bad field."""
        fields = {**_DEFAULTS, **{name: value for name, value in raw.items() if value is not None}}
        sizes = ("num_heads", "head_dim", "hidden_size", "state_size", "n_groups", "conv_kernel")
        heads, head_dim, hidden_size, state_size, groups, kernel = (positive_int(fields, name) for name in sizes)
        inner = positive_number(fields, "expand") * hidden_size
        if inner != heads * head_dim or heads % groups:
            raise ConfigError(
                f"num_heads ({heads}) times head_dim ({head_dim}) in config.json should be expand times hidden_size "
                f"({inner:g}), and num_heads a multiple of n_groups ({groups})."
            )
        config = read_decoder_config(
            {
                **{name: fields[name] for name in _DECODER_FIELDS if name in fields},
                "num_attention_heads": heads,
                "intermediate_size": heads * head_dim,
                "max_position_embeddings": fields.get("max_position_embeddings", _MAX_LENGTH),
            },
            defaults={},
            has_rotary=False,
            names={"rms_norm_eps": "layer_norm_epsilon"},
        )
        dt_min, dt_max = read_time_limits(fields)
        mixer = Mamba2Config(
            hidden_size,
            heads,
            head_dim,
            state_size,
            groups,
            kernel,
            config.rms_norm_eps,
            dt_min=dt_min,
            dt_max=dt_max,
            has_in_bias=bool(fields.get("use_bias", False)),
            has_conv_bias=bool(fields.get("use_conv_bias", True)),
            has_out_bias=bool(fields.get("use_bias", False)),
        )
        return Mamba2(config, mixer)


MAMBA2 = Mamba2Architecture()
