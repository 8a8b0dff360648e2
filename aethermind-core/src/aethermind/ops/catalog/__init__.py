"""The catalog: one page an operator. `load` imports the pages and with them NumPy; this package does not."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aethermind.ops.operator import Operator

__all__ = ["NAMES", "load", "page"]

_EMBEDDED = ("embedding", "position_embedding", "scatter_rows", "rope_table")
_ATTENTION = (
    "rms_norm",
    "layer_norm",
    "linear",
    "add_low_rank",
    "split_heads",
    "rope",
    "kv_cache_write",
    "kv_cache_write_quantized",
    "qkv_rope_cache_write",
    "qkv_rope_cache_write_quantized",
    "shift_keys",
    "shift_keys_quantized",
    "paged_attention",
    "paged_attention_quantized",
    "attention",
    "alibi",
    "merge_heads",
)
_FEED_FORWARD = (
    "add",
    "add_rms_norm",
    "silu",
    "mul",
    "silu_mul",
    "gate_up_silu",
    "mlp_swiglu",
    "relu",
    "gelu",
    "ffn_relu",
    "ffn_gelu",
)
_SAMPLED = (
    "gather_rows",
    "lm_head",
    "suppress_tokens",
    "repetition_penalty",
    "bias_tokens",
    "mask_tokens",
    "sample_tokens",
    "token_logprobs",
)
_GENERAL = (
    "sub",
    "div",
    "exp",
    "log",
    "sum",
    "mean",
    "max",
    "min",
    "argmax",
    "softmax",
    "matmul",
    "transpose",
    "permute_heads",
    "split_last",
    "merge_last",
)

NAMES = (*_EMBEDDED, *_ATTENTION, *_FEED_FORWARD, *_SAMPLED, *_GENERAL)
"""Every operator of core's catalog, in the order in which a model meets them; the general ones come last."""


def page(name: str) -> Operator:
    """The page of one of `NAMES`: the constant of the operator's name in the module of its name."""
    operator: Operator = getattr(import_module(f"{__name__}.{name}"), name.upper())
    return operator


def load() -> tuple[Operator, ...]:
    """Every page."""
    return tuple(map(page, NAMES))
