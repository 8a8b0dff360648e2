"""A decoder from token ids to logits, and the options by which the decoders of families differ from Llama's.

Shapes: T tokens, R rows of logits, D hidden_size, H num_attention_heads, V vocab_size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aethermind.cache.layers import LayerCache
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.model.architecture import windowed_layout
from aethermind.model.blocks.attention import attention, rope_tables
from aethermind.model.blocks.layers import embedding, layer_norm, linear, lm_head, scaled, swiglu_mlp
from aethermind.model.config import DecoderConfig
from aethermind.model.step_inputs import StepInputs

__all__ = ["Attention", "DecoderVariant", "FeedForward", "VariantModel", "decoder", "variant_decoder"]

FeedForward = Callable[[GraphBuilder, Value, int], Value]
"""Writes the feed-forward network of a layer: `mlp(builder, x, layer)` returns its output for x, both F[T, D].

Models are compared by value. Therefore the functions in a `DecoderVariant` should be functions of a module or frozen
dataclasses, not closures.
"""

Attention = Callable[[GraphBuilder, Value, Value | None, StepInputs, int], Value]
"""Writes the token mixer of a layer, which is attention or, for instance, a recurrence.

`attention(builder, x, rope_table, inputs, layer)` returns its output for x, both F[T, D]. Like a `FeedForward`, it is
compared by value.
"""


@dataclass(frozen=True, slots=True)
class DecoderVariant:
    """The options by which a family's layers differ from Llama's, which are the defaults.

    A block is the attention or the feed-forward network of a layer. Names of norms are those in a layer, without the
    prefix of the layer.

    Attributes:
        before_attention, before_mlp: the names of the norms of a block's input; None for no norm (OLMo 2).
        after_attention, after_mlp: the names of the norms of a block's output; None for no norm.
        has_layer_norm: whether norms are LayerNorms instead of RMSNorms, with `rms_norm_eps` as their epsilon.
        has_norm_bias: whether LayerNorms have biases.
        is_parallel: whether attention and the feed-forward network read the same normed input, and both outputs are
            added to the residual (GPT-J, Cohere).
        parallel_norm: the name of the norm of the feed-forward network's input, if both blocks read the residual in
            parallel, with a norm each (GPT-NeoX).
        embedding_norm: the name of the norm of embeddings (BLOOM); None for no norm.
        has_qkv_bias, has_output_bias, has_qk_norm, is_qk_norm_whole, qkv_limit, has_sinks: see `blocks.attention`.
        slopes: the slopes of ALiBi, one for each head; None for models without ALiBi.
        has_logits_bias: whether the LM head has a bias (Phi-2).
        norm_offset: a number that is added to the weights of RMSNorms, those of queries and keys included.
        attention_scale: the factor of attention scores; None for 1 / sqrt(head_dim).
        attention_softcap, logits_softcap: soft caps of attention scores and of logits; 0 for none.
        token_factor: the factor of the embeddings of token ids; embeddings in the inputs are not multiplied.
        embedding_factor, residual_factor, logits_factor: the factors of all embeddings, of the output of every block,
            and of logits.
        mlp: writes the feed-forward networks; None for `swiglu_mlp`.
        attention: writes the attention of layers; None for `blocks.attention` with the options above.
    """

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    has_layer_norm: bool = False
    has_norm_bias: bool = False
    is_parallel: bool = False
    parallel_norm: str | None = None
    embedding_norm: str | None = None
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_qk_norm: bool = False
    is_qk_norm_whole: bool = False
    qkv_limit: float = 0.0
    has_sinks: bool = False
    slopes: tuple[float, ...] | None = None
    has_logits_bias: bool = False
    norm_offset: float = 0.0
    attention_scale: float | None = None
    attention_softcap: float = 0.0
    logits_softcap: float = 0.0
    token_factor: float = 1.0
    embedding_factor: float = 1.0
    residual_factor: float = 1.0
    logits_factor: float = 1.0
    mlp: FeedForward | None = None
    attention: Attention | None = None


def variant_decoder(
    builder: GraphBuilder,
    inputs: StepInputs,
    config: DecoderConfig,
    max_model_len: int,
    variant: DecoderVariant,
    prefix: str = "model",
) -> Value:
    """Write a decoder with Hugging Face's weight names and return its logits, float32 [R, vocab_size].

    Layers have the rotary embeddings and windows of the configuration. The final norm is `{prefix}.norm`. The residual
    addition after one block and the norm of the next one are one operator, which returns `x` and the sum `residual`.
    With `inputs.hidden_states` the decoder is that of an MTP module: the norms and the projection of `model.mtp` come
    before its layer.
    """
    tables = rope_tables(builder, inputs, config, max_model_len)
    slopes_H = None if variant.slopes is None else _slopes(builder, variant.slopes)
    embedding_name = f"{prefix}.embed_tokens.weight"
    norms = _Norms(builder, config, variant)
    embedded_TD = embedding(builder, inputs, config, embedding_name, factor=variant.token_factor)
    residual_TD = scaled(builder, embedded_TD, variant.embedding_factor)
    residual_TD = norms.norm(residual_TD, _full_name(prefix, variant.embedding_norm))
    if inputs.hidden_states is not None:
        residual_TD = _mtp_input(builder, config, norms, residual_TD, inputs.hidden_states)
    x_TD = norms.norm(residual_TD, _full_name(f"{prefix}.layers.0", variant.before_attention))
    for layer in range(config.num_hidden_layers):
        base = f"{prefix}.layers.{layer}"
        attention_TD = _attention(builder, x_TD, tables[layer], slopes_H, inputs, config, layer, base, variant)
        is_last = layer == config.num_hidden_layers - 1
        if is_last and not inputs.needs_all_rows:  # after the last attention only rows that need logits are computed
            attention_TD, residual_TD = (
                builder.op("gather_rows", value, inputs.logits_rows) for value in (attention_TD, residual_TD)
            )
            if variant.is_parallel and variant.parallel_norm is None:
                x_TD = builder.op("gather_rows", x_TD, inputs.logits_rows)
        attention_TD = norms.norm(attention_TD, _full_name(base, variant.after_attention))
        if variant.is_parallel:
            if variant.parallel_norm is not None:
                x_TD = norms.norm(residual_TD, _full_name(base, variant.parallel_norm))
            out_TD = builder.op("add", attention_TD, _mlp(builder, x_TD, config, layer, base, variant))
        else:
            norm_name = _full_name(base, variant.before_mlp)
            x_TD, residual_TD = norms.add_and_norm(attention_TD, residual_TD, norm_name)
            out_TD = norms.norm(_mlp(builder, x_TD, config, layer, base, variant), _full_name(base, variant.after_mlp))
        next_base = f"{prefix}.layers.{layer + 1}"
        norm_name = f"{prefix}.norm" if is_last else _full_name(next_base, variant.before_attention)
        x_TD, residual_TD = norms.add_and_norm(out_TD, residual_TD, norm_name)
    if inputs.needs_all_rows:
        builder.mark("all_hidden_states", x_TD)
        x_TD = builder.op("gather_rows", x_TD, inputs.logits_rows)
    head_name = embedding_name if config.tie_word_embeddings else "lm_head.weight"
    bias_name = "lm_head.bias" if variant.has_logits_bias else None
    logits_RV = scaled(builder, lm_head(builder, x_TD, config, head_name, bias_name), variant.logits_factor)
    return builder.op("softcap", logits_RV, cap=variant.logits_softcap) if variant.logits_softcap else logits_RV


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
    """Write a pre-norm decoder, such as Llama's, and return its logits, float32 [R, vocab_size].

    `mlp` writes the feed-forward networks; if it is None, they are `swiglu_mlp` with the weights
    `{prefix}.layers.0.mlp.…`. `blocks.attention` describes the other options.
    """
    variant = DecoderVariant(
        has_qkv_bias=has_qkv_bias,
        has_qk_norm=has_qk_norm,
        has_output_bias=has_output_bias,
        is_qk_norm_whole=is_qk_norm_whole,
        mlp=mlp,
    )
    return variant_decoder(builder, inputs, config, max_model_len, variant, prefix)


@dataclass(frozen=True, slots=True)
class VariantModel:
    """A model that is a `variant_decoder` of one configuration; implements `CausalLM`."""

    config: DecoderConfig
    variant: DecoderVariant = DecoderVariant()

    def build(self, builder: GraphBuilder, inputs: StepInputs, max_model_len: int) -> Value:
        """Build the logits, float32 [R, vocab_size]."""
        return variant_decoder(builder, inputs, self.config, max_model_len, self.variant)

    def cache_layout(self) -> tuple[LayerCache, ...]:
        """Return what layers cache: keys and values of all tokens, or of those in a layer's window."""
        return windowed_layout(self.config)


