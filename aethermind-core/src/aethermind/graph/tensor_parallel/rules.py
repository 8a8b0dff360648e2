"""Sharding rules of operators: Megatron-LM's scheme (Shoeybi et al. 2019, arXiv:1909.08053), as a table.

A projection to heads or to the intermediate size is column parallel (sharded by its outputs), so each rank has whole
heads and a shard of the intermediate size; the operators behind it work on these alone. The projection back is row
parallel (sharded by its inputs): each rank has partial sums, which an `all_reduce` completes, two in a layer. The
embedding table is sharded by hidden size and the projection to the vocabulary by tokens; their outputs are gathered.
So are those of a projection that is normed as a whole, after which every rank continues with its own heads. In a
mixture of experts, every rank has a shard of the intermediate size of each expert; the router is computed whole. Where
there are more ranks than key-value heads, neighbouring ranks share one. LoRA is sharded as the product that it is added
to: `up` with the outputs, or `down` with the inputs, before the one `all_reduce` of both.

A recurrence is sharded by the heads of its state, with the convolution before it, whose channels are those of several
operands (`segments`). A norm over groups of channels is sharded if every rank has whole groups; else its input is
gathered. Other operators that keep a state, such as short convolutions alone, are computed whole by every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["ADD_LOW_RANK", "Collective", "HEADS", "Partial", "RULES", "Rule", "SCANS"]


class Collective(Enum):
    """The collective that makes a sharded output whole."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather_last"


class Partial(Enum):
    """A sharded output that is not split along an axis."""

    SUM = "sum"
    """Each rank has a partial sum."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to shard an operator.

    `inputs` are split along these axes, counted from the last, the others are whole; the rule applies where computed
    inputs are sharded so. `outputs` are split along an axis, or made whole by a collective; others are whole already.
    `divided` are attributes that count what is split, `shared` those that count heads which several ranks may have in
    common. `heads` names, for a weight of whole heads, the attribute that counts them; `stacks` names, for a stack of
    matrices, the attribute that counts them: each is split. `even` are inputs whose heads no two ranks share. `once`
    are inputs that only rank 0 has, because every rank would add them. `before` names the only operator that reads the
    output, whose attributes are used where the operator itself lacks them; LoRA and factors in between are skipped,
    unless `before` names LoRA. `beside` names an input of that operator that must be sharded already. `multiple` is an
    attribute that must be a multiple of the number of ranks. `segments` are inputs whose split axis has the channels of
    a recurrence's operands, one after the other: a rank has its heads of each.
    """

    inputs: Mapping[str, int | Partial]
    outputs: Mapping[str, int | Partial | Collective]
    divided: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    heads: Mapping[str, str] = field(default_factory=dict)
    stacks: Mapping[str, str] = field(default_factory=dict)
    even: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    before: str | None = field(default=None)
    beside: str | None = field(default=None)
    multiple: str | None = field(default=None)
    segments: tuple[str, ...] = ()


