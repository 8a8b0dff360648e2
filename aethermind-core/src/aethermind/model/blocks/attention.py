"""Self-attention over the paged KV cache.

Shapes: T tokens, D hidden_size, H num_attention_heads, K num_key_value_heads, C head_dim, Q = H · C, R rotated elements
of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.hal.dtype import DType
from aethermind.model.blocks.layers import linear
from aethermind.model.config import DecoderConfig, frequencies_name
from aethermind.model.rope import RopeConfig, inverse_frequencies
from aethermind.model.step_inputs import StepInputs

__all__ = ["attention", "cached_attention", "rope_table", "rope_tables"]


def attention(
    builder: GraphBuilder,
    x_TD: Value,
    rope_table_TR: Value | None,
    inputs: StepInputs,
    config: DecoderConfig,
    layer: int,
    prefix: str,
    *,
    has_qkv_bias: bool,
    has_qk_norm: bool,
    has_output_bias: bool = False,
    has_output_gate: bool = False,
    is_qk_norm_whole: bool = False,
    qkv_limit: float = 0.0,
    scale: float | None = None,
    softcap: float = 0.0,
    norm_offset: float = 0.0,
    has_sinks: bool = False,
    slopes: Value | None = None,
) -> Value:
    """Write grouped-query attention with rotary positions (half-split pairs), [T, D].

    The step's keys and values are written to the cache before. Weights are `{prefix}.q_proj.weight`, `k_proj`,
    `v_proj`, `o_proj`; biases and `q_norm`/`k_norm` if the model has them.

    - Norms of queries and keys: of each head (Qwen3), or of all heads of a token at once if `is_qk_norm_whole` (OLMoE).
      `norm_offset` is added to the weights of norms of each head.
    - `qkv_limit` above 0 clamps queries, keys and values after the norms and before the rotation (MPT, OLMoE).
    - `rope_table_TR` rotates the first R elements of each head; if it is None, keys and queries have no positions.
    - Scores are multiplied by `scale`, by default 1 / sqrt(C), then soft-capped by `softcap` if it is positive (Gemma
      2). `slopes`, float32 [H], make scores decrease with the distance of a key (ALiBi). `has_sinks` adds
      `{prefix}.sinks`, float32 [H], scores in the softmax's denominator only (gpt-oss).
    - `has_output_gate`: the output of attention is multiplied by the sigmoid of `{prefix}.gate_proj` of x (Qwen3-Next).
    """
    heads, head_dim = config.num_attention_heads, config.head_dim
    parameters = _qkv_parameters(
        builder, config, prefix, has_bias=has_qkv_bias, has_norm=has_qk_norm, is_norm_whole=is_qk_norm_whole
    )
    o_DQ = builder.parameter(f"{prefix}.o_proj.weight", (config.hidden_size, heads * head_dim))
    o_D = builder.parameter(f"{prefix}.o_proj.bias", (config.hidden_size,)) if has_output_bias else None
    sinks_H = builder.parameter(f"{prefix}.sinks", (heads,), DType.FLOAT32) if has_sinks else None
    window = config.sliding_windows[layer]
    scale = head_dim**-0.5 if scale is None else scale
    with builder.scope(prefix):
        if rope_table_TR is None or (has_qk_norm and is_qk_norm_whole) or qkv_limit:
            assert norm_offset == 0, "only norms before rotations have an offset"
            operands = (x_TD, *parameters, rope_table_TR)
            q_THC, *cache = _separate_qkv(
                builder, *operands, inputs, config, layer, is_norm_whole=is_qk_norm_whole, limit=qkv_limit
            )
        else:
            q_THC, *cache = _fused_qkv(builder, x_TD, *parameters, rope_table_TR, inputs, config, layer, norm_offset)
        attended_THC = attend(
            builder,
            q_THC,
            cache,
            inputs,
            layer,
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=sinks_H,
            slopes=slopes,
        )
        attended_TQ = builder.op("merge_heads", attended_THC)
        if has_output_gate:
            gate = f"{prefix}.gate_proj"
            gate_TQ = linear(builder, x_TD, gate, heads * head_dim, config.hidden_size, has_bias=has_qkv_bias)
            attended_TQ = builder.op("sigmoid_mul", gate_TQ, attended_TQ)
        out_TD: Value = builder.op("linear", attended_TQ, o_DQ, o_D)
    return out_TD


def _qkv_parameters(
    builder: GraphBuilder, config: DecoderConfig, prefix: str, *, has_bias: bool, has_norm: bool, is_norm_whole: bool
) -> tuple[list[Value], list[Value | None], list[Value | None]]:
    """Declare weights and biases of the projections to queries, keys and values, and norms of queries and keys."""
    head_dim, kv_width = config.head_dim, config.num_key_value_heads * config.head_dim
    widths = {"q": config.num_attention_heads * head_dim, "k": kv_width, "v": kv_width}
    weights = [
        builder.parameter(f"{prefix}.{name}_proj.weight", (width, config.hidden_size)) for name, width in widths.items()
    ]
    biases = [
        builder.parameter(f"{prefix}.{name}_proj.bias", (width,)) if has_bias else None
        for name, width in widths.items()
    ]
    norms = [
        builder.parameter(f"{prefix}.{name}_norm.weight", (widths[name] if is_norm_whole else head_dim,))
        if has_norm
        else None
        for name in "qk"
    ]
    return weights, biases, norms


def _fused_qkv(
    builder: GraphBuilder,
    x_TD: Value,
    weights: Sequence[Value],
    biases: Sequence[Value | None],
    norms: Sequence[Value | None],
    rope_table_TR: Value,
    inputs: StepInputs,
    config: DecoderConfig,
    layer: int,
    norm_offset: float,
) -> tuple[Value, ...]:
    """Return rotated queries [T, H, C] and the layer's cache after the write of keys and values, by one operator."""
    outputs: tuple[Value, ...] = builder.op(
        for_cache("qkv_rope_cache_write", inputs),
        x_TD,
        *weights,
        *biases,
        *norms,
        rope_table_TR,
        inputs.tables_of(layer).slot_mapping,
        *map(builder.latest, layer_cache(inputs, layer)),
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        eps=config.rms_norm_eps,
        weight_offset=norm_offset,
    )
    return outputs


