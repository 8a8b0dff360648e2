"""Step four: a model that uses the operator, a Llama-like decoder whose MLP is gated by gelu.

Shapes: T tokens, R rows of logits, D hidden_size, I intermediate_size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.errors import ConfigError
from aethermind.graph import GraphBuilder, Value
from aethermind.model import DecoderConfig, StepInputs, read_decoder_config
from aethermind.model.blocks import attention, embedding, lm_head, rope_table

__all__ = ["GEGLU"]

_DEFAULTS: Mapping[str, Any] = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, slots=True)
class GegluModel:
    """A model: its configuration."""

    config: DecoderConfig

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        """Build the logits, float32 [R, vocab_size]."""
        config = self.config
        table_TC = rope_table(builder, inputs, config, max_model_len)
        x_TD = embedding(builder, inputs, config, "model.embed_tokens.weight")
        for layer in range(config.num_hidden_layers):
            base = f"model.layers.{layer}"
            normed_TD = self._norm(builder, x_TD, f"{base}.input_layernorm")
            at = (table_TC, inputs, config, layer, f"{base}.self_attn")
            x_TD = builder.op("add", x_TD, attention(builder, normed_TD, *at, has_qkv_bias=True, has_qk_norm=False))
            normed_TD = self._norm(builder, x_TD, f"{base}.post_attention_layernorm")
            x_TD = builder.op("add", x_TD, self._mlp(builder, normed_TD, f"{base}.mlp"))
        x_RD = self._norm(builder, builder.op("gather_rows", x_TD, inputs.logits_rows), "model.norm")
        return lm_head(builder, x_RD, config, "lm_head.weight")

    def _mlp(self, builder: GraphBuilder, x_TD: Value, prefix: str) -> Value:
        shape = (self.config.intermediate_size, self.config.hidden_size)
        gate_TI, up_TI = (
            builder.op("linear", x_TD, builder.parameter(f"{prefix}.{name}_proj.weight", shape))
            for name in ("gate", "up")
        )
        with builder.scope(prefix):
            gated_TI = builder.op("geglu", gate_TI, up_TI)
        out_TD: Value = builder.op("linear", gated_TI, builder.parameter(f"{prefix}.down_proj.weight", shape[::-1]))
        return out_TD

    def _norm(self, builder: GraphBuilder, x: Value, name: str) -> Value:
        weight_D = builder.parameter(f"{name}.weight", (self.config.hidden_size,))
        out: Value = builder.op("rms_norm", x, weight_D, eps=self.config.rms_norm_eps)
        return out


class GegluArchitecture:
    """`GegluForCausalLM`."""

    ignored_names = ("*.rotary_emb.inv_freq",)

    def create(self, raw: Mapping[str, Any]) -> GegluModel:
        """Create the model of a config.json; ConfigError for another activation."""
        if raw.get("hidden_act") != "gelu_pytorch_tanh":
            raise ConfigError("hidden_act in config.json should be gelu_pytorch_tanh, which geglu computes.")
        return GegluModel(read_decoder_config({**raw, "hidden_act": None}, defaults=_DEFAULTS))


GEGLU = GegluArchitecture()