HEADS = -2
"""The axis of heads in activations [T, H, C]; in the cache [N, K, P, C] it is -3."""
_CACHE = {"k_cache": -3, "v_cache": -3}
_CODES = {**_CACHE, "k_scale": -2, "v_scale": -2}
_OF_HEADS = {"sinks": -1, "slopes": -1}
_CACHE_OUT: Mapping[str, int | Collective] = {"k_out": -3, "v_out": -3}
_CODES_OUT: Mapping[str, int | Collective] = {**_CACHE_OUT, "k_scale_out": -2, "v_scale_out": -2}
_ROWS, _COLUMNS, _WIDTH = -2, -1, -1
"""Axes of weights [N, K], N being the outputs of a projection and K its inputs; the last axis of activations."""
_QKV = {**dict.fromkeys(("w_q", "w_k", "w_v"), _ROWS), **dict.fromkeys(("b_q", "b_k", "b_v"), _WIDTH)}
_PROJECTION = {"weight": _ROWS, "bias": _WIDTH}
ADD_LOW_RANK = "add_low_rank"
_NEW = {"k": HEADS, "v": HEADS}
_COUNTS: dict[str, Any] = {
    "divided": ("num_heads",),
    "shared": ("num_kv_heads",),
    "heads": {name: "num_heads" if name.endswith("q") else "num_kv_heads" for name in _QKV},
}
_CONVOLUTION = {"x": _WIDTH, "w": _WIDTH, "bias": _WIDTH, "state": -1}
_RATES = {"a_log": -1, "dt_bias": -1, "state": -3}
_SCAN_OUT: Mapping[str, int | Collective] = {"out": HEADS, "state_out": -3}
SCANS: Mapping[str, bool] = {"gated_delta_rule": False, "ssd_scan": True}
"""Recurrences, and whether the values [H, E] precede the two operands [G, D] in a row of their first input."""
_EXPERTS = {"w_gate": _ROWS, "w_up": _ROWS, "w_down": _COLUMNS, "b_gate": _WIDTH, "b_up": _WIDTH}
_STACKS = dict.fromkeys(("w_gate", "w_up", "b_gate", "b_up"), "num_experts")
_FEED_FORWARD = Rule(
    {"w_in": _ROWS, "b_in": _WIDTH, "w_out": _COLUMNS}, {"out": Collective.ALL_REDUCE}, once=("b_out",)
)

