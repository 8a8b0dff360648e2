"""DeepSeek V2, V3 and R1 in GGUF files, and models of other makers that are converted to the same architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aethermind.errors import ConfigError
from aethermind.model.gguf_family import DEEPSEEK_MIXTURE, GgufFamily
from aethermind.text.split_patterns import GGUF_SPLITS

__all__ = ["DEEPSEEK2"]

# The tokenizer glm4 is that of GLM-4.7-Flash.
_SPLITS = ("deepseek-llm", "deepseek-coder", "deepseek-v3", "joyai-llm", "kimi-k2", "glm4")
_SCORINGS = {1: "softmax", 2: "sigmoid"}


def _derive(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of heads, the fields of the router, and YaRN's factors of scores.

    Files written since llama.cpp computes latent attention have the sizes of heads under separate keys; `key_length` is
    then the length of a cached vector. The router of version 3 has a correction bias, and sigmoids unless the file says
    otherwise.
    """
    is_v3 = fields["has_correction_bias"]
    scoring = fields.get("scoring_func", 2 if is_v3 else 1)
    if scoring not in _SCORINGS:
        raise ConfigError(f"deepseek2.expert_gating_func is {scoring!r:.40}; 1 (softmax) and 2 (sigmoid) are computed.")
    has_groups = fields.get("n_group", 1) > 1
    scaling = fields.get("rope_scaling")
    if scaling and "mscale_all_dim" in fields:
        # The file has a tenth of mscale_all_dim, and no mscale, which has the same value in all published models.
        factor = round(10 * fields["mscale_all_dim"], 6)
        scaling = {**scaling, "mscale": factor, "mscale_all_dim": factor}
    return {
        "architectures": [f"DeepseekV{3 if is_v3 else 2}ForCausalLM"],
        "scoring_func": _SCORINGS[scoring],
        "topk_method": "noaux_tc" if is_v3 else "group_limited_greedy" if has_groups else "greedy",
        "qk_nope_head_dim": fields.get("qk_head_dim", fields["head_dim"]) - fields["qk_rope_head_dim"],
        "v_head_dim": fields.get("v_head_dim", fields["value_length"]),
        "rope_scaling": scaling,
        **dict.fromkeys(("partial_rotary_factor", "value_length", "mscale_all_dim", "has_correction_bias")),
    }


DEEPSEEK2 = GgufFamily(
    "DeepseekV2ForCausalLM",
    {name: GGUF_SPLITS[name] for name in _SPLITS},
    modules={
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
        "attn_k_b": "self_attn.k_b_proj",
        "attn_v_b": "self_attn.v_b_proj",
        "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
        **{f"ffn_{name}_shexp": f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
    },
    metadata={
        **DEEPSEEK_MIXTURE,
        "scoring_func": "expert_gating_func",
        "q_lora_rank": "attention.q_lora_rank",
        "kv_lora_rank": "attention.kv_lora_rank",
        "qk_rope_head_dim": "rope.dimension_count",
        "qk_head_dim": "attention.key_length_mla",
        "v_head_dim": "attention.value_length_mla",
        "value_length": "attention.value_length",
        "mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    },
    fields={"norm_topk_prob": False, "q_lora_rank": None},
    present={"has_correction_bias": "exp_probs_b.bias"},
    derive=_derive,
)
