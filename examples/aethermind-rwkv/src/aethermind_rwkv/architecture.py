"""RWKV-4 as a graph (Peng et al. 2023, arXiv:2305.13048): no attention, and states of fixed size instead of keys and
values.

Shapes: T tokens, D hidden_size, A attention_hidden_size, I intermediate_size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aethermind.graph import GraphBuilder, Value
from aethermind.model import DecoderConfig, LayerCache, Recurrent, StepInputs, read_decoder_config
from aethermind.model.blocks import embedding, layer_norm, linear, lm_head
from aethermind.model.known_fields import FieldTable, ignored, used

__all__ = ["RWKV"]

_MAX_LENGTH = 2**18
"""The longest context: states have no limit, but the inputs of a step have."""

_FIELDS: FieldTable = {
    **used("is the width of the recurrence", "attention_hidden_size"),
    **used("is the epsilon of norms", "layer_norm_epsilon"),
    **ignored("is the length of training; states have no limit", "context_length"),
    **ignored("keeps float16 in range, and does not change logits", "rescale_every"),
}


@dataclass(frozen=True, slots=True)
class Rwkv:
    """An RWKV-4 model."""

    config: DecoderConfig
    width: int

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        """Build the logits, float32 [R, vocab_size]."""
        x_TD = embedding(builder, inputs, self.config, "rwkv.embeddings.weight")
        x_TD = self._norm(builder, x_TD, "rwkv.blocks.0.pre_ln")
        shift_2D = builder.constant(
            "shift", np.array([[1], [0]], builder.dtype.numpy).repeat(self.config.hidden_size, 1)
        )
        for layer in range(self.config.num_hidden_layers):
            base = f"rwkv.blocks.{layer}"
            for write, norm in ((self._time_mixing, "ln1"), (self._channel_mixing, "ln2")):
                normed_TD = self._norm(builder, x_TD, f"{base}.{norm}")
                x_TD = builder.op("add", x_TD, write(builder, normed_TD, shift_2D, inputs, layer, base))
        x_RD = self._norm(builder, builder.op("gather_rows", x_TD, inputs.logits_rows), "rwkv.ln_out")
        head = "rwkv.embeddings.weight" if self.config.tie_word_embeddings else "head.weight"
        return lm_head(builder, x_RD, self.config, head)

    def cache_layout(self) -> tuple[LayerCache, ...]:
        """The last token that each part of a layer has seen, and the sums of its recurrence."""
        last = (1, self.config.hidden_size)
        tensors = (("last_of_time_mixing", last), ("last_of_channel_mixing", last), ("sums", (3, self.width)))
        return (Recurrent(tensors),) * self.config.num_hidden_layers

    def _time_mixing(
        self, builder: GraphBuilder, x_TD: Value, shift_2D: Value, inputs: StepInputs, layer: int, base: str
    ) -> Value:
        hidden, prefix = self.config.hidden_size, f"{base}.attention"
        previous_TD = _previous(builder, x_TD, shift_2D, inputs, layer, "last_of_time_mixing")
        decay_A, first_A = (builder.parameter(f"{prefix}.time_{name}", (self.width,)) for name in ("decay", "first"))
        r_TA, k_TA, v_TA = (
            _projected(builder, x_TD, previous_TD, prefix, name, self.width) for name in ("receptance", "key", "value")
        )
        state = builder.latest(inputs.caches[layer]["sums"])
        tables = inputs.cu_seqlens_q, inputs.seqlens_k, inputs.state_slots
        mean_TA, _ = builder.op("wkv", k_TA, v_TA, decay_A, first_A, state, *tables)
        gated_TA = builder.op("sigmoid_mul", r_TA, mean_TA)
        return linear(builder, gated_TA, f"{prefix}.output", hidden, self.width, has_bias=False)

    def _channel_mixing(
        self, builder: GraphBuilder, x_TD: Value, shift_2D: Value, inputs: StepInputs, layer: int, base: str
    ) -> Value:
        hidden, inner, prefix = self.config.hidden_size, self.config.intermediate_size, f"{base}.feed_forward"
        previous_TD = _previous(builder, x_TD, shift_2D, inputs, layer, "last_of_channel_mixing")
        r_TD, k_TI = (
            _projected(builder, x_TD, previous_TD, prefix, name, width)
            for name, width in (("receptance", hidden), ("key", inner))
        )
        rectified_TI = builder.op("relu", k_TI)
        squared_TI = builder.op("mul", rectified_TI, rectified_TI)
        v_TD = linear(builder, squared_TI, f"{prefix}.value", hidden, inner, has_bias=False)
        out_TD: Value = builder.op("sigmoid_mul", r_TD, v_TD)
        return out_TD

    def _norm(self, builder: GraphBuilder, x: Value, name: str) -> Value:
        return layer_norm(builder, x, name, self.config.hidden_size, self.config.rms_norm_eps)


def _previous(builder: GraphBuilder, x_TD: Value, shift_2D: Value, inputs: StepInputs, layer: int, state: str) -> Value:
    """The row of the token before each token: a convolution whose weight of the token itself is zero."""
    tables = inputs.cu_seqlens_q, inputs.seqlens_k, inputs.state_slots
    last = builder.latest(inputs.caches[layer][state])
    previous_TD: Value
    previous_TD, _ = builder.op("causal_conv1d", x_TD, shift_2D, None, last, *tables)
    return previous_TD


def _projected(builder: GraphBuilder, x_TD: Value, previous_TD: Value, prefix: str, name: str, width: int) -> Value:
    """The projection of a mix of each token with the one before, both of this name."""
    _, hidden = x_TD.type.shape
    assert isinstance(hidden, int)
    mix = builder.parameter(f"{prefix}.time_mix_{name}", (1, 1, hidden))
    mixed_TD = builder.op("time_mix", x_TD, previous_TD, mix)
    return linear(builder, mixed_TD, f"{prefix}.{name}", width, hidden, has_bias=False)


class RwkvArchitecture:
    """`RwkvForCausalLM`: RWKV-4, 169M to 14B."""

    ignored_names = ("head.weight",)
    known_fields = _FIELDS

    def create(self, raw: Mapping[str, Any]) -> Rwkv:
        """Create the model of a config.json; ConfigError names a bad field."""
        fields = {name: value for name, value in raw.items() if value is not None}
        hidden = fields.get("hidden_size", 4096)
        own = {
            "num_attention_heads": 1,
            "rms_norm_eps": fields.get("layer_norm_epsilon", 1e-5),
            "max_position_embeddings": _MAX_LENGTH,
        }
        defaults = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": 32}
        config = read_decoder_config({**fields, **own}, defaults=defaults, has_rotary=False)
        return Rwkv(config, fields.get("attention_hidden_size", hidden))


RWKV = RwkvArchitecture()
