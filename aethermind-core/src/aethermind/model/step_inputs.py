"""The inputs of every step of a model, a ragged batch, as values of a graph.

The T tokens of S sequences are concatenated. R of these rows need logits, E rows have embeddings instead of token ids,
and block tables have B columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aethermind.cache.layers import LayerCache, attention_of
from aethermind.cache.spec import KVCacheSpec
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.hal.dtype import DType
from aethermind.ops.dims import Shape, SymDim
from aethermind.ops.schema import CODE_DTYPES

__all__ = ["EmbeddingInputs", "GroupTables", "StepInputs", "declare_caches", "declare_step_inputs"]


@dataclass(frozen=True, slots=True)
class EmbeddingInputs:
    """Embeddings that replace those of token ids: `values`, F[E, hidden_size], for the rows `rows`, i32[E]."""

    values: Value
    rows: Value


@dataclass(frozen=True, slots=True)
class GroupTables:
    """Where the layers of one group have the step's keys and values: slot_mapping i64[T], block_tables i32[S,B].

    Layers whose blocks are freed at the same time are a group: those with full attention, and those of each window.
    """

    slot_mapping: Value
    block_tables: Value


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The graph values of a step.

    token_ids i32[T], positions i64[T], slot_mapping i64[T], cu_seqlens_q i32[S+1], seqlens_k i32[S], block_tables
    i32[S,B], logits_rows i32[R], and the tensors of each layer in the KV cache. `slot_mapping` and `block_tables` are
    those of all layers, or of group 0 of a model that declares layers with a window; see `tables_of`.

    `embeddings` is None except in the graph for steps with embeddings; `model.blocks.embedding` writes them to their
    rows. `hidden_states` is None except in the graph of an MTP module (see `model.mtp`).
    """

    token_ids: Value
    positions: Value
    slot_mapping: Value
    cu_seqlens_q: Value
    seqlens_k: Value
    block_tables: Value
    logits_rows: Value
    caches: tuple[Mapping[str, Value], ...]
    """By layer, the tensors of its cache: `k_cache` [num_blocks, num_kv_heads, block_size, key_dim] and `v_cache` […,
    value_dim], with `k_scale` and `v_scale`, f32[num_blocks, num_kv_heads, block_size], if they are quantised. A
    `Latent` layer has no `v_cache`. A layer that shares the cache of another layer has that layer's tensors. Layers of
    different groups use different blocks of the same tensors, so the operators that read or write a tensor take its
    newest version, `GraphBuilder.latest`. A recurrent layer has the tensors that it declares, f32[num_slots, …], such
    as `recurrent_state`; see `cache.recurrent_states`.
    """
    embeddings: EmbeddingInputs | None = None
    window_tables: tuple[GroupTables, ...] = ()
    """The tables of the groups after group 0, whose inputs are named `slot_mapping.1`, `block_tables.1`, …"""
    layer_groups: tuple[int, ...] = ()
    """The group of each layer; empty if all layers are in group 0."""
    state_slots: Value | None = None
    """i32[S], the row of each sequence in the state tensors of recurrent layers; None if there are no such layers.

    In the step that computes a sequence's first token its state counts as zero, because the row still has the state of
    an earlier sequence. In this step `seqlens_k[s]` equals the number of the sequence's tokens in the step. Sequences
    have different rows, except that padding (sequences without tokens) has row 0.
    """
    hidden_states: Value | None = None
    """F[T, hidden_size]: for each token, the hidden state from which the model computed logits for the token before."""
    needs_all_rows: bool = False
    """Whether an MTP module reads the last hidden states of all T tokens: the graph marks them as `all_hidden_states`,
    F[T, hidden_size].
    """

    def tables_of(self, layer: int) -> GroupTables:
        """Return the tables of a layer's group."""
        group = self.layer_groups[layer] if self.layer_groups else 0
        return self.window_tables[group - 1] if group else GroupTables(self.slot_mapping, self.block_tables)

    @property
    def k_caches(self) -> tuple[Value, ...]:
        """The key cache of each layer that has one."""
        return tuple(cache["k_cache"] for cache in self.caches if "k_cache" in cache)

    @property
    def v_caches(self) -> tuple[Value, ...]:
        """The value cache of each layer that has one."""
        return tuple(cache["v_cache"] for cache in self.caches if "v_cache" in cache)

    @property
    def k_scales(self) -> tuple[Value, ...]:
        """The scales of keys of each layer; none if keys are not quantised."""
        return tuple(cache["k_scale"] for cache in self.caches if "k_scale" in cache)

    @property
    def v_scales(self) -> tuple[Value, ...]:
        """The scales of values of each layer; none if values are not quantised."""
        return tuple(cache["v_scale"] for cache in self.caches if "v_scale" in cache)


