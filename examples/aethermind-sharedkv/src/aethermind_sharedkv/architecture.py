"""Decoders such as Qwen2's and Llama's in which layers read the keys and values of an earlier layer.

A config.json is the original's with two more fields: `kv_sources`, for each layer the one whose keys and values it
reads (its own number if it computes them), and `qkv_bias`. Readers keep nothing in the KV cache and have neither
`k_proj` nor `v_proj` (SwiftKV's AcrossKV, Qiao et al. 2024, arXiv:2410.03960; YOCO, Sun et al. 2024, arXiv:2405.05254).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.errors import ConfigError
from aethermind.graph import GraphBuilder, Value
from aethermind.model import DecoderConfig, LayerCache, Paged, Shared, StepInputs, read_decoder_config
from aethermind.model.blocks import DecoderVariant, attention, cached_attention, linear, variant_decoder

__all__ = ["SHARED_KV", "check_sources"]

_DEFAULTS: Mapping[str, Any] = {
    "max_position_embeddings": 2048,
    "max_window_layers": 28,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, slots=True)
class SharingAttention:
    """The attention of a layer: with keys and values of its own, or a reader's."""

    config: DecoderConfig
    sources: tuple[int, ...]
    has_qkv_bias: bool

    def __call__(
        self, builder: GraphBuilder, x_TD: Value, rope_table_TR: Value | None, inputs: StepInputs, layer: int
    ) -> Value:
        """Write it and return its output, [T, D]."""
        config, prefix = self.config, f"model.layers.{layer}.self_attn"
        if self.sources[layer] == layer:
            operands = (builder, x_TD, rope_table_TR, inputs, config, layer, prefix)
            return attention(*operands, has_qkv_bias=self.has_qkv_bias, has_qk_norm=False)
        width = config.num_attention_heads * config.head_dim
        q_TQ = linear(builder, x_TD, f"{prefix}.q_proj", width, config.hidden_size, has_bias=self.has_qkv_bias)
        q_THC = builder.op("rope", builder.op("split_heads", q_TQ, num_heads=config.num_attention_heads), rope_table_TR)
        mixed_THC = cached_attention(builder, q_THC, None, None, inputs, layer, scale=config.head_dim**-0.5)
        mixed_TQ = builder.op("merge_heads", mixed_THC)
        return linear(builder, mixed_TQ, f"{prefix}.o_proj", config.hidden_size, width, has_bias=False)


@dataclass(frozen=True, slots=True)
class SharedKVModel:
    """A model: its configuration and what its layers read."""

    config: DecoderConfig
    sources: tuple[int, ...]
    has_qkv_bias: bool

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        """Build the logits, float32 [R, vocab_size]."""
        variant = DecoderVariant(attention=SharingAttention(self.config, self.sources, self.has_qkv_bias))
        return variant_decoder(builder, inputs, self.config, max_model_len, variant)

    def cache_layout(self) -> tuple[LayerCache, ...]:
        """Keys and values of layers that compute them, nothing of readers."""
        own = Paged(self.config.num_key_value_heads, self.config.head_dim, self.config.head_dim)
        return tuple(own if source == layer else Shared(source) for layer, source in enumerate(self.sources))


class SharedKVArchitecture:
    """`SharedKVForCausalLM`."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")

    def create(self, raw: Mapping[str, Any]) -> SharedKVModel:
        """Create the model of a config.json; ConfigError for unsupported features."""
        config = read_decoder_config(raw, defaults=_DEFAULTS)
        if any(config.sliding_windows):
            raise ConfigError("config.json has sliding windows; this package computes full attention.")
        sources = raw["kv_sources"]
        check_sources(sources, config.num_hidden_layers)
        return SharedKVModel(config, tuple(sources), bool(raw.get("qkv_bias", False)))


def check_sources(sources: Any, num_layers: int) -> None:
    """ConfigError unless each layer reads itself, or an earlier one that computes keys and values."""
    if not isinstance(sources, list) or len(sources) != num_layers or not all(type(one) is int for one in sources):
        raise ConfigError(f"kv_sources should be a list of {num_layers} numbers of layers, got {sources!r:.80}.")
    for layer, source in enumerate(sources):
        if not 0 <= source <= layer or sources[source] != source:
            raise ConfigError(
                f"Layer {layer} cannot read the keys and values of layer {source}; name an earlier one that computes "
                "them."
            )


SHARED_KV = SharedKVArchitecture()
