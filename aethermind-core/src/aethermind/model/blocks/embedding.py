"""The first and the last thing a language model does: token ids to vectors, vectors to logits.

Shapes: T tokens, R rows of logits, D hidden_size, V vocab_size.
"""

from __future__ import annotations

from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.model.config import DecoderConfig

__all__ = ["embedding", "lm_head"]


def embedding(builder: GraphBuilder, token_ids_T: Value, config: DecoderConfig, weight: str) -> Value:
    """Look up the rows of the embedding table; [T, D]."""
    table_VD = builder.parameter(weight, (config.vocab_size, config.hidden_size))
    x_TD: Value = builder.op("embedding", token_ids_T, table_VD)
    return x_TD


def lm_head(builder: GraphBuilder, x_RD: Value, config: DecoderConfig, weight: str) -> Value:
    """Logits of the given rows, float32 [R, V]."""
    weight_VD = builder.parameter(weight, (config.vocab_size, config.hidden_size))
    logits_RV: Value = builder.op("lm_head", x_RD, weight_VD)
    return logits_RV
