"""Qwen2 to Qwen3.5, dense, with experts and with gated delta nets, in GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aethermind.model.gguf_family import GgufFamily, GgufTransform, SplitRule
from aethermind.text.split_patterns import GPT_4_SINGLE_DIGITS

__all__ = ["QWEN2", "QWEN2_MOE", "QWEN3", "QWEN3_5", "QWEN3_5_MOE", "QWEN3_MOE", "QWEN3_NEXT"]

Fields = Mapping[str, Any]

# DeepSeek's distilled models use Qwen's vocabulary with other special tokens, under another name.
_SPLITS = dict.fromkeys(("qwen2", "deepseek-r1-qwen"), SplitRule(GPT_4_SINGLE_DIGITS, is_nfc=True))
# Qwen3.5's: marks belong to words.
_SPLITS_3_5 = {
    "qwen35": SplitRule(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
        is_nfc=True,
    )
}

QWEN2 = GgufFamily("Qwen2ForCausalLM", _SPLITS, is_writable=True)
QWEN3 = GgufFamily("Qwen3ForCausalLM", _SPLITS, is_writable=True)
QWEN2_MOE = GgufFamily("Qwen2MoeForCausalLM", _SPLITS, is_writable=True)
QWEN3_MOE = GgufFamily("Qwen3MoeForCausalLM", _SPLITS, fields={"norm_topk_prob": True}, is_writable=True)
"""Files of Qwen3-MoE do not say that weights of a token's experts sum to one; those of all its models do."""

_MODULES = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_METADATA = {
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_value_head_dim": "ssm.inner_size",
    "full_attention_interval": "full_attention_interval",
    "layer_types": "attention.recurrent_layers",
}
_HYBRID: dict[str, Any] = {"norm_weight_offset": 0.0}
"""The converter adds 1 to the weights of norms."""
_A_LOG = {"ssm_a": GgufTransform(is_negative_exponential=True)}


def _derive(fields: Fields) -> dict[str, Any]:
    """The kinds of layers, of which newer files list the recurrent ones, and the size of a head."""
    kinds = fields.get("layer_types")
    if kinds is not None:
        kinds = ["linear_attention" if is_recurrent else "full_attention" for is_recurrent in kinds]
        kinds = kinds[: fields["num_hidden_layers"]]
    width = fields["linear_value_head_dim"] // fields["linear_num_value_heads"]
    return {"layer_types": kinds, "linear_value_head_dim": width}


def _grouped_heads(fields: Fields) -> dict[str, GgufTransform]:
    """Value heads are stored in turn, one of each key head's, where Qwen3.5 has those of a key head side by side."""
    key_heads, value_heads = fields["linear_num_key_heads"], fields["linear_num_value_heads"]
    width, num_others = fields["linear_value_head_dim"], 2 * key_heads * fields["linear_key_head_dim"]
    heads = np.arange(value_heads).reshape(-1, key_heads).T.reshape(-1)
    rows = (heads[:, None] * width + np.arange(width)).ravel()
    behind_keys = GgufTransform(rows=(*range(num_others), *(num_others + rows).tolist()))
    by_head, by_row = GgufTransform(rows=tuple(heads.tolist())), GgufTransform(rows=tuple(rows.tolist()))
    return {
        "attn_qkv.weight": behind_keys,
        "ssm_conv1d.weight": behind_keys,
        "attn_gate.weight": by_row,
        "ssm_beta.weight": by_head,
        "ssm_alpha.weight": by_head,
        "ssm_dt.bias": by_head,
        "ssm_a": GgufTransform(rows=by_head.rows, is_negative_exponential=True),
        "ssm_out.weight": GgufTransform(columns=by_row.rows),
    }


QWEN3_NEXT = GgufFamily(
    "Qwen3NextForCausalLM",
    _SPLITS,
    modules=_MODULES,
    metadata=_METADATA,
    fields=_HYBRID,
    transforms=_A_LOG,
    derive=_derive,
)
QWEN3_5 = GgufFamily(
    "Qwen3_5ForCausalLM",
    _SPLITS_3_5,
    modules=_MODULES,
    metadata=_METADATA,
    fields=_HYBRID,
    transforms=_grouped_heads,
    derive=_derive,
)
QWEN3_5_MOE = GgufFamily(
    "Qwen3_5MoeForCausalLM",
    _SPLITS_3_5,
    modules=_MODULES,
    metadata=_METADATA,
    fields={**_HYBRID, "intermediate_size": 1},
    transforms=_grouped_heads,
    derive=_derive,
)
