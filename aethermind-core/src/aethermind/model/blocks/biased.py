"""Layers of GPT-2's and BERT's time: projections and norms that have biases, and feed-forward networks with gelu.

Shapes: T tokens, D the width in, N the width out, I the inner width.
"""

from __future__ import annotations

from aethermind.errors import ConfigError
from aethermind.graph.builder import GraphBuilder
from aethermind.graph.ir import Value

__all__ = ["gelu_mlp", "is_gelu_approximate", "layer_norm", "linear"]

_GELUS = {"gelu": False, "gelu_new": True, "gelu_pytorch_tanh": True}
"""By the names of config.json: whether it is the tanh form."""


def linear(builder: GraphBuilder, x_TD: Value, name: str, out_width: int, in_width: int) -> Value:
    """x · weightᵀ + bias, [T, N], with `{name}.weight` [N, D] and `{name}.bias` [N]."""
    weight_ND = builder.parameter(f"{name}.weight", (out_width, in_width))
    bias_N = builder.parameter(f"{name}.bias", (out_width,))
    out_TN: Value = builder.op("linear", x_TD, weight_ND, bias_N)
    return out_TN


def layer_norm(builder: GraphBuilder, x_TD: Value, name: str, width: int, eps: float) -> Value:
    """Mean zero and variance one for each token (Ba et al. 2016), then `{name}.weight` and `{name}.bias`."""
    weight_D = builder.parameter(f"{name}.weight", (width,))
    bias_D = builder.parameter(f"{name}.bias", (width,))
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
) -> Value:
    """Down to D from gelu of up to I; `names` are those of the two projections, `is_approximate` takes gelu's tanh
    form (Hendrycks and Gimpel 2016).
    """
    inner, outer = names
    out_TD: Value = builder.op(
        "ffn_gelu",
        x_TD,
        builder.parameter(f"{inner}.weight", (inner_width, width)),
        builder.parameter(f"{inner}.bias", (inner_width,)),
        builder.parameter(f"{outer}.weight", (width, inner_width)),
        builder.parameter(f"{outer}.bias", (width,)),
        approximate=is_approximate,
    )
    return out_TD


def is_gelu_approximate(field: str, name: str) -> bool:
    """Whether the gelu that `field` of config.json names is the tanh form; ConfigError where it names none."""
    if name not in _GELUS:
        raise ConfigError(f"{field} {name!r} in config.json is none of {', '.join(_GELUS)}.")
    return _GELUS[name]
