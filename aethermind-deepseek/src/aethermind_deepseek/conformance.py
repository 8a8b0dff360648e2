"""Test models of these families for the conformance kit, compared with transformers."""

from __future__ import annotations

from aethermind.testing.families import SMALL, variations

__all__ = ["CASES"]

_BASE = {
    **SMALL,
    "num_key_value_heads": 4,
    "pad_token_id": None,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 10000.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}

CASES = (
    *variations(
        "DeepseekV2ForCausalLM",
        {
            "deepseek_v2_lite": {"q_lora_rank": None, "n_shared_experts": 2, "topk_method": "greedy"},
            "deepseek_v2_groups": {
                "topk_method": "group_limited_greedy",
                "n_group": 4,
                "topk_group": 2,
                "routed_scaling_factor": 16.0,
            },
            "deepseek_v2_yarn": {"q_lora_rank": None, "rope_parameters": _YARN},
        },
        base=_BASE,
    ),
    *variations(
        "DeepseekV3ForCausalLM",
        {
            "deepseek_v3": {"n_group": 4, "topk_group": 2},
            "deepseek_v3_full_rank_yarn": {
                "q_lora_rank": None,
                "n_group": 1,
                "topk_group": 1,
                "norm_topk_prob": False,
                "rope_parameters": _YARN,
                "rope_interleave": False,
            },
        },
        base=_BASE,
    ),
)
