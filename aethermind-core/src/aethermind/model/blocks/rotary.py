"""Rotary positions, the same for every layer of a step. Shapes: T tokens, C head_dim."""

from __future__ import annotations

from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.model.config import DecoderConfig
from aethermind.model.rope import FREQUENCIES, inverse_frequencies
from aethermind.model.step_inputs import StepInputs

__all__ = ["rope_table"]


def rope_table(builder: GraphBuilder, inputs: StepInputs, config: DecoderConfig, max_model_len: int) -> Value:
    """Cosines and sines of the step's positions, float32 [T, C], for the operator `rope`; scaled as the model's
    configuration says for contexts of up to `max_model_len` tokens.
    """
    inv_freq, scale = inverse_frequencies(config.rope, max_model_len)
    frequencies = builder.constant(FREQUENCIES, inv_freq)
    table_TC: Value = builder.op("rope_table", inputs.positions, frequencies, scale=scale)
    return table_TC
