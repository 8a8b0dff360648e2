"""The inputs of every step: the ragged batch as graph values.

The T tokens of S sequences are concatenated. R of these rows need logits, E rows have embeddings instead of token ids,
and block tables have B columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.hal.dtype import DType
from aethermind.ops.dims import SymDim
from aethermind.ops.schema import CODE_DTYPES

__all__ = ["EmbeddingInputs", "StepInputs", "declare_step_inputs"]


@dataclass(frozen=True, slots=True)
class EmbeddingInputs:
    """Rows of the step with an embedding instead of a token id: values F[E, hidden_size], rows i32[E]."""

    values: Value
    rows: Value


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The graph values of a step.

    token_ids i32[T], positions i64[T], slot_mapping i64[T], cu_seqlens_q i32[S+1], seqlens_k i32[S], block_tables
    i32[S,B], logits_rows i32[R], and the KV cache of every layer, each [num_blocks, num_kv_heads, block_size,
    head_dim].

    A quantised cache has `k_scales` and `v_scales`, f32[num_blocks, num_kv_heads, block_size]. Only the graph for steps
    with embeddings has `embeddings`; `model.blocks.embedding` writes them to their rows.
    """

    token_ids: Value
    positions: Value
    slot_mapping: Value
    cu_seqlens_q: Value
    seqlens_k: Value
    block_tables: Value
    logits_rows: Value
    k_caches: tuple[Value, ...]
    v_caches: tuple[Value, ...]
    k_scales: tuple[Value, ...] = ()
    v_scales: tuple[Value, ...] = ()
    embeddings: EmbeddingInputs | None = None


def declare_step_inputs(
    builder: GraphBuilder,
    *,
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    num_blocks: int,
    block_size: int,
    kv_dtype: DType,
    hidden_size: int,
    has_embeddings: bool = False,
) -> StepInputs:
    """Declare the inputs and the KV state of a decoder's graph."""
    tokens, sequences, rows, width = SymDim("T"), SymDim("S"), SymDim("R"), SymDim("B")
    slots = (num_blocks, num_kv_heads, block_size)
    num_scaled = num_layers if kv_dtype in CODE_DTYPES else 0
    embeddings = None
    if has_embeddings:
        values = builder.input("inputs_embeds", builder.dtype, (SymDim("E"), hidden_size))
        embeddings = EmbeddingInputs(values, builder.input("inputs_embeds_rows", DType.INT32, (SymDim("E"),)))
    return StepInputs(
        builder.input("token_ids", DType.INT32, (tokens,)),
        builder.input("positions", DType.INT64, (tokens,)),
        builder.input("slot_mapping", DType.INT64, (tokens,)),
        builder.input("cu_seqlens_q", DType.INT32, (sequences + 1,)),
        builder.input("seqlens_k", DType.INT32, (sequences,)),
        builder.input("block_tables", DType.INT32, (sequences, width)),
        builder.input("logits_rows", DType.INT32, (rows,)),
        tuple(builder.state(f"k_cache.{layer}", kv_dtype, (*slots, head_dim)) for layer in range(num_layers)),
        tuple(builder.state(f"v_cache.{layer}", kv_dtype, (*slots, head_dim)) for layer in range(num_layers)),
        tuple(builder.state(f"k_scale.{layer}", DType.FLOAT32, slots) for layer in range(num_scaled)),
        tuple(builder.state(f"v_scale.{layer}", DType.FLOAT32, slots) for layer in range(num_scaled)),
        embeddings,
    )
