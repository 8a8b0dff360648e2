"""Attention over the paged KV cache, for queries, keys and values that are made already.

Shapes: T tokens, H num_attention_heads, K num_key_value_heads, C head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence

from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.model.step_inputs import StepInputs

__all__ = ["attend", "cached_attention", "for_cache", "layer_cache"]


def cached_attention(
    builder: GraphBuilder,
    q_THC: Value,
    k_TKC: Value,
    v_TKC: Value,
    inputs: StepInputs,
    layer: int,
    *,
    scale: float,
    window: int = 0,
) -> Value:
    """Write this step's keys and values to the layer's cache, then attend to what is in it: [T, H, C].

    Scores are multiplied by `scale`; `window` is how many tokens back a query sees, 0 for all. Positions have to be in
    the keys and queries, or in the embeddings.
    """
    write = for_cache("kv_cache_write", inputs)
    cache = builder.op(write, k_TKC, v_TKC, inputs.slot_mapping, *layer_cache(inputs, layer))
    return attend(builder, q_THC, cache, inputs, scale=scale, window=window)


def attend(
    builder: GraphBuilder, q_THC: Value, cache: Sequence[Value], inputs: StepInputs, *, scale: float, window: int
) -> Value:
    """Attend to a layer's cache as this step's write has left it: [T, H, C]."""
    k_cache, v_cache, *scales = cache
    tables = (inputs.cu_seqlens_q, inputs.seqlens_k, inputs.block_tables)
    name = for_cache("paged_attention", inputs)
    mixed_THC: Value = builder.op(name, q_THC, k_cache, v_cache, *tables, *scales, scale=scale, window=window)
    return mixed_THC


def for_cache(operator: str, inputs: StepInputs) -> str:
    """The operator's name for this step's cache: one of codes has operators of its own."""
    return f"{operator}_quantized" if inputs.k_scales else operator


def layer_cache(inputs: StepInputs, layer: int) -> tuple[Value, ...]:
    """A layer's keys and values, and their scales where they are codes."""
    caches = (inputs.k_caches[layer], inputs.v_caches[layer])
    return (*caches, inputs.k_scales[layer], inputs.v_scales[layer]) if inputs.k_scales else caches
