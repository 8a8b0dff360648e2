"""OLMo 2 (OLMo team 2025, arXiv:2501.00656): norms after attention and MLP instead of before, and QK norm.

Shapes: T tokens, R rows of logits, D hidden_size, H and K heads of queries and of keys, C head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.errors import ConfigError
from aethermind.graph import GraphBuilder, Value
from aethermind.model import DecoderConfig, StepInputs, read_decoder_config
from aethermind.model.blocks import cached_attention, embedding, lm_head, rope_table, swiglu_mlp

__all__ = ["OLMO2"]

_DEFAULTS: Mapping[str, Any] = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, slots=True)
class Olmo2:
    """A model: its configuration."""

    config: DecoderConfig

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        """Build the logits, float32 [R, vocab_size]."""
        config = self.config
        table_TC = rope_table(builder, inputs, config, max_model_len)
        x_TD = embedding(builder, inputs, config, "model.embed_tokens.weight")
        for layer in range(config.num_hidden_layers):
            base = f"model.layers.{layer}"
            mixed_TD = self._attention(builder, x_TD, table_TC, inputs, layer, f"{base}.self_attn")
            x_TD = self._add_norm(builder, x_TD, mixed_TD, f"{base}.post_attention_layernorm")
            fed_TD = swiglu_mlp(builder, x_TD, config, f"{base}.mlp")
            x_TD = self._add_norm(builder, x_TD, fed_TD, f"{base}.post_feedforward_layernorm")
        x_RD = builder.op("gather_rows", x_TD, inputs.logits_rows)
        x_RD = self._norm(builder, x_RD, "model.norm", config.hidden_size)
        head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
        return lm_head(builder, x_RD, config, head)

    def _attention(
        self, builder: GraphBuilder, x_TD: Value, table_TC: Value, inputs: StepInputs, layer: int, prefix: str
    ) -> Value:
        """Attention with QK norm over all heads, before the split into heads."""
        config = self.config
        counts = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
        heads = {}
        for name, count in counts.items():
            width = count * config.head_dim
            weight = builder.parameter(f"{prefix}.{name}_proj.weight", (width, config.hidden_size))
            value = builder.op("linear", x_TD, weight)
            if name != "v":
                value = self._norm(builder, value, f"{prefix}.{name}_norm", width)
            heads[name] = builder.op("split_heads", value, num_heads=count)
            if name != "v":
                heads[name] = builder.op("rope", heads[name], table_TC)
        scale, window = config.head_dim**-0.5, config.sliding_windows[layer]
        mixed_THC = cached_attention(
            builder, heads["q"], heads["k"], heads["v"], inputs, layer, scale=scale, window=window
        )
        shape = (config.hidden_size, config.num_attention_heads * config.head_dim)
        weight = builder.parameter(f"{prefix}.o_proj.weight", shape)
        out_TD: Value = builder.op("linear", builder.op("merge_heads", mixed_THC), weight)
        return out_TD

    def _add_norm(self, builder: GraphBuilder, x_TD: Value, branch_TD: Value, name: str) -> Value:
        """Add the norm of a branch's output to x, which is not normed itself."""
        out_TD: Value = builder.op("add", x_TD, self._norm(builder, branch_TD, name, self.config.hidden_size))
        return out_TD

    def _norm(self, builder: GraphBuilder, x: Value, name: str, width: int) -> Value:
        weight = builder.parameter(f"{name}.weight", (width,))
        out: Value = builder.op("rms_norm", x, weight, eps=self.config.rms_norm_eps)
        return out


class Olmo2Architecture:
    """`Olmo2ForCausalLM`."""

    ignored_names = ("lm_head.weight", "*.rotary_emb.inv_freq")

    def create(self, raw: Mapping[str, Any]) -> Olmo2:
        """Create the model of a config.json; ConfigError for unsupported features."""
        if raw.get("attention_bias"):
            raise ConfigError("attention_bias is true in config.json; this package computes OLMo 2 without biases.")
        return Olmo2(read_decoder_config(raw, defaults=_DEFAULTS))


OLMO2 = Olmo2Architecture()