def _separate_qkv(
    builder: GraphBuilder,
    x_TD: Value,
    weights: Sequence[Value],
    biases: Sequence[Value | None],
    norms: Sequence[Value | None],
    rope_table_TR: Value | None,
    inputs: StepInputs,
    config: DecoderConfig,
    layer: int,
    *,
    is_norm_whole: bool,
    limit: float,
) -> tuple[Value, ...]:
    """Return queries [T, H, C] and the cache after the write, as `_fused_qkv`, by smaller operators.

    For models that the fused operator cannot compute: norms over all heads, clamped projections, no positions.
    """
    counts = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
    heads = []
    for weight, bias, norm, count in zip(weights, biases, (*norms, None), counts, strict=True):
        rows = builder.op("linear", x_TD, weight, bias)
        if norm is not None and is_norm_whole:
            rows = builder.op("rms_norm", rows, norm, eps=config.rms_norm_eps)
        rows = builder.op("split_heads", rows, num_heads=count)
        if norm is not None and not is_norm_whole:
            rows = builder.op("rms_norm", rows, norm, eps=config.rms_norm_eps)
        heads.append(builder.op("clamp", rows, limit=limit) if limit else rows)
    q_THC, k_TKC, v_TKC = heads
    if rope_table_TR is not None:
        q_THC, k_TKC = (builder.op("rope", rows, rope_table_TR) for rows in (q_THC, k_TKC))
    cache = map(builder.latest, layer_cache(inputs, layer))
    slots = inputs.tables_of(layer).slot_mapping
    return (q_THC, *builder.op(for_cache("kv_cache_write", inputs), k_TKC, v_TKC, slots, *cache))


