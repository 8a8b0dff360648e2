"""GGUF files of Qwen2 to Qwen3.5: dense models, mixtures of experts, and models with gated delta nets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aethermind.model.gguf_family import GgufFamily, GgufTransform, SplitRule
from aethermind.text.split_patterns import GPT_4_SINGLE_DIGITS

__all__ = ["QWEN2", "QWEN2_MOE", "QWEN3", "QWEN3_5", "QWEN3_5_MOE", "QWEN3_MOE", "QWEN3_NEXT"]

Fields = Mapping[str, Any]

# DeepSeek's distilled models have Qwen's vocabulary with other special tokens, and another `tokenizer.ggml.pre`.
_SPLITS = dict.fromkeys(("qwen2", "deepseek-r1-qwen"), SplitRule(GPT_4_SINGLE_DIGITS, is_nfc=True))
# In Qwen3.5's rule, Unicode marks (\p{M}) belong to words.
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
"""All Qwen3-MoE models renormalise the weights of a token's experts, but the files do not have the field."""

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
"""The converter adds 1 to the weights of norms, so the graph must not."""
_A_LOG = {"ssm_a": GgufTransform(is_negative_exponential=True)}


def _derive(fields: Fields) -> dict[str, Any]:
    """Return `layer_types` and the size of a value head.

    Newer files say which layers are recurrent. The files have the size of all value heads together.
    """
    layer_types, is_recurrent = None, fields.get("layer_types")
    if is_recurrent is not None:
        layer_types = ["linear_attention" if each else "full_attention" for each in is_recurrent]
        layer_types = layer_types[: fields["num_hidden_layers"]]
    value_dim = fields["linear_value_head_dim"] // fields["linear_num_value_heads"]
    return {"layer_types": layer_types, "linear_value_head_dim": value_dim}


def _grouped_heads(fields: Fields) -> dict[str, GgufTransform]:
    """Return transforms that put the value heads of one key head next to each other, as Qwen3.5 has them.

    The files have the first value head of every key head, then the second of every key head, and so on.
    """
    key_heads, value_heads = fields["linear_num_key_heads"], fields["linear_num_value_heads"]
    value_dim, num_qk_rows = fields["linear_value_head_dim"], 2 * key_heads * fields["linear_key_head_dim"]
    heads = np.arange(value_heads).reshape(-1, key_heads).T.reshape(-1)
    rows = (heads[:, None] * value_dim + np.arange(value_dim)).ravel()
    after_qk_rows = GgufTransform(rows=(*range(num_qk_rows), *(num_qk_rows + rows).tolist()))
    by_head, by_row = GgufTransform(rows=tuple(heads.tolist())), GgufTransform(rows=tuple(rows.tolist()))
    return {
        "attn_qkv.weight": after_qk_rows,
        "ssm_conv1d.weight": after_qk_rows,
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
