"""The graph that one engine step runs: the model, then the sampler.

The plain graph ends in sampled tokens. The adjusted one also holds back tokens, applies penalties and reports log
probabilities; it is used for the steps in which some request asks for that, so that the others do not pay. Both exist
again with embeddings as an input, for the steps that compute some of those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aethermind.errors import ConfigError
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.hal.dtype import DType
from aethermind.model.architecture import CausalLM
from aethermind.model.step_inputs import declare_step_inputs
from aethermind.ops.dims import SymDim
from aethermind.ops.operator import OperatorRegistry
from aethermind.sampling.params import MAX_LOGPROBS

if TYPE_CHECKING:
    from aethermind.cache.spec import KVCacheSpec

__all__ = ["ROW_INPUTS", "build_step_graph"]

ROW_INPUTS = ("temperature", "top_k", "top_p", "min_p", "uniform")


def build_step_graph(
    model: CausalLM,
    operators: OperatorRegistry,
    cache: KVCacheSpec,
    num_blocks: int,
    max_model_len: int,
    dtype: DType,
    *,
    is_adjusted: bool,
    has_embeddings: bool = False,
) -> GraphBuilder:
    """Write the graph of a step. Outputs: token_ids i32[R], logits f32[R, V]; adjusted also logprob, rank, top_ids,
    top_logprobs. ConfigError when the model has no place for `has_embeddings`.
    """
    builder = GraphBuilder("adjusted_step" if is_adjusted else "step", operators, dtype)
    inputs = declare_step_inputs(
        builder,
        num_layers=cache.num_layers,
        num_kv_heads=cache.num_key_value_heads,
        head_dim=cache.head_dim,
        num_blocks=num_blocks,
        block_size=cache.block_size,
        kv_dtype=DType.parse(cache.dtype_name),
        hidden_size=model.config.hidden_size,
        has_embeddings=has_embeddings,
    )
    logits = model.build(builder, inputs, max_model_len)
    if inputs.embeddings is not None and not builder.is_used(inputs.embeddings.values):
        raise ConfigError("This model takes token ids only: its graph has no place for embeddings.")
    rows = SymDim("R")
    row_inputs = [
        builder.input(name, DType.INT32 if name == "top_k" else DType.FLOAT32, (rows,)) for name in ROW_INPUTS
    ]
    with builder.scope("sampler"):
        adjusted = _adjust(builder, logits) if is_adjusted else logits
        token_ids = builder.op("sample_tokens", adjusted, *row_inputs)
        builder.output("token_ids", token_ids)
        builder.output("logits", logits)
        if is_adjusted:
            names = ("logprob", "rank", "top_ids", "top_logprobs")
            values = builder.op("token_logprobs", logits, token_ids, k=MAX_LOGPROBS)
            for name, value in zip(names, values, strict=True):
                builder.output(name, value)
    return builder


def _adjust(builder: GraphBuilder, logits: Value) -> Value:
    rows = SymDim("R")
    held_back = builder.input("held_back_tokens", DType.INT32, (SymDim("Y"),))
    cu_held_back = builder.input("cu_held_back", DType.INT32, (rows + 1,))
    seen = builder.input("seen_tokens", DType.INT32, (SymDim("X"),))
    cu_seen = builder.input("cu_seen", DType.INT32, (rows + 1,))
    penalty = builder.input("penalty", DType.FLOAT32, (rows,))
    penalised = builder.op("repetition_penalty", logits, seen, cu_seen, penalty)
    allowed: Value = builder.op("suppress_tokens", penalised, held_back, cu_held_back)
    return allowed
