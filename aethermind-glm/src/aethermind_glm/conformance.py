"""Test models of these families for the conformance kit, compared with transformers."""

from __future__ import annotations

from aethermind.testing.families import SMALL, variations

__all__ = ["CASES"]

_BASE = {**SMALL, "pad_token_id": None, "head_dim": 16}
_WHOLE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}

CASES = (
    *variations(
        "GlmForCausalLM",
        {"glm": {}, "glm_no_bias_tied": {"attention_bias": False, "tie_word_embeddings": True}},
        base=_BASE,
    ),
    *variations(
        "Glm4ForCausalLM",
        {"glm4": {}, "glm4_whole_heads_no_bias": {"attention_bias": False, "rope_parameters": _WHOLE}},
        base=_BASE,
    ),
    *variations(
        "Glm4MoeForCausalLM",
        {
            "glm4_moe": {"use_qk_norm": True, "n_group": 4, "topk_group": 2},
            "glm4_moe_bias_no_qk_norm": {"attention_bias": True, "routed_scaling_factor": 1.5, "norm_topk_prob": False},
        },
        base={
            **_BASE,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
        },
    ),
)
