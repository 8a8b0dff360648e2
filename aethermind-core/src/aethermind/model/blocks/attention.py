"""Self-attention over the paged KV cache.

Shapes: T tokens, D hidden_size, H num_attention_heads, K num_key_value_heads, C head_dim.
"""

from __future__ import annotations

from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.model.blocks.cached_attention import attend, for_cache, layer_cache
from aethermind.model.config import DecoderConfig
from aethermind.model.step_inputs import StepInputs

__all__ = ["attention"]


def attention(
    builder: GraphBuilder,
    x_TD: Value,
    rope_table_TC: Value,
    inputs: StepInputs,
    config: DecoderConfig,
    layer: int,
    prefix: str,
    *,
    has_qkv_bias: bool,
    has_qk_norm: bool,
    has_output_bias: bool = False,
) -> Value:
    """Grouped-query attention with rotary positions (half-split pairs), writing this step's keys and values to the
    cache first.

    Weights: `{prefix}.q_proj.weight`, `k_proj`, `v_proj`, `o_proj`, biases and `q_norm`/`k_norm` where the model has
    them.
    """
    heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    widths = {"q_proj": heads * head_dim, "k_proj": kv_heads * head_dim, "v_proj": kv_heads * head_dim}
    weights = [
        builder.parameter(f"{prefix}.{name}.weight", (width, config.hidden_size)) for name, width in widths.items()
    ]
    biases = [
        builder.parameter(f"{prefix}.{name}.bias", (width,)) if has_qkv_bias else None for name, width in widths.items()
    ]
    norms = [
        builder.parameter(f"{prefix}.{name}.weight", (head_dim,)) if has_qk_norm else None
        for name in ("q_norm", "k_norm")
    ]
    o_DQ = builder.parameter(f"{prefix}.o_proj.weight", (config.hidden_size, heads * head_dim))
    o_D = builder.parameter(f"{prefix}.o_proj.bias", (config.hidden_size,)) if has_output_bias else None
    with builder.scope(prefix):
        q_THC, *cache = builder.op(
            for_cache("qkv_rope_cache_write", inputs),
            x_TD,
            *weights,
            *biases,
            *norms,
            rope_table_TC,
            inputs.slot_mapping,
            *layer_cache(inputs, layer),
            num_heads=heads,
            num_kv_heads=kv_heads,
            eps=config.rms_norm_eps,
        )
        window = config.sliding_windows[layer]
        mixed_THC = attend(builder, q_THC, cache, inputs, scale=head_dim**-0.5, window=window)
        out_TD: Value = builder.op("linear", builder.op("merge_heads", mixed_THC), o_DQ, o_D)
    return out_TD