RULES: Mapping[str, tuple[Rule, ...]] = {
    "embedding": (Rule({"table": _COLUMNS}, {"out": Collective.ALL_GATHER}),),
    "qkv_rope_cache_write": (Rule({**_QKV, **_CACHE}, {"q": HEADS, **_CACHE_OUT}, **_COUNTS),),
    "qkv_rope_cache_write_quantized": (Rule({**_QKV, **_CODES}, {"q": HEADS, **_CODES_OUT}, **_COUNTS),),
    "linear": (
        Rule(_PROJECTION, {"out": _WIDTH}, heads=dict.fromkeys(_PROJECTION, "num_heads"), before="split_heads"),
        Rule(_PROJECTION, {"out": Collective.ALL_GATHER}, before="rms_norm"),
        Rule(_PROJECTION, {"out": _WIDTH}, before="silu_mul"),
        Rule(_PROJECTION, {"out": _WIDTH}, before="sigmoid_mul", beside="x"),
        Rule(_PROJECTION, {"out": _WIDTH}, before="causal_conv1d", segments=("weight", "bias")),
        Rule(_PROJECTION, {"out": _WIDTH}, before="gated_delta_rule"),
        Rule(_PROJECTION, {"out": _WIDTH}, before="ssd_scan"),
        Rule(_PROJECTION, {"out": _WIDTH}, before="gated_rms_norm", multiple="num_groups"),
        Rule({"x": _WIDTH, "weight": _COLUMNS}, {"out": Partial.SUM}, once=("bias",), before=ADD_LOW_RANK),
        Rule({"x": _WIDTH, "weight": _COLUMNS}, {"out": Collective.ALL_REDUCE}, once=("bias",)),
    ),
    ADD_LOW_RANK: (
        Rule({"y": _WIDTH, "up": _WIDTH}, {"out": _WIDTH}, before="causal_conv1d", segments=("up",)),
        Rule({"y": _WIDTH, "up": _WIDTH}, {"out": _WIDTH}, heads={"up": "num_heads"}, before="split_heads"),
        Rule({"y": _WIDTH, "up": _WIDTH}, {"out": _WIDTH}),
        Rule({"y": Partial.SUM, "x": _WIDTH, "down": _WIDTH}, {"out": Collective.ALL_REDUCE}),
    ),
    "silu_mul": (Rule(dict.fromkeys(("gate", "up"), _WIDTH), {"out": _WIDTH}),),
    "sigmoid_mul": (Rule(dict.fromkeys(("gate", "x"), _WIDTH), {"out": _WIDTH}),),
    "scale": (Rule({"x": _WIDTH}, {"out": _WIDTH}), Rule({"x": HEADS}, {"out": HEADS})),
    "mul": (Rule({"a": _WIDTH, "b": _WIDTH}, {"out": _WIDTH}, before="causal_conv1d", segments=("a", "b")),),
    "causal_conv1d": (Rule(_CONVOLUTION, {"out": _WIDTH, "state_out": -1}, segments=("w", "bias", "state")),),
    "gated_delta_rule": (Rule({"qkv": _WIDTH, "a": _WIDTH, "b": _WIDTH, **_RATES}, _SCAN_OUT),),
    "ssd_scan": (Rule({"xbc": _WIDTH, "dt": _WIDTH, "d": -1, **_RATES}, _SCAN_OUT),),
    "gated_rms_norm": (
        Rule({"x": HEADS, "gate": HEADS}, {"out": HEADS}),
        Rule(dict.fromkeys(("x", "gate", "weight"), _WIDTH), {"out": _WIDTH}, divided=("num_groups",)),
    ),
    "split_heads": (Rule({"x": _WIDTH}, {"out": HEADS}, shared=("num_heads",)),),
    "rms_norm": (Rule({"x": HEADS}, {"out": HEADS}),),
    "rope": (Rule({"x": HEADS}, {"out": HEADS}),),
    "kv_cache_write": (Rule({**_NEW, **_CACHE}, _CACHE_OUT),),
    "kv_cache_write_quantized": (Rule({**_NEW, **_CODES}, _CODES_OUT),),
    "paged_attention": (Rule({"q": HEADS, **_CACHE, **_OF_HEADS}, {"out": HEADS}, even=("q",)),),
    "paged_attention_quantized": (Rule({"q": HEADS, **_CODES, **_OF_HEADS}, {"out": HEADS}, even=("q",)),),
    "mla_attention": (Rule({"q": HEADS}, {"out": HEADS}),),
    "linear_per_head": (
        Rule({"x": HEADS, "w": _ROWS}, {"out": HEADS}, divided=("num_heads",), heads={"w": "num_heads"}),
    ),
    "slice_last": (Rule({"x": HEADS}, {"out": HEADS}),),
    "concat_last": (Rule({"a": HEADS, "b": HEADS}, {"out": HEADS}),),
    "attention": (Rule(dict.fromkeys("qkv", HEADS), {"out": HEADS}, even=("q",)),),
    "merge_heads": (
        Rule({"x": HEADS}, {"out": _WIDTH}, before="gated_rms_norm", multiple="num_groups"),
        Rule({"x": HEADS}, {"out": Collective.ALL_GATHER}, before="gated_rms_norm"),
        Rule({"x": HEADS}, {"out": _WIDTH}),
    ),
    "shift_keys": (Rule({"k_cache": -3}, {"k_out": -3}),),
    "shift_keys_quantized": (Rule({"k_cache": -3, "k_scale": -2}, {"k_out": -3, "k_scale_out": -2}),),
    "mlp_swiglu": (Rule({"w_gate": _ROWS, "w_up": _ROWS, "w_down": _COLUMNS}, {"out": Collective.ALL_REDUCE}),),
    "moe_swiglu": (Rule(_EXPERTS, {"out": Collective.ALL_REDUCE}, stacks=_STACKS, once=("b_down",)),),
    "gate_up_silu": (Rule({"w_gate": _ROWS, "w_up": _ROWS}, {"out": _WIDTH}, before="linear"),),
    "mlp_geglu": (Rule({"w_gate": _ROWS, "w_up": _ROWS, "w_down": _COLUMNS}, {"out": Collective.ALL_REDUCE}),),
    "gate_up_gelu": (Rule({"w_gate": _ROWS, "w_up": _ROWS}, {"out": _WIDTH}, before="linear"),),
    "ffn_gelu": (_FEED_FORWARD,),
    "ffn_relu": (_FEED_FORWARD,),
    "lm_head": (Rule(_PROJECTION, {"logits": Collective.ALL_GATHER}),),
}
"""Rules by operator; the first that fits applies. Operators without a rule are computed whole by every rank."""
