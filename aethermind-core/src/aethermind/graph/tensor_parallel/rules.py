"""Sharding rules of operators: Megatron-LM's scheme (Shoeybi et al. 2019, arXiv:1909.08053), as a table.

A projection to heads or to the intermediate size is column parallel (sharded by its outputs), so each rank has whole
heads and a shard of the intermediate size, and computes the following operators on these alone. The projection back to
the hidden size is row parallel (sharded by its inputs): each rank has partial sums, which an `all_reduce` adds. There
are two in a layer.

The embedding table is sharded by hidden size and the LM head by vocabulary; their outputs are gathered. The output of a
projection is gathered as well if one norm covers all of it; after the norm every rank continues with its own heads. In
a mixture of experts, every rank has a shard of the intermediate size of each expert, and computes the whole router. If
there are more ranks than key-value heads, neighbouring ranks share a head. LoRA is sharded like the projection that it
is added to: `up` along the outputs, or `down` along the inputs; one `all_reduce` adds the partial sums of both.

A recurrence (a gated delta net or Mamba 2) is sharded by the heads of its state. The convolution before it is sharded
in the same way; its channels are those of several operands of the recurrence (`segments`). A norm over groups of
channels is sharded if every rank has whole groups; else its input is gathered. Every rank computes all of any other
operator that keeps a state, such as a short convolution without a recurrence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["ADD_LOW_RANK", "Collective", "HEADS", "Partial", "RECURRENCES", "RULES", "Rule"]


class Collective(Enum):
    """The collective operator that makes a sharded output whole."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather_last"


class Partial(Enum):
    """A sharded output that is not split along an axis."""

    SUM = "sum"
    """Each rank has a partial sum."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to shard an operator, named by the inputs, outputs and attributes of its schema.

    The rule applies to a node whose computed inputs are sharded as `inputs` says, and which fulfils the conditions.
    """

    inputs: Mapping[str, int | Partial]
    """The axes along which inputs are split, counted from the last (negative); other inputs are whole."""
    outputs: Mapping[str, int | Partial | Collective]
    """The axes along which outputs are split, or the collectives that make them whole; others are whole already."""
    divided: tuple[str, ...] = ()
    """Attributes that are divided by the number of ranks."""
    shared: tuple[str, ...] = ()
    """Attributes that count heads; if there are more ranks than heads, several ranks have the same head."""
    head_counts: Mapping[str, str] = field(default_factory=dict)
    """For a weight that is split between heads: the attribute that counts its heads."""
    stack_counts: Mapping[str, str] = field(default_factory=dict)
    """For a stack of matrices, each of which is split: the attribute that counts the matrices."""
    unshared_heads: tuple[str, ...] = ()
    """Inputs whose number of heads must be a multiple of the number of ranks."""
    rank_0_only: tuple[str, ...] = ()
    """Inputs that only rank 0 has, such as biases that would be added once by every rank."""
    reader: str | None = field(default=None)
    """Condition: the only operator that reads the output. LoRA and `scale` in between are skipped, unless `reader` is
    LoRA. The attributes of that node are used where the operator itself has none of that name.
    """
    sharded_reader_input: str | None = field(default=None)
    """Condition: an input of the reader that is sharded already."""
    divisible: str | None = field(default=None)
    """Condition: an attribute that is a multiple of the number of ranks."""
    segments: tuple[str, ...] = ()
    """Inputs whose split axis has the channels of a recurrence's operands, one after another: a rank has those of its
    heads of each operand.
    """


