"""The first and the last thing a language model does: token ids to vectors, vectors to logits.

Shapes: T tokens, R rows of logits, D hidden_size, V vocab_size.
"""

from __future__ import annotations

from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.model.config import DecoderConfig
from aethermind.model.step_inputs import StepInputs

__all__ = ["embedding", "lm_head"]


def embedding(builder: GraphBuilder, inputs: StepInputs, config: DecoderConfig, weight: str) -> Value:
    """Look up the rows of the embedding table, except where the step brings embeddings of its own; [T, D]."""
    table_VD = builder.parameter(weight, (config.vocab_size, config.hidden_size))
    x_TD: Value = builder.op("embedding", inputs.token_ids, table_VD)
    if inputs.embeddings is not None:
        x_TD = builder.op("scatter_rows", x_TD, inputs.embeddings.values, inputs.embeddings.rows)
    return x_TD


def lm_head(builder: GraphBuilder, x_RD: Value, config: DecoderConfig, weight: str) -> Value:
    """Logits of the given rows, float32 [R, V]; the rows themselves are marked as the model's `hidden_states`."""
    builder.mark("hidden_states", x_RD)
    weight_VD = builder.parameter(weight, (config.vocab_size, config.hidden_size))
    logits_RV: Value = builder.op("lm_head", x_RD, weight_VD)
    return logits_RV