def _mtp_input(
    builder: GraphBuilder, config: DecoderConfig, norms: _Norms, embedded_TD: Value, hidden_TD: Value
) -> Value:
    """Write the input of an MTP module's layer (`model.mtp`), a projection of embeddings and hidden states: [T, D]."""
    both_TE = builder.op("concat_last", norms.norm(embedded_TD, "mtp.enorm"), norms.norm(hidden_TD, "mtp.hnorm"))
    width = config.hidden_size
    return linear(builder, both_TE, "mtp.eh_proj", width, 2 * width, has_bias=False)


def _slopes(builder: GraphBuilder, slopes: tuple[float, ...]) -> Value:
    import numpy as np

    return builder.constant("alibi.slopes", np.array(slopes, np.float32))


def _full_name(base: str, norm: str | None) -> str | None:
    return None if norm is None else f"{base}.{norm}"


def _attention(
    builder: GraphBuilder,
    x_TD: Value,
    rope_table_TR: Value | None,
    slopes_H: Value | None,
    inputs: StepInputs,
    config: DecoderConfig,
    layer: int,
    base: str,
    variant: DecoderVariant,
) -> Value:
    if variant.attention is not None:
        return variant.attention(builder, x_TD, rope_table_TR, inputs, layer)
    return attention(
        builder,
        x_TD,
        rope_table_TR,
        inputs,
        config,
        layer,
        f"{base}.self_attn",
        has_qkv_bias=variant.has_qkv_bias,
        has_qk_norm=variant.has_qk_norm,
        has_output_bias=variant.has_output_bias,
        is_qk_norm_whole=variant.is_qk_norm_whole,
        qkv_limit=variant.qkv_limit,
        scale=variant.attention_scale,
        softcap=variant.attention_softcap,
        has_sinks=variant.has_sinks,
        slopes=slopes_H,
        norm_offset=variant.norm_offset if variant.has_qk_norm else 0.0,
    )


