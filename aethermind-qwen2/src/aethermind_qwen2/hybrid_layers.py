"""The layers of Qwen3-Next and Qwen3.5, gated delta nets or gated attention, and how checkpoints store them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.checkpoint import (
    AdaptedTensors,
    StackedTensors,
    StoredTensors,
    TensorSlice,
    expert_stacks,
    renamed_prefixes,
    rows_by_head,
)
from aethermind.errors import ConfigError
from aethermind.graph import GraphBuilder, Value
from aethermind.model import (
    DecoderConfig,
    LayerCache,
    MixtureConfig,
    StepInputs,
    hybrid_layout,
    positive_int,
    read_attention_layers,
)
from aethermind.model.blocks import DeltaNetConfig, VariantModel, attention, delta_net_mixer

__all__ = ["HybridMixer", "QwenHybrid", "attention_layers", "read_delta_net"]


@dataclass(frozen=True, slots=True)
class HybridMixer:
    """Writes the gated delta net or the attention of a layer, for `DecoderVariant.attention`."""

    config: DecoderConfig
    delta_net: DeltaNetConfig
    has_attention: tuple[bool, ...]
    has_bias: bool
    norm_offset: float

    def __call__(
        self, builder: GraphBuilder, x_TD: Value, rope_table_TR: Value | None, inputs: StepInputs, layer: int
    ) -> Value:
        base = f"model.layers.{layer}"
        if not self.has_attention[layer]:
            return delta_net_mixer(builder, x_TD, inputs, layer, self.delta_net, f"{base}.linear_attn")
        return attention(
            builder,
            x_TD,
            rope_table_TR,
            inputs,
            self.config,
            layer,
            f"{base}.self_attn",
            has_qkv_bias=self.has_bias,
            has_qk_norm=True,
            has_output_bias=self.has_bias,
            has_output_gate=True,
            norm_offset=self.norm_offset,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenHybrid(VariantModel):
    """A Qwen model with gated delta nets."""

    delta_net: DeltaNetConfig
    has_attention: tuple[bool, ...]
    mixture: MixtureConfig | None
    has_fused_projections: bool
    """Whether a checkpoint fuses the projections of gated delta nets head by head."""
    has_vision_encoder: bool = False
    """Whether a checkpoint has a vision encoder as well; then the names of the decoder's tensors have a prefix."""

    def cache_layout(self) -> tuple[LayerCache, ...]:
        """Return what layers cache: keys and values of all tokens with attention, a state of each sequence without."""
        return hybrid_layout(self.config, self.delta_net.state, self.has_attention)

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Slice queries, gates and the projections of gated delta nets out of stored tensors, and stack experts."""
        if self.has_vision_encoder:
            stored = AdaptedTensors(stored, renamed_prefixes(stored.names, {"model.language_model.": "model."}))
        slices: dict[str, TensorSlice] = {}
        for layer, has_attention in enumerate(self.has_attention):
            base = f"model.layers.{layer}"
            if has_attention:
                slices.update(self._queries_and_gates(f"{base}.self_attn"))
            elif self.has_fused_projections:
                slices.update(self.delta_net.fused_slices(f"{base}.linear_attn"))
            else:
                slices.update(self.delta_net.slices(f"{base}.linear_attn"))
        adapted = AdaptedTensors(stored, slices)
        if self.mixture is None:
            return adapted
        stacks = expert_stacks(adapted, self.mixture.expert_modules, self.mixture.num_experts)
        return StackedTensors(adapted, stacks)

    def _queries_and_gates(self, prefix: str) -> dict[str, TensorSlice]:
        """Return slices of `q_proj`, which has for each head the rows of the query, then those of the gate."""
        heads, head_dim = self.config.num_attention_heads, self.config.head_dim
        rows = dict(zip(("q_proj", "gate_proj"), rows_by_head(heads, (head_dim, head_dim)), strict=True))
        return {
            f"{prefix}.{name}.{kind}": TensorSlice(f"{prefix}.q_proj.{kind}", order=order)
            for name, order in rows.items()
            for kind in ("weight", "bias")
        }


def attention_layers(layer_types: Any, interval: int, num_layers: int) -> tuple[bool, ...]:
    """Return whether each layer has attention: as `layer_types` says, or if that is None, every `interval`-th layer."""
    if layer_types is None:
        return tuple((layer + 1) % interval == 0 for layer in range(num_layers))
    return read_attention_layers(layer_types, "linear_attention", num_layers)


def read_delta_net(fields: Mapping[str, Any], config: DecoderConfig) -> DeltaNetConfig:
    """Read the sizes of gated delta nets; ConfigError names a bad field."""
    sizes = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    key_heads, value_heads, key_dim, value_dim, kernel = (positive_int(fields, f"linear_{name}") for name in sizes)
    if value_heads % key_heads:
        raise ConfigError(
            f"linear_num_value_heads ({value_heads}) in config.json is not a multiple of linear_num_key_heads "
            f"({key_heads})."
        )
    return DeltaNetConfig(config.hidden_size, key_heads, value_heads, key_dim, value_dim, kernel, config.rms_norm_eps)