HEADS = -2
"""The axis of heads in activations [T, H, C]; in the KV cache [N, K, P, C] it is -3."""
_CACHE = {"k_cache": -3, "v_cache": -3}
_QUANTIZED_CACHE = {**_CACHE, "k_scale": -2, "v_scale": -2}
_PER_HEAD = {"sinks": -1, "slopes": -1}
_CACHE_OUT: Mapping[str, int | Collective] = {"k_out": -3, "v_out": -3}
_QUANTIZED_CACHE_OUT: Mapping[str, int | Collective] = {**_CACHE_OUT, "k_scale_out": -2, "v_scale_out": -2}
_ROWS, _COLUMNS = -2, -1
"""Axes of weights [N, K]: rows are the N outputs of a projection, columns its K inputs."""
_LAST = -1
"""The last axis of activations, biases and scales."""
_QKV = {**dict.fromkeys(("w_q", "w_k", "w_v"), _ROWS), **dict.fromkeys(("b_q", "b_k", "b_v"), _LAST)}
_PROJECTION = {"weight": _ROWS, "bias": _LAST}
ADD_LOW_RANK = "add_low_rank"
_NEW_KEYS_AND_VALUES = {"k": HEADS, "v": HEADS}
_QKV_HEADS: dict[str, Any] = {
    "divided": ("num_heads",),
    "shared": ("num_kv_heads",),
    "head_counts": {name: "num_heads" if name.endswith("q") else "num_kv_heads" for name in _QKV},
}
_CONVOLUTION = {"x": _LAST, "w": _LAST, "bias": _LAST, "state": -1}
_RECURRENCE = {"a_log": -1, "dt_bias": -1, "state": -3}
_RECURRENCE_OUT: Mapping[str, int | Collective] = {"out": HEADS, "state_out": -3}
RECURRENCES: Mapping[str, bool] = {"gated_delta_rule": False, "ssd_scan": True}
"""Operators of recurrences, and whether the values [H, E] precede the two operands [G, D] in a row of their first
input.
"""
_EXPERTS = {"w_gate": _ROWS, "w_up": _ROWS, "w_down": _COLUMNS, "b_gate": _LAST, "b_up": _LAST}
_STACKED_BY_EXPERT = dict.fromkeys(("w_gate", "w_up", "b_gate", "b_up"), "num_experts")
_FEED_FORWARD = Rule(
    {"w_in": _ROWS, "b_in": _LAST, "w_out": _COLUMNS}, {"out": Collective.ALL_REDUCE}, rank_0_only=("b_out",)
)

