"""Layers outside attention: embeddings, LM head, projections, LayerNorm, feed-forward networks.

Shapes: T tokens, R rows of logits, D hidden_size or the width of the input, N the width of the output, I
intermediate_size, V vocab_size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aethermind.errors import ConfigError
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value
from aethermind.hal.dtype import DType
from aethermind.model.config import DecoderConfig
from aethermind.model.step_inputs import StepInputs

__all__ = [
    "GeluMlps",
    "embedding",
    "geglu_mlp",
    "gelu_mlp",
    "is_gelu_approximate",
    "layer_norm",
    "linear",
    "lm_head",
    "scaled",
    "swiglu_mlp",
]


def embedding(
    builder: GraphBuilder, inputs: StepInputs, config: DecoderConfig, weight: str, *, factor: float = 1.0
) -> Value:
    """Look up rows of the embedding table, [T, D], and multiply them by `factor`, in the builder's `embedding_dtype`.

    Rows for which the step's inputs have embeddings are replaced by these.
    """
    table_VD = builder.parameter(weight, (config.vocab_size, config.hidden_size), builder.embedding_dtype)
    x_TD = scaled(builder, builder.op("embedding", inputs.token_ids, table_VD), factor)
    x_TD = _in_dtype(builder, x_TD, builder.dtype)
    if inputs.embeddings is not None:
        x_TD = builder.op("scatter_rows", x_TD, inputs.embeddings.values, inputs.embeddings.rows)
    return x_TD


def lm_head(builder: GraphBuilder, x_RD: Value, config: DecoderConfig, weight: str, bias: str | None = None) -> Value:
    """Write the logits of rows, float32 [R, V]; mark the rows as the model's `hidden_states`.

    `bias` is the name of the bias [V]; None for none. The logits are computed in the builder's `lm_head_dtype`.
    """
    builder.mark("hidden_states", x_RD)
    dtype = builder.lm_head_dtype
    weight_VD = builder.parameter(weight, (config.vocab_size, config.hidden_size), dtype)
    bias_V = None if bias is None else builder.parameter(bias, (config.vocab_size,), dtype)
    logits_RV: Value = builder.op("lm_head", _in_dtype(builder, x_RD, dtype), weight_VD, bias_V)
    return logits_RV


def _in_dtype(builder: GraphBuilder, x: Value, dtype: DType) -> Value:
    """Cast x to a dtype; return x itself if it has that dtype."""
    return x if x.type.dtype is dtype else builder.op("cast", x, dtype=dtype)


_GELUS = {"gelu": False, "gelu_new": True, "gelu_fast": True, "gelu_pytorch_tanh": True}
"""The names of gelu in config.json, and whether each is the tanh form."""


def scaled(builder: GraphBuilder, x: Value, factor: float) -> Value:
    """Write x · factor; return x itself for a factor of 1."""
    return x if factor == 1.0 else builder.op("scale", x, factor=factor)


def linear(
    builder: GraphBuilder, x_TD: Value, name: str, out_width: int, in_width: int, *, has_bias: bool = True
) -> Value:
    """Write x · weightᵀ + bias, [T, N], with `{name}.weight` [N, D] and, if `has_bias`, `{name}.bias` [N]."""
    weight_ND = builder.parameter(f"{name}.weight", (out_width, in_width))
    bias_N = builder.parameter(f"{name}.bias", (out_width,)) if has_bias else None
    out_TN: Value = builder.op("linear", x_TD, weight_ND, bias_N)
    return out_TN


def layer_norm(
    builder: GraphBuilder, x_TD: Value, name: str, width: int, eps: float, *, has_bias: bool = True
) -> Value:
    """Write a LayerNorm (Ba et al. 2016) with `{name}.weight` and, if `has_bias`, `{name}.bias`, [T, D]."""
    weight_D = builder.parameter(f"{name}.weight", (width,))
    bias_D = builder.parameter(f"{name}.bias", (width,)) if has_bias else None
    out_TD: Value = builder.op("layer_norm", x_TD, weight_D, bias_D, eps=eps)
    return out_TD


def gelu_mlp(
    builder: GraphBuilder,
    x_TD: Value,
    names: tuple[str, str],
    width: int,
    inner_width: int,
    *,
    is_approximate: bool,
    has_bias: bool = True,
) -> Value:
    """Write down(gelu(up(x))), [T, D], with the inner width I; `names` are those of the two projections.

    `is_approximate` selects gelu's tanh form (Hendrycks and Gimpel 2016).
    """
    inner, outer = names
    biases = [
        builder.parameter(f"{name}.bias", (rows,)) if has_bias else None
        for name, rows in ((inner, inner_width), (outer, width))
    ]
    out_TD: Value = builder.op(
        "ffn_gelu",
        x_TD,
        builder.parameter(f"{inner}.weight", (inner_width, width)),
        biases[0],
        builder.parameter(f"{outer}.weight", (width, inner_width)),
        biases[1],
        approximate=is_approximate,
    )
    return out_TD


@dataclass(frozen=True, slots=True)
class GeluMlps:
    """Writes `gelu_mlp` as the feed-forward networks of a decoder's layers, for `DecoderVariant.mlp`.

    `names` are those of the two projections in `model.layers.{layer}.mlp`.
    """

    names: tuple[str, str]
    hidden_size: int
    intermediate_size: int
    is_approximate: bool
    has_bias: bool = True

    def __call__(self, builder: GraphBuilder, x_TD: Value, layer: int) -> Value:
        """Write the network of a layer: [T, D]."""
        base = f"model.layers.{layer}.mlp"
        inner, outer = (f"{base}.{name}" for name in self.names)
        sizes = (self.hidden_size, self.intermediate_size)
        with builder.scope(base):
            return gelu_mlp(
                builder, x_TD, (inner, outer), *sizes, is_approximate=self.is_approximate, has_bias=self.has_bias
            )


def is_gelu_approximate(field: str, name: Any) -> bool:
    """Whether the gelu that `field` of config.json names is the tanh form; ConfigError for another activation."""
    if not isinstance(name, str) or name not in _GELUS:
        raise ConfigError(f"{field} {name!r} in config.json is none of {', '.join(_GELUS)}.")
    return _GELUS[name]


def swiglu_mlp(
    builder: GraphBuilder, x_TD: Value, config: DecoderConfig, prefix: str, *, width: int | None = None
) -> Value:
    """Write down(silu(gate(x)) · up(x)), [T, D] (Shazeer 2020).

    Weights are `{prefix}.gate_proj.weight`, `up_proj`, `down_proj`. `width` is the inner width I; None for the
    configuration's `intermediate_size`.
    """
    hidden, intermediate = config.hidden_size, config.intermediate_size if width is None else width
    gate_ID = builder.parameter(f"{prefix}.gate_proj.weight", (intermediate, hidden))
    up_ID = builder.parameter(f"{prefix}.up_proj.weight", (intermediate, hidden))
    down_DI = builder.parameter(f"{prefix}.down_proj.weight", (hidden, intermediate))
    with builder.scope(prefix):
        out_TD: Value = builder.op("mlp_swiglu", x_TD, gate_ID, up_ID, down_DI)
    return out_TD


def geglu_mlp(builder: GraphBuilder, x_TD: Value, config: DecoderConfig, prefix: str, *, is_approximate: bool) -> Value:
    """Write down(gelu(gate(x)) · up(x)) with the weights of `swiglu_mlp`; `is_approximate` selects gelu's tanh form."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    gate_ID = builder.parameter(f"{prefix}.gate_proj.weight", (intermediate, hidden))
    up_ID = builder.parameter(f"{prefix}.up_proj.weight", (intermediate, hidden))
    down_DI = builder.parameter(f"{prefix}.down_proj.weight", (hidden, intermediate))
    with builder.scope(prefix):
        out_TD: Value = builder.op("mlp_geglu", x_TD, gate_ID, up_ID, down_DI, approximate=is_approximate)
    return out_TD
