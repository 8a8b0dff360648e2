"""A stack of pre-norm decoder layers, from token ids to logits. Shapes: T tokens, R rows of logits, D hidden_size."""

from __future__ import annotations

from collections.abc import Callable

from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.model.blocks.attention import attention, rope_table
from aethermind.model.blocks.layers import embedding, lm_head, swiglu_mlp
from aethermind.model.config import DecoderConfig
from aethermind.model.step_inputs import StepInputs

__all__ = ["FeedForward", "decoder"]

FeedForward = Callable[[GraphBuilder, Value, int], Value]
"""Writes the feed-forward network of a layer: `mlp(builder, x, layer)` returns its output for x, both F[T, D]."""


def decoder(
    builder: GraphBuilder,
    inputs: StepInputs,
    config: DecoderConfig,
    max_model_len: int,
    *,
    has_qkv_bias: bool,
    has_qk_norm: bool,
    has_output_bias: bool = False,
    is_qk_norm_whole: bool = False,
    mlp: FeedForward | None = None,
    prefix: str = "model",
) -> Value:
    """Write a decoder with Hugging Face's weight names and return its logits, float32 [R, vocab_size].

    `mlp` writes the feed-forward networks; without it they are `swiglu_mlp` with the weights `{prefix}.layers.0.mlp.…`.
    `blocks.attention` describes the flags.

    The residual add of one block and the norm of the next are one operator, so `x` and the running `residual` are
    passed together.
    """
    rope_table_TC = rope_table(builder, inputs, config, max_model_len)
    embedding_name = f"{prefix}.embed_tokens.weight"
    residual_TD = embedding(builder, inputs, config, embedding_name)
    x_TD = _norm(builder, residual_TD, config, f"{prefix}.layers.0.input_layernorm")
    for layer in range(config.num_hidden_layers):
        base = f"{prefix}.layers.{layer}"
        x_TD = attention(
            builder,
            x_TD,
            rope_table_TC,
            inputs,
            config,
            layer,
            f"{base}.self_attn",
            has_qkv_bias=has_qkv_bias,
            has_qk_norm=has_qk_norm,
            has_output_bias=has_output_bias,
            is_qk_norm_whole=is_qk_norm_whole,
        )
        is_last = layer == config.num_hidden_layers - 1
        if is_last:  # no operator after the last attention mixes tokens, so only rows that need logits are computed
            x_TD, residual_TD = (builder.op("gather_rows", value, inputs.logits_rows) for value in (x_TD, residual_TD))
        x_TD, residual_TD = _add_norm(builder, x_TD, residual_TD, config, f"{base}.post_attention_layernorm")
        x_TD = swiglu_mlp(builder, x_TD, config, f"{base}.mlp") if mlp is None else mlp(builder, x_TD, layer)
        next_norm = f"{prefix}.norm" if is_last else f"{prefix}.layers.{layer + 1}.input_layernorm"
        x_TD, residual_TD = _add_norm(builder, x_TD, residual_TD, config, next_norm)
    head_name = embedding_name if config.tie_word_embeddings else "lm_head.weight"
    return lm_head(builder, x_TD, config, head_name)


def _norm(builder: GraphBuilder, x_TD: Value, config: DecoderConfig, prefix: str) -> Value:
    weight_D = builder.parameter(f"{prefix}.weight", (config.hidden_size,))
    with builder.scope(prefix):
        out_TD: Value = builder.op("rms_norm", x_TD, weight_D, eps=config.rms_norm_eps)
    return out_TD


def _add_norm(
    builder: GraphBuilder, x_TD: Value, residual_TD: Value, config: DecoderConfig, prefix: str
) -> tuple[Value, Value]:
    weight_D = builder.parameter(f"{prefix}.weight", (config.hidden_size,))
    with builder.scope(prefix):
        out_TD, total_TD = builder.op("add_rms_norm", x_TD, residual_TD, weight_D, eps=config.rms_norm_eps)
    return out_TD, total_TD