def cached_attention(
    builder: GraphBuilder,
    q_THC: Value,
    k_TKC: Value | None,
    v_TKC: Value | None,
    inputs: StepInputs,
    layer: int,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Value | None = None,
    slopes: Value | None = None,
) -> Value:
    """Write the step's keys and values to the layer's cache, then attend to the cache: [T, H, C].

    A layer that shares the cache of another layer has no keys and values (None) and only attends. Scores are multiplied
    by `scale`; a query attends to the last `window` tokens, 0 for all. The caller encodes positions: in keys and
    queries, in the embeddings, or by `slopes` f32[H] (ALiBi). The operator `paged_attention` describes `softcap`,
    `sinks` f32[H] and `slopes`.
    """
    cache: Sequence[Value] = [builder.latest(tensor) for tensor in layer_cache(inputs, layer)]
    if k_TKC is not None:
        slots = inputs.tables_of(layer).slot_mapping
        cache = builder.op(for_cache("kv_cache_write", inputs), k_TKC, v_TKC, slots, *cache)
    return attend(
        builder, q_THC, cache, inputs, layer, scale=scale, window=window, softcap=softcap, sinks=sinks, slopes=slopes
    )


def attend(
    builder: GraphBuilder,
    q_THC: Value,
    cache: Sequence[Value],
    inputs: StepInputs,
    layer: int = 0,
    *,
    scale: float,
    window: int,
    softcap: float = 0.0,
    sinks: Value | None = None,
    slopes: Value | None = None,
) -> Value:
    """Attend to `cache`, a layer's cache after this step's keys and values were written: [T, H, C]."""
    k_cache, v_cache, *scales = cache
    tables = (inputs.cu_seqlens_q, inputs.seqlens_k, inputs.tables_of(layer).block_tables)
    name = for_cache("paged_attention", inputs)
    operands = (q_THC, k_cache, v_cache, *tables, *scales, sinks, slopes)
    attended_THC: Value = builder.op(name, *operands, scale=scale, window=window, softcap=softcap)
    return attended_THC


def for_cache(operator: str, inputs: StepInputs) -> str:
    """Return an operator's name for this step's cache: with the suffix `_quantized` if the cache is quantised."""
    return f"{operator}_quantized" if inputs.k_scales else operator


def layer_cache(inputs: StepInputs, layer: int) -> tuple[Value, ...]:
    """Return a layer's key and value cache, and their scales if they are quantised."""
    return tuple(tensor for name, tensor in inputs.caches[layer].items() if name.endswith(("_cache", "_scale")))


def rope_table(builder: GraphBuilder, inputs: StepInputs, config: DecoderConfig, max_model_len: int) -> Value:
    """Write the cosines and sines of the step's positions, float32 [T, R], with which all layers rotate.

    Frequencies are scaled for contexts of up to `max_model_len` tokens, if the model's configuration says so.
    """
    return _rope_table(builder, inputs, config, config.rope, max_model_len)


def rope_tables(
    builder: GraphBuilder, inputs: StepInputs, config: DecoderConfig, max_model_len: int
) -> tuple[Value | None, ...]:
    """Write the `rope_table` of each layer, None for layers without positions; equal tables are written once."""
    ropes = [config.rope_of(layer) for layer in range(config.num_hidden_layers)]
    tables = {
        rope: _rope_table(builder, inputs, config, rope, max_model_len)
        for rope in dict.fromkeys(ropes)
        if rope is not None
    }
    return tuple(None if rope is None else tables[rope] for rope in ropes)


def _rope_table(
    builder: GraphBuilder, inputs: StepInputs, config: DecoderConfig, rope: RopeConfig, max_model_len: int
) -> Value:
    inv_freq, scale = inverse_frequencies(rope, max_model_len)
    frequencies = builder.constant(frequencies_name(config, rope), inv_freq)
    table_TR: Value = builder.op("rope_table", inputs.positions, frequencies, scale=scale)
    return table_TR
