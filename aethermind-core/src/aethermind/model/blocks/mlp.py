"""Feed-forward networks. Shapes: T tokens, D hidden_size, I intermediate_size."""

from __future__ import annotations

from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.model.config import DecoderConfig

__all__ = ["swiglu_mlp"]


def swiglu_mlp(builder: GraphBuilder, x_TD: Value, config: DecoderConfig, prefix: str) -> Value:
    """down(silu(gate(x)) · up(x)) with the weights `{prefix}.gate_proj.weight`, `up_proj`, `down_proj` (Shazeer
    2020).
    """
    hidden, intermediate = config.hidden_size, config.intermediate_size
    gate_ID = builder.parameter(f"{prefix}.gate_proj.weight", (intermediate, hidden))
    up_ID = builder.parameter(f"{prefix}.up_proj.weight", (intermediate, hidden))
    down_DI = builder.parameter(f"{prefix}.down_proj.weight", (hidden, intermediate))
    with builder.scope(prefix):
        out_TD: Value = builder.op("mlp_swiglu", x_TD, gate_ID, up_ID, down_DI)
    return out_TD