def _mlp(
    builder: GraphBuilder, x_TD: Value, config: DecoderConfig, layer: int, base: str, variant: DecoderVariant
) -> Value:
    if variant.mlp is not None:
        return variant.mlp(builder, x_TD, layer)
    return swiglu_mlp(builder, x_TD, config, f"{base}.mlp")


@dataclass(frozen=True, slots=True)
class _Norms:
    """Writes the norms of one decoder. If the name of a norm is None, nothing is normed."""

    builder: GraphBuilder
    config: DecoderConfig
    variant: DecoderVariant

    def norm(self, x_TD: Value, name: str | None) -> Value:
        """Norm x with the weights called `name`, [T, D]."""
        if name is None:
            return x_TD
        width, eps = self.config.hidden_size, self.config.rms_norm_eps
        with self.builder.scope(name):
            if self.variant.has_layer_norm:
                return layer_norm(self.builder, x_TD, name, width, eps, has_bias=self.variant.has_norm_bias)
            weight_D = self.builder.parameter(f"{name}.weight", (width,))
            offset = self.variant.norm_offset
            out_TD: Value = self.builder.op("rms_norm", x_TD, weight_D, eps=eps, weight_offset=offset)
        return out_TD

    def add_and_norm(self, x_TD: Value, residual_TD: Value, name: str | None) -> tuple[Value, Value]:
        """Add a block's output, times its factor, to the residual; return the norm of the sum, and the sum, [T, D]."""
        x_TD = scaled(self.builder, x_TD, self.variant.residual_factor)
        if name is None or self.variant.has_layer_norm:
            total_TD: Value = self.builder.op("add", x_TD, residual_TD)
            return self.norm(total_TD, name), total_TD
        weight_D = self.builder.parameter(f"{name}.weight", (self.config.hidden_size,))
        attributes = {"eps": self.config.rms_norm_eps, "weight_offset": self.variant.norm_offset}
        with self.builder.scope(name):
            out_TD, total_TD = self.builder.op("add_rms_norm", x_TD, residual_TD, weight_D, **attributes)
        return out_TD, total_TD
