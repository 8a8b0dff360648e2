"""Attention over the paged KV cache, for queries, keys and values that are made already.

Shapes: T tokens, H num_attention_heads, K num_key_value_heads, C head_dim.
"""

from __future__ import annotations

from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.model.step_inputs import StepInputs

__all__ = ["cached_attention"]


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
    # A cache of codes has scales beside it, and operators of its own.
    scales = (inputs.k_scales[layer], inputs.v_scales[layer]) if inputs.k_scales else ()
    suffix = "_quantized" if scales else ""
    caches = (inputs.k_caches[layer], inputs.v_caches[layer])
    k_cache, v_cache, *scales_out = builder.op(
        f"kv_cache_write{suffix}", k_TKC, v_TKC, inputs.slot_mapping, *caches, *scales
    )
    mixed_THC: Value = builder.op(
        f"paged_attention{suffix}",
        q_THC,
        k_cache,
        v_cache,
        inputs.cu_seqlens_q,
        inputs.seqlens_k,
        inputs.block_tables,
        *scales_out,
        scale=scale,
        window=window,
    )
    return mixed_THC
