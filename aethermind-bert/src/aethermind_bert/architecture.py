"""BERT (Devlin et al. 2018, arXiv:1810.04805) as a graph: post-norm blocks with bidirectional attention.

Dims: T tokens, D hidden_size, V vocab_size, P positions, H heads, C head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aethermind.checkpoint import AdaptedTensors, StoredTensors, TensorSlice
from aethermind.errors import ConfigError
from aethermind.graph import GraphBuilder, Value
from aethermind.model import DecoderConfig, StepInputs, read_decoder_config
from aethermind.model.blocks import gelu_mlp, is_gelu_approximate, layer_norm, linear
from aethermind.model.known_fields import FieldTable, ignored, refused, used

__all__ = ["BERT"]

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
}
_KNOWN_FIELDS: FieldTable = {
    **used("is the epsilon of norms", "layer_norm_eps"),
    **ignored("matters in training only", "attention_probs_dropout_prob", "hidden_dropout_prob"),
    **ignored("every token is of the first type", "type_vocab_size"),
    **ignored("configures the pooler, which embeddings of texts do not use", "pooler_fc_size", "pooler_num_fc_layers"),
    **ignored(
        "configures the pooler, which embeddings of texts do not use", "pooler_num_attention_heads", "pooler_type"
    ),
    **ignored("configures the pooler, which embeddings of texts do not use", "pooler_size_per_head"),
    **ignored("is metadata of the training", "directionality"),
    **refused("relative positions are not computed; take another model", position_embedding_type="absolute"),
    **refused("BERT is computed as an encoder only; take another model", is_decoder=False),
}
_WORD_EMBEDDINGS, _POSITION_EMBEDDINGS = "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight"
_TYPE_EMBEDDINGS = "embeddings.token_type_embeddings.weight"


@dataclass(frozen=True, slots=True)
class Bert:
    """A BERT model; `is_gelu_approximate` says whether GELU is approximated by tanh."""

    config: DecoderConfig
    is_gelu_approximate: bool
    pooling: str = "mean"

    def encode(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        """Build the hidden states F[T, hidden_size] of one text."""
        size = self.config.hidden_size
        words_VD = builder.parameter(_WORD_EMBEDDINGS, (self.config.vocab_size, size))
        positions_PD = builder.parameter(_POSITION_EMBEDDINGS, (self.config.max_position_embeddings, size))
        word_TD = builder.op("embedding", inputs.token_ids, words_VD)
        x_TD = builder.op("add", word_TD, builder.op("position_embedding", inputs.positions, positions_PD))
        x_TD = self._norm(builder, x_TD, "embeddings.LayerNorm")
        for layer in range(self.config.num_hidden_layers):
            base = f"encoder.layer.{layer}"
            with builder.scope(base):
                attention_TD = builder.op("add", x_TD, self._attention(builder, x_TD, f"{base}.attention"))
                x_TD = self._norm(builder, attention_TD, f"{base}.attention.output.LayerNorm")
                mlp_TD = builder.op("add", x_TD, self._mlp(builder, x_TD, base))
                x_TD = self._norm(builder, mlp_TD, f"{base}.output.LayerNorm")
        return x_TD

    def adapt(self, stored: StoredTensors) -> StoredTensors:
        """Map checkpoint tensors: the first token type's embedding is folded into the positions', an optional prefix
        `bert.` is removed, and gamma and beta of old checkpoints are renamed.
        """
        slices = {}
        for stored_name in stored.names:
            name = stored_name.removeprefix("bert.")
            name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            type_embeddings = stored_name.removesuffix(_POSITION_EMBEDDINGS) + _TYPE_EMBEDDINGS
            slices[name] = TensorSlice(stored_name, added=type_embeddings if name == _POSITION_EMBEDDINGS else None)
        slices.pop(_TYPE_EMBEDDINGS, None)
        return AdaptedTensors(stored, slices)

    def _attention(self, builder: GraphBuilder, x_TD: Value, name: str) -> Value:
        heads, size = self.config.num_attention_heads, self.config.hidden_size
        q_THC, k_THC, v_THC = (
            builder.op("split_heads", linear(builder, x_TD, f"{name}.self.{projection}", size, size), num_heads=heads)
            for projection in ("query", "key", "value")
        )
        attended_THC = builder.op("attention", q_THC, k_THC, v_THC, scale=self.config.head_dim**-0.5, causal=False)
        return linear(builder, builder.op("merge_heads", attended_THC), f"{name}.output.dense", size, size)

    def _mlp(self, builder: GraphBuilder, x_TD: Value, name: str) -> Value:
        names = (f"{name}.intermediate.dense", f"{name}.output.dense")
        widths = (self.config.hidden_size, self.config.intermediate_size)
        return gelu_mlp(builder, x_TD, names, *widths, is_approximate=self.is_gelu_approximate)

    def _norm(self, builder: GraphBuilder, x_TD: Value, name: str) -> Value:
        return layer_norm(builder, x_TD, name, self.config.hidden_size, self.config.rms_norm_eps)


class BertArchitecture:
    """`BertModel`, and models with a head on top, which is ignored."""

    ignored_names = ("pooler.*", "cls.*", "classifier.*", "embeddings.position_ids")
    known_fields = _KNOWN_FIELDS

    def create(self, raw: Mapping[str, Any]) -> Bert:
        fields = {**_DEFAULTS, **{name: value for name, value in raw.items() if value is not None}}
        kind = fields.get("position_embedding_type", "absolute")
        if kind != "absolute":
            raise ConfigError(f"position_embedding_type {kind!r} in config.json is not supported, only 'absolute'.")
        if fields.get("is_decoder", False):
            raise ConfigError("is_decoder is true in config.json; this package computes BERT as an encoder only.")
        is_approximate = is_gelu_approximate("hidden_act", fields.pop("hidden_act", "gelu"))
        fields["is_causal"] = True  # `read_decoder_config` refuses other values; attention is not causal here
        names = {"rms_norm_eps": "layer_norm_eps"}
        return Bert(read_decoder_config(fields, defaults={}, has_rotary=False, names=names), is_approximate)


BERT = BertArchitecture()