RULES: Mapping[str, tuple[Rule, ...]] = {
    "embedding": (Rule({"table": _COLUMNS}, {"out": Collective.ALL_GATHER}),),
    "qkv_rope_cache_write": (Rule({**_QKV, **_CACHE}, {"q": HEADS, **_CACHE_OUT}, **_QKV_HEADS),),
    "qkv_rope_cache_write_quantized": (
        Rule({**_QKV, **_QUANTIZED_CACHE}, {"q": HEADS, **_QUANTIZED_CACHE_OUT}, **_QKV_HEADS),
    ),
    "linear": (
        Rule(_PROJECTION, {"out": _LAST}, head_counts=dict.fromkeys(_PROJECTION, "num_heads"), reader="split_heads"),
        Rule(_PROJECTION, {"out": Collective.ALL_GATHER}, reader="rms_norm"),
        Rule(_PROJECTION, {"out": _LAST}, reader="silu_mul"),
        Rule(_PROJECTION, {"out": _LAST}, reader="sigmoid_mul", sharded_reader_input="x"),
        Rule(_PROJECTION, {"out": _LAST}, reader="causal_conv1d", segments=("weight", "bias")),
        Rule(_PROJECTION, {"out": _LAST}, reader="gated_delta_rule"),
        Rule(_PROJECTION, {"out": _LAST}, reader="ssd_scan"),
        Rule(_PROJECTION, {"out": _LAST}, reader="gated_rms_norm", divisible="num_groups"),
        Rule({"x": _LAST, "weight": _COLUMNS}, {"out": Partial.SUM}, rank_0_only=("bias",), reader=ADD_LOW_RANK),
        Rule({"x": _LAST, "weight": _COLUMNS}, {"out": Collective.ALL_REDUCE}, rank_0_only=("bias",)),
    ),
    ADD_LOW_RANK: (
        Rule({"y": _LAST, "up": _LAST}, {"out": _LAST}, reader="causal_conv1d", segments=("up",)),
        Rule({"y": _LAST, "up": _LAST}, {"out": _LAST}, head_counts={"up": "num_heads"}, reader="split_heads"),
        Rule({"y": _LAST, "up": _LAST}, {"out": _LAST}),
        Rule({"y": Partial.SUM, "x": _LAST, "down": _LAST}, {"out": Collective.ALL_REDUCE}),
    ),
    "silu_mul": (Rule(dict.fromkeys(("gate", "up"), _LAST), {"out": _LAST}),),
    "sigmoid_mul": (Rule(dict.fromkeys(("gate", "x"), _LAST), {"out": _LAST}),),
    "scale": (Rule({"x": _LAST}, {"out": _LAST}), Rule({"x": HEADS}, {"out": HEADS})),
    "cast": (Rule({"x": _LAST}, {"out": _LAST}),),
    "mul": (Rule({"a": _LAST, "b": _LAST}, {"out": _LAST}, reader="causal_conv1d", segments=("a", "b")),),
    "causal_conv1d": (Rule(_CONVOLUTION, {"out": _LAST, "state_out": -1}, segments=("w", "bias", "state")),),
    "gated_delta_rule": (Rule({"qkv": _LAST, "a": _LAST, "b": _LAST, **_RECURRENCE}, _RECURRENCE_OUT),),
    "ssd_scan": (Rule({"xbc": _LAST, "dt": _LAST, "d": -1, **_RECURRENCE}, _RECURRENCE_OUT),),
    "gated_rms_norm": (
        Rule({"x": HEADS, "gate": HEADS}, {"out": HEADS}),
        Rule(dict.fromkeys(("x", "gate", "weight"), _LAST), {"out": _LAST}, divided=("num_groups",)),
    ),
    "split_heads": (Rule({"x": _LAST}, {"out": HEADS}, shared=("num_heads",)),),
    "rms_norm": (Rule({"x": HEADS}, {"out": HEADS}),),
    "rope": (Rule({"x": HEADS}, {"out": HEADS}),),
    "kv_cache_write": (Rule({**_NEW_KEYS_AND_VALUES, **_CACHE}, _CACHE_OUT),),
    "kv_cache_write_quantized": (Rule({**_NEW_KEYS_AND_VALUES, **_QUANTIZED_CACHE}, _QUANTIZED_CACHE_OUT),),
    "paged_attention": (Rule({"q": HEADS, **_CACHE, **_PER_HEAD}, {"out": HEADS}, unshared_heads=("q",)),),
    "paged_attention_quantized": (
        Rule({"q": HEADS, **_QUANTIZED_CACHE, **_PER_HEAD}, {"out": HEADS}, unshared_heads=("q",)),
    ),
    "mla_attention": (Rule({"q": HEADS}, {"out": HEADS}),),
    "linear_per_head": (
        Rule({"x": HEADS, "w": _ROWS}, {"out": HEADS}, divided=("num_heads",), head_counts={"w": "num_heads"}),
    ),
    "slice_last": (Rule({"x": HEADS}, {"out": HEADS}),),
    "concat_last": (Rule({"a": HEADS, "b": HEADS}, {"out": HEADS}),),
    "attention": (Rule(dict.fromkeys("qkv", HEADS), {"out": HEADS}, unshared_heads=("q",)),),
    "merge_heads": (
        Rule({"x": HEADS}, {"out": _LAST}, reader="gated_rms_norm", divisible="num_groups"),
        Rule({"x": HEADS}, {"out": Collective.ALL_GATHER}, reader="gated_rms_norm"),
        Rule({"x": HEADS}, {"out": _LAST}),
    ),
    "shift_keys": (Rule({"k_cache": -3}, {"k_out": -3}),),
    "shift_keys_quantized": (Rule({"k_cache": -3, "k_scale": -2}, {"k_out": -3, "k_scale_out": -2}),),
    "mlp_swiglu": (Rule({"w_gate": _ROWS, "w_up": _ROWS, "w_down": _COLUMNS}, {"out": Collective.ALL_REDUCE}),),
    "moe_swiglu": (
        Rule(_EXPERTS, {"out": Collective.ALL_REDUCE}, stack_counts=_STACKED_BY_EXPERT, rank_0_only=("b_down",)),
    ),
    "gate_up_silu": (Rule({"w_gate": _ROWS, "w_up": _ROWS}, {"out": _LAST}, reader="linear"),),
    "mlp_geglu": (Rule({"w_gate": _ROWS, "w_up": _ROWS, "w_down": _COLUMNS}, {"out": Collective.ALL_REDUCE}),),
    "gate_up_gelu": (Rule({"w_gate": _ROWS, "w_up": _ROWS}, {"out": _LAST}, reader="linear"),),
    "ffn_gelu": (_FEED_FORWARD,),
    "ffn_relu": (_FEED_FORWARD,),
    "lm_head": (Rule(_PROJECTION, {"logits": Collective.ALL_GATHER}),),
}
"""Rules by operator; the first that fits applies. Operators without a rule are computed whole by every rank."""
