"""The core's operators, in modules by family.

Each operator is one `Operator` with schema, reference, samples and tolerances, called its page. `load` imports the
modules and with them NumPy; this package does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aethermind.ops.operator import Operator

__all__ = ["NAMES", "load", "page"]

_MODULES: Mapping[str, tuple[str, ...]] = {
    "rows": ("embedding", "position_embedding", "scatter_rows", "gather_rows"),
    "rope": ("rope_table", "rope", "shift_keys", "shift_keys_quantized"),
    "norms": ("rms_norm", "add_rms_norm", "layer_norm", "gated_rms_norm"),
    "matrix_products": ("linear", "lm_head", "matmul", "add_low_rank"),
    "shapes": (
        "split_heads",
        "merge_heads",
        "transpose",
        "permute_heads",
        "split_last",
        "merge_last",
        "select",
        "concat",
        "slice_last",
        "concat_last",
    ),
    "reshaping": ("reshape", "permute", "expand"),
    "kv_cache_write": ("kv_cache_write", "kv_cache_write_quantized", "latent_cache_write"),
    "qkv_projection": ("qkv_rope_cache_write", "qkv_rope_cache_write_quantized"),
    "paged_attention": ("paged_attention", "paged_attention_quantized"),
    "latent_attention": ("mla_attention", "linear_per_head"),
    "attention": ("attention", "alibi"),
    "elementwise": ("add", "sub", "mul", "div", "scale", "exp", "log", "cast"),
    "activations": (
        "relu",
        "silu",
        "silu_mul",
        "clamped_silu_mul",
        "sigmoid_mul",
        "gelu",
        "clamp",
        "softcap",
        "softmax",
    ),
    "feed_forward": ("gate_up_silu", "mlp_swiglu", "gate_up_gelu", "mlp_geglu", "ffn_relu", "ffn_gelu"),
    "routers": ("router_logits", "router_topk"),
    "mixture": ("moe_swiglu", "moe_gate_up_silu", "moe_linear", "moe_combine", "take_experts"),
    "recurrent": ("causal_conv1d", "gated_delta_rule", "ssd_scan"),
    "reductions": ("sum", "mean", "prod", "max", "min", "argmax", "argmin"),
    "logits": ("suppress_tokens", "repetition_penalty", "bias_tokens", "mask_tokens"),
    "sampling": ("sample_tokens", "token_logprobs"),
}

NAMES = tuple(name for names in _MODULES.values() for name in names)
"""Names of all operators of the core, by module."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def page(name: str) -> Operator:
    """Import the operator called `name`, one of `NAMES`: the constant `NAME` of its module."""
    operator: Operator = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name.upper())
    return operator


def load() -> tuple[Operator, ...]:
    """Import all operators, in the order of `NAMES`."""
    return tuple(map(page, NAMES))