def declare_step_inputs(
    builder: GraphBuilder,
    cache: KVCacheSpec,
    num_blocks: int,
    *,
    hidden_size: int,
    has_embeddings: bool = False,
    has_hidden_states: bool = False,
    needs_all_rows: bool = False,
) -> StepInputs:
    """Declare the inputs of a decoder's graph, and the tensors of its KV cache as states.

    The cache has `num_blocks` blocks and the state slots of `cache`. `has_hidden_states` is for an MTP module,
    `needs_all_rows` for the model for which an MTP module drafts tokens.
    """
    tokens, sequences, rows, table_width = SymDim("T"), SymDim("S"), SymDim("R"), SymDim("B")
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
        builder.input("block_tables", DType.INT32, (sequences, table_width)),
        builder.input("logits_rows", DType.INT32, (rows,)),
        declare_caches(builder, cache, num_blocks),
        embeddings,
        tuple(
            GroupTables(
                builder.input(f"slot_mapping.{group}", DType.INT64, (tokens,)),
                builder.input(f"block_tables.{group}", DType.INT32, (sequences, table_width)),
            )
            for group in range(1, len(cache.groups))
        ),
        tuple(
            0 if attention_of(layer_cache) is None else cache.group_and_position(layer)[0]
            for layer, layer_cache in enumerate(cache.layers)
        ),
        builder.input("state_slots", DType.INT32, (sequences,)) if cache.is_recurrent else None,
        builder.input("hidden_states", builder.dtype, (tokens, hidden_size)) if has_hidden_states else None,
        needs_all_rows,
    )


def declare_caches(builder: GraphBuilder, cache: KVCacheSpec, num_blocks: int) -> tuple[Mapping[str, Value], ...]:
    """Declare the tensors of a KV cache as states and return those of each layer by name, see `StepInputs.caches`."""
    dtype = DType.parse(cache.dtype_name)
    kv_tensors = [
        {
            name: builder.state(f"{name}.{layer}", tensor_dtype, shape)
            for name, tensor_dtype, shape in _kv_tensors(cache.layers[layer], dtype, num_blocks, cache.block_size)
        }
        for layer in cache.tensor_layers
    ]
    recurrent_states: list[dict[str, Value]] = [{} for _ in cache.layers]
    for full_name, shape in cache.state_shapes.items():
        name, _, layer = full_name.partition(".")
        recurrent_states[int(layer)][name] = builder.state(full_name, DType.FLOAT32, (cache.num_slots, *shape))
    return tuple(
        recurrent_states[layer]
        if attention_of(layer_cache) is None
        else kv_tensors[cache.group_and_position(layer)[1]] | recurrent_states[layer]
        for layer, layer_cache in enumerate(cache.layers)
    )


def _kv_tensors(
    layer_cache: LayerCache, dtype: DType, num_blocks: int, block_size: int
) -> list[tuple[str, DType, Shape]]:
    """Return name, dtype and shape of a layer's key and value tensors, followed by those of their scales."""
    shapes = {name: (num_blocks, heads, block_size, dim) for name, (heads, dim) in layer_cache.rows.items()}
    scales = {name.replace("_cache", "_scale"): shape[:-1] for name, shape in shapes.items() if dtype in CODE_DTYPES}
    return [
        *((name, dtype, shape) for name, shape in shapes.items()),
        *((name, DType.FLOAT32, shape) for name, shape in scales.items()),
    ]
